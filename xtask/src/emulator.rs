//! QEMU: how firmware is booted, and what it prints.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Setup, child, setup};

/// A workload takes a second or two; one that takes this long hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A machine that counts instructions exactly.
#[derive(Debug, PartialEq, Eq)]
pub struct Counting {
    /// The program.
    pub qemu: &'static str,
    machine: &'static str,
    /// Counts are exact with these alone.
    arguments: &'static [&'static str],
}

/// Cortex-M3.
pub const MPS2_AN385: Counting =
    Counting { qemu: "qemu-system-arm", machine: "mps2-an385", arguments: &["-icount", "shift=8"] };
/// Cortex-M4F.
pub const MPS2_AN386: Counting = Counting { machine: "mps2-an386", ..MPS2_AN385 };
/// RV32IMAC.
pub const VIRT: Counting = Counting {
    qemu: "qemu-system-riscv32",
    machine: "virt",
    arguments: &["-bios", "none", "-icount", "shift=0"],
};

/// Figures that a program printed, by name.
pub type Figures = BTreeMap<String, f64>;

/// Adds what makes QEMU boot a program, whose messages go to standard output.
pub fn boot<'c>(
    qemu: &'c mut Command,
    machine: &str,
    arguments: &[impl AsRef<OsStr>],
    program: &Path,
) -> &'c mut Command {
    qemu.args(["-machine", machine, "-nographic", "-monitor", "none", "-serial", "null"]);
    qemu.args(["-semihosting-config", "enable=on,target=native"]).args(arguments).arg("-kernel").arg(program)
}

impl Counting {
    /// Runs a workload and returns its figures.
    pub fn figures(&self, program: &Path, setup: &Setup) -> Result<Figures> {
        let mut qemu = child::command(setup::provide(self.qemu, false, setup)?);
        let (status, text) =
            child::run_limited(boot(&mut qemu, self.machine, self.arguments, program), LIMIT)?;
        let Some(status) = status else { bail!("stopped after {} s", LIMIT.as_secs()) };
        match status.code() {
            Some(0) => {}
            Some(3) => bail!("the counter is not exact: {}", text.trim()),
            Some(4) => bail!("blocks overlap, or lie outside the arena"),
            Some(101) => bail!("panic"),
            Some(102) => bail!("fault"),
            _ => bail!("ended with {status}: {}", text.trim()),
        }
        text.lines().map(figure).collect()
    }
}

/// Reads `name value`.
fn figure(line: &str) -> Result<(String, f64)> {
    let figure = line.split_once(' ').and_then(|(name, value)| Some((name.into(), value.parse().ok()?)));
    figure.with_context(|| format!("the workload printed `{line}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        assert_eq!(figure("alloc_mean 80.5").unwrap(), ("alloc_mean".into(), 80.5));
        for wrong in ["", "alloc_mean", "alloc_mean fast", "alloc_mean 1 2"] {
            assert!(figure(wrong).is_err(), "{wrong:?}");
        }
    }
}
