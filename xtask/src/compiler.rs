//! A compiler, and how its commands are called.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{Setup, child, tools};

/// Debian's Cargo.
pub const DEBIANS_CARGO: &str = "/usr/bin/cargo";
/// The package of its clippy.
const DEBIANS_CLIPPY: &str = "rust-web-clippy";

/// A Cargo and a rustc that compile for some targets.
#[derive(Clone, Debug)]
pub struct Toolchain {
    cargo: PathBuf,
    rustc: PathBuf,
}

impl Toolchain {
    /// Debian's Cargo with `rustc`, a wrapper that knows the sysroot.
    pub fn debian(rustc: PathBuf) -> Self {
        Self { cargo: DEBIANS_CARGO.into(), rustc }
    }

    /// The toolchain that runs this tool.
    pub fn host() -> Result<Self> {
        let cargo = match std::env::var_os("CARGO").filter(|cargo| !cargo.is_empty()) {
            Some(cargo) => PathBuf::from(cargo),
            None => tools::find("cargo").context("there is no `cargo`")?,
        };
        // Cargo names its real path, beside which is its rustc; rustup's stand-ins are passed over so.
        let beside = cargo.with_file_name("rustc");
        let rustc = if beside.is_file() { Some(beside) } else { tools::find("rustc") };
        Ok(Self { cargo, rustc: rustc.context("there is no `rustc`")? })
    }

    /// `cargo COMMAND` with this toolchain's rustc, and nothing inherited from the host's build.
    pub fn cargo(&self, name: &str) -> Command {
        let mut command = match name {
            // Called by its path, since Cargo would start the first that it finds, of whatever toolchain.
            "clippy" => child::command(self.clippy()),
            _ => child::command(&self.cargo),
        };
        command.arg(name).env("CARGO", &self.cargo).env("RUSTC", &self.rustc);
        if self.is_debians() {
            // clippy is a compiler of its own, which the wrapper around rustc does not reach.
            command.env("SYSROOT", self.rustc.ancestors().nth(2).unwrap_or(Path::new("/usr")));
        }
        command
    }

    /// Makes sure that there is a clippy.
    pub fn need_clippy(&self, setup: &Setup) -> Result<()> {
        if self.clippy().is_file() {
            return Ok(());
        }
        if self.is_debians() {
            return tools::install(&[DEBIANS_CLIPPY], setup);
        }
        bail!("this toolchain has no clippy: `rustup component add clippy` adds it")
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

    fn is_debians(&self) -> bool {
        self.cargo == Path::new(DEBIANS_CARGO)
    }

    /// The folder of its libraries.
    pub fn sysroot(&self) -> Result<PathBuf> {
        let mut rustc = child::command(&self.rustc);
        child::stdout_of(rustc.args(["--print", "sysroot"])).map(PathBuf::from)
    }
}

/// Those of `targets` that a sysroot has no libraries for.
pub fn missing<'t>(targets: &[&'t str], sysroot: &Path) -> Vec<&'t str> {
    let has_core = |target: &str| {
        let libraries = sysroot.join("lib/rustlib").join(target).join("lib").read_dir();
        libraries.is_ok_and(|mut libraries| {
            libraries
                .any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libcore-")))
        })
    };
    targets.iter().copied().filter(|target| !has_core(target)).collect()
}
