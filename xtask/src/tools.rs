//! Programs on `PATH`, and Debian's packages where they must be installed: those of its own Rust toolchain, which work
//! from their usual place only. Everything else is `setup`'s, which installs nothing.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{Setup, child, progress};

/// The path of a program if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    which::which(program).ok()
}

/// Installs Debian packages and never removes one.
pub fn install(packages: &[&str], setup: &Setup) -> Result<()> {
    if setup.no_install {
        bail!("not installed because of --no-install");
    }
    let Some(apt) = find("apt-get") else {
        bail!("there is no apt-get here to install it with");
    };
    let prefix = as_root().context("only root, or sudo without a password, may install it")?;
    eprintln!("xtask: installing {} with apt-get", packages.join(", "));

    let apt_get = |arguments: &[&str]| {
        let mut words = prefix.iter().copied().map(PathBuf::from).chain([apt.clone()]);
        let mut command = child::command(words.next().expect("apt-get at least"));
        command.args(words).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        let _progress = progress::show(format!("running apt-get {}", arguments[0]));
        command.stdin(Stdio::null()).output().context("apt-get does not start")
    };
    let options = ["install", "--yes", "--quiet", "--no-install-recommends", "--no-remove"];
    let arguments = [&options[..], packages].concat();
    if apt_get(&arguments)?.status.success() {
        return Ok(());
    }
    // The package lists may be old, or not there at all as in a fresh container.
    let update = apt_get(&["update", "--quiet"])?;
    let retry = apt_get(&arguments)?;
    if !retry.status.success() {
        let lines = [update.stderr, retry.stderr].concat();
        bail!("apt-get failed: {}", String::from_utf8_lossy(&lines).trim());
    }
    Ok(())
}

/// The words before a command that make it run as root: none for root itself. `None` where we may not.
fn as_root() -> Option<&'static [&'static str]> {
    let quiet = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if quiet(Command::new("id").arg("-u")).as_deref() == Some("0") {
        return Some(&[]);
    }
    // `env` because the settings above do not pass through sudo.
    let prefix = &["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive"];
    quiet(Command::new("sudo").args(["-n", "true"])).map(|_| &prefix[..])
}
