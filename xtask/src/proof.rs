//! `prove-setup`: what a fresh machine needs is got by an ordinary user, with nothing on `PATH` and a package in the way.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use allotment_common::boards::{Boards, Runner};
use anyhow::{Context, Result, bail, ensure};

use crate::emulator::boot;
use crate::setup::status;
use crate::{Setup, child, firmware, progress, toolchain};

/// A boot of the demo takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// An installed package that no emulator of another version can live with, as one from Debian's backports.
const IN_THE_WAY: &str = "\
Package: qemu-utils
Status: install ok installed
Priority: optional
Section: otherosfs
Maintainer: unspecified
Architecture: amd64
Multi-Arch: foreign
Source: qemu
Version: 1:999.0
Breaks: qemu-system-common (<< 1:999.0), qemu-system-data (<< 1:999.0)
Description: in the way

";

/// Provides the default board's emulator as an ordinary user would get it on a fresh machine, and boots the demo in it.
///
/// # Errors
/// The emulator cannot be had, or does not run the demo.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let board = boards.get(&boards.default)?;
    let Runner::Qemu { system, machine, args } = &board.runner else {
        bail!("the default board `{}` does not run in QEMU", board.name);
    };
    let program = format!("qemu-system-{system}");
    let toolchain = toolchain::find(&[&board.target], setup)?;
    let file = firmware::build(board, &toolchain)?;

    // All that the user sees lies in here.
    let folder = tempfile::Builder::new().prefix("fresh-machine-").tempdir()?;
    let place = |name: &str| folder.path().join(name);
    let (tool, kernel, packages) = (place("xtask"), place("kernel"), place("status"));
    fs::copy(std::env::current_exe()?, &tool)?;
    fs::copy(&file, &kernel)?;
    let installed = fs::read(&setup.dpkg_status).with_context(|| {
        format!("{} cannot be read: only Debian and its relatives can prove it", setup.dpkg_status.display())
    })?;
    let others = status::without(&String::from_utf8_lossy(&installed), &["qemu-utils".into()]);
    fs::write(&packages, others + IN_THE_WAY)?;
    fs::create_dir(place("home"))?;
    open_to_all(folder.path())?;

    let as_user = |program: &Path| {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", place("home"))
            .current_dir(folder.path());
        ordinary(&mut command);
        command
    };
    let mut provide = as_user(&tool);
    provide.args(["provide", "--afresh", &program]).env("ALLOTMENT_DPKG_STATUS", &packages);
    let provided = child::stdout_of(&mut provide)?;
    let provided = Path::new(provided.trim());
    ensure!(provided.starts_with(place("home")), "{} was not unpacked into the cache", provided.display());
    println!("{program} was unpacked by an ordinary user, against a package that breaks its own");

    let mut emulator = as_user(provided);
    let _progress = progress::show(format!("booting {}", board.name));
    let output = child::output_limited(boot(&mut emulator, machine, args, &kernel), LIMIT)?
        .with_context(|| format!("the demo was still running after {} s", LIMIT.as_secs()))?;
    ensure!(
        output.status.success(),
        "the demo ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    println!("{}: passed", board.name);
    Ok(ExitCode::SUCCESS)
}

/// Gives up root's rights where we have them.
#[cfg(unix)]
fn ordinary(command: &mut Command) {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    // The user of everything that belongs to no one; it may change nothing of the system.
    const NOBODY: u32 = 65_534;
    if fs::metadata("/proc/self").is_ok_and(|of_us| of_us.uid() == 0) {
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// Lets every user read and write a folder, and what lies directly in it.
#[cfg(unix)]
fn open_to_all(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for entry in fs::read_dir(folder)? {
        fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o777))?;
    }
    Ok(fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?)
}

#[cfg(not(unix))]
fn ordinary(_command: &mut Command) {}

#[cfg(not(unix))]
fn open_to_all(_folder: &Path) -> Result<()> {
    bail!("only Debian and its relatives can prove it")
}
