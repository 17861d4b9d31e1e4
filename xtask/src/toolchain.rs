//! A compiler for the boards' targets: the one that runs this tool if it has them or rustup adds them, else
//! Debian's with a sysroot of our own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use crate::compiler::Toolchain;
use crate::compiler::missing;
use crate::{Setup, child, progress, sysroot, tools};

/// rustup fetches some 30 MB a target; a network that it cannot pass should not cost much more than this.
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);

/// The source of the compiler.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// The one that runs this tool, with rustup's help if need be; else Debian's
    #[default]
    Auto,
    /// The one that runs this tool, or none
    Rustup,
    /// Debian's, with a sysroot that is built once
    Debian,
}

/// A toolchain that compiles for all of `targets`.
pub fn find(targets: &[&str], setup: &Setup) -> Result<Toolchain> {
    let mut why_not = String::new();
    if setup.toolchain != Choice::Debian {
        let host = Toolchain::host()?;
        let root = host.sysroot()?;
        let missing = missing(targets, &root);
        if missing.is_empty() {
            return Ok(host);
        }
        // What an earlier run built is quicker, and a network that rustup cannot pass is not tried again each
        // time.
        let built = |target: &&str| sysroot::is_built(target, setup);
        if setup.toolchain == Choice::Auto && targets.iter().all(built) {
            return sysroot::find(targets, setup);
        }
        match rustup_add(&missing, &root, setup) {
            Ok(()) => return Ok(host),
            Err(error) => why_not = format!("{error:#}"),
        }
        if setup.toolchain == Choice::Rustup {
            bail!("no compiler for {}: {why_not}", missing.join(", "));
        }
    }
    sysroot::find(targets, setup).with_context(|| {
        let why_not = if why_not.is_empty() { String::new() } else { format!(" ({why_not})") };
        format!("no compiler for {}{why_not}; try `rustup target add`", targets.join(", "))
    })
}

/// Returns what [`find`] would have to fetch or build for `target`, without doing it.
pub fn lacks(target: &str, setup: &Setup) -> Result<bool> {
    if setup.toolchain != Choice::Debian && missing(&[target], &Toolchain::host()?.sysroot()?).is_empty() {
        return Ok(false);
    }
    Ok(setup.toolchain == Choice::Rustup || !sysroot::is_built(target, setup))
}

/// Adds targets to the toolchain at `sysroot`, if it is one of rustup's.
fn rustup_add(targets: &[&str], sysroot: &Path, setup: &Setup) -> Result<()> {
    let rustup = tools::find("rustup").context("there is no rustup")?;
    let name = match (sysroot.parent().and_then(Path::file_name), sysroot.file_name()) {
        (Some(parent), Some(name)) if parent == "toolchains" => name,
        _ => bail!("{} is not one of rustup's toolchains", sysroot.display()),
    };
    if setup.no_install {
        bail!("not added because of --no-install");
    }
    eprintln!("xtask: adding {} with rustup", targets.join(", "));
    let mut command = child::command(rustup);
    command.args(["target", "add", "--toolchain"]).arg(name).args(targets);
    command.env("RUSTUP_MAX_RETRIES", "1");
    let _progress = progress::show("waiting for rustup".into());
    match child::run_limited(&mut command, RUSTUP_LIMIT)? {
        (Some(status), _) if status.success() => {
            let missing = missing(targets, sysroot);
            anyhow::ensure!(missing.is_empty(), "rustup did not add {}", missing.join(", "));
            Ok(())
        }
        (Some(_), text) => {
            let reason = text.lines().find(|line| line.starts_with("error:"));
            bail!("rustup cannot add them: {}", reason.unwrap_or("it does not say why"))
        }
        (None, _) => bail!("rustup took longer than {} s", RUSTUP_LIMIT.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_toolchain_has_the_host_and_no_invented_target() {
        let host = Toolchain::host().unwrap();
        let root = host.sysroot().unwrap();
        let triple = host.triple().unwrap();
        assert_eq!(missing(&[&triple, "pdp11-dec-none"], &root), ["pdp11-dec-none"]);
    }

    #[test]
    fn a_sysroot_that_is_not_rustups_is_left_alone() {
        let setup = Setup { toolchain: Choice::Rustup, no_install: true, ..Setup::default() };
        let error = rustup_add(&["thumbv6m-none-eabi"], Path::new("/usr"), &setup).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("not one of rustup's") || text.contains("no rustup"), "{text}");
    }
}
