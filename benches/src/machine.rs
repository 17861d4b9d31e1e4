//! The machine and the commit that figures were measured on.

use std::fs;
use std::process::Command;

/// Returns the processor, its cores and the operating system.
pub fn describe() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or(std::env::consts::ARCH, |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Returns the commit of this repository, if git knows it.
pub fn revision() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success());
    output.map_or("an unknown commit".into(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}
