//! The compiler that runs this tool, with the boards' targets, which rustup adds where they are missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{Setup, child, progress};

/// rustup fetches some 30 MB a target; a network that it cannot pass should not cost much more than this.
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);

/// A Cargo and its rustc.
#[derive(Clone, Debug)]
pub struct Toolchain {
    cargo: PathBuf,
    rustc: PathBuf,
}

impl Toolchain {
    /// The toolchain that runs this tool.
    pub fn host() -> Result<Self> {
        let cargo = match std::env::var_os("CARGO").filter(|cargo| !cargo.is_empty()) {
            Some(cargo) => PathBuf::from(cargo),
            None => which::which("cargo")?,
        };
        // Cargo names its real path, beside which is its rustc; rustup's stand-ins are passed over so.
        let beside = cargo.with_file_name("rustc");
        let rustc = if beside.is_file() { beside } else { which::which("rustc")? };
        Ok(Self { cargo, rustc })
    }

    /// `cargo COMMAND` with this toolchain's rustc, and nothing inherited from the host's build.
    pub fn cargo(&self, name: &str) -> Command {
        let mut command = match name {
            // Called by its path, since Cargo would start the first that it finds, of whatever toolchain.
            "clippy" => child::command(self.clippy()),
            _ => child::command(&self.cargo),
        };
        command.arg(name).env("CARGO", &self.cargo).env("RUSTC", &self.rustc);
        command
    }

    /// Makes sure that there is a clippy.
    pub fn need_clippy(&self) -> Result<()> {
        ensure!(
            self.clippy().is_file(),
            "this toolchain has no clippy: `rustup component add clippy` adds it"
        );
        Ok(())
    }

    /// The compiler's version, as it names it.
    pub fn version(&self) -> Result<String> {
        child::stdout_of(child::command(&self.rustc).arg("--version"))
    }

    /// The triple of the machine that this toolchain runs on.
    pub fn triple(&self) -> Result<String> {
        let version = child::stdout_of(child::command(&self.rustc).arg("-vV"))?;
        let triple = version.lines().find_map(|line| line.strip_prefix("host: "));
        triple.map(str::to_owned).context("rustc names no host")
    }

    fn clippy(&self) -> PathBuf {
        self.cargo.with_file_name("cargo-clippy")
    }

    /// The folder of its libraries.
    fn sysroot(&self) -> Result<PathBuf> {
        let mut rustc = child::command(&self.rustc);
        child::stdout_of(rustc.args(["--print", "sysroot"])).map(PathBuf::from)
    }
}

/// A toolchain that compiles for all of `targets`.
pub fn find(targets: &[&str], setup: &Setup) -> Result<Toolchain> {
    let host = Toolchain::host()?;
    let root = host.sysroot()?;
    let missing = missing(targets, &root);
    if !missing.is_empty() {
        rustup_add(&missing, &root, setup)
            .with_context(|| format!("no compiler for {}; try `rustup target add`", missing.join(", ")))?;
    }
    Ok(host)
}

/// Returns whether [`find`] would have to fetch `target`.
pub fn lacks(target: &str) -> Result<bool> {
    Ok(!missing(&[target], &Toolchain::host()?.sysroot()?).is_empty())
}

/// Those of `targets` that a sysroot has no libraries for.
fn missing<'t>(targets: &[&'t str], sysroot: &Path) -> Vec<&'t str> {
    let has_core = |target: &str| {
        let libraries = sysroot.join("lib/rustlib").join(target).join("lib").read_dir();
        let is_core = |name: std::ffi::OsString| name.to_string_lossy().starts_with("libcore-");
        libraries.is_ok_and(|mut files| files.any(|file| file.is_ok_and(|file| is_core(file.file_name()))))
    };
    targets.iter().copied().filter(|target| !has_core(target)).collect()
}

/// Adds targets to the toolchain at `sysroot`, if it is one of rustup's.
fn rustup_add(targets: &[&str], sysroot: &Path, setup: &Setup) -> Result<()> {
    let rustup = which::which("rustup").context("there is no rustup")?;
    let name = match (sysroot.parent().and_then(Path::file_name), sysroot.file_name()) {
        (Some(parent), Some(name)) if parent == "toolchains" => name,
        _ => bail!("{} is not one of rustup's toolchains", sysroot.display()),
    };
    ensure!(!setup.no_install, "not added because of --no-install");
    eprintln!("xtask: adding {} with rustup", targets.join(", "));
    let mut command = child::command(rustup);
    command.args(["target", "add", "--toolchain"]).arg(name).args(targets);
    command.env("RUSTUP_MAX_RETRIES", "1");
    let _progress = progress::show("waiting for rustup".into());
    match child::run_limited(&mut command, RUSTUP_LIMIT)? {
        (Some(status), _) if status.success() => {
            let missing = missing(targets, sysroot);
            ensure!(missing.is_empty(), "rustup did not add {}", missing.join(", "));
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
        let setup = Setup { no_install: true, ..Setup::default() };
        let error = rustup_add(&["thumbv6m-none-eabi"], Path::new("/usr"), &setup).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("not one of rustup's") || text.contains("no rustup"), "{text}");
    }
}
