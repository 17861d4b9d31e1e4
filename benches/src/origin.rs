//! Where figures come from: machine, versions, command.

use std::fs;
use std::process::Command;

/// The dependencies that are under test.
const PEERS: [&str; 11] = [
    "allotment",
    "talc",
    "rlsf",
    "dlmalloc",
    "good_memory_allocator",
    "linked_list_allocator",
    "buddy_system_allocator",
    "embedded-alloc",
    "offset-allocator",
    "mimalloc",
    "snmalloc-rs",
];

/// Machine, versions and command, a line each.
pub fn describe(measure: &str) -> Vec<String> {
    vec![
        format!("machine: {}", machine()),
        format!("compiler: {}, release, fat LTO, one codegen unit", env!("BENCH_RUSTC")),
        format!("versions: {}; allotment at {}", versions(include_str!("../Cargo.lock")), revision()),
        format!("command: cargo xtask bench {measure}"),
    ]
}

/// The same for a part of the planner's tables.
pub fn describe_plan(part: &str) -> Vec<String> {
    vec![
        format!("machine: {}, with other work on it", machine()),
        format!("compiler: {}, release; allotment at {}", env!("BENCH_RUSTC"), revision()),
        format!("command: cargo xtask plan {part}"),
    ]
}

/// The commit that was measured, if git tells.
fn revision() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success());
    output.map_or("an unknown commit".into(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or(std::env::consts::ARCH, |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// The versions of the packages under test in the text of a lock file.
fn versions(lock: &str) -> String {
    let mut versions = Vec::new();
    let mut name = "";
    for line in lock.lines() {
        if let Some(rest) = line.strip_prefix("name = ") {
            name = rest.trim_matches('"');
        } else if let Some(version) = line.strip_prefix("version = ").filter(|_| PEERS.contains(&name)) {
            versions.push(format!("{name} {}", version.trim_matches('"')));
        }
    }
    versions.join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_lock_file_names_the_peers() {
        let text =
            "[[package]]\nname = \"talc\"\nversion = \"5.1\"\n\n[[package]]\nname = \"x\"\nversion = \"1\"\n";
        assert_eq!(super::versions(text), "talc 5.1");
        let versions = super::versions(include_str!("../Cargo.lock"));
        assert!(super::PEERS.iter().all(|peer| versions.contains(peer)), "{versions}");
    }
}
