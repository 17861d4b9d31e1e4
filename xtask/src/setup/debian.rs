//! Debian's packages, unpacked into a folder without installing anything.
//!
//! apt itself decides what is needed, against a copy of dpkg's list of installed packages: what the system has is not
//! downloaded again, and what stands in the way is left out of the copy. Everything that is written lies in the cache
//! folder, so this needs no rights.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::status::{self, Plan};
use crate::{Setup, child, progress};

/// A mirror that does not answer should not cost more than this.
const LIMIT: Duration = Duration::from_secs(600);

/// apt with folders of our own.
struct Apt<'s> {
    program: PathBuf,
    folder: PathBuf,
    setup: &'s Setup,
    /// True if the package lists are our own, because the system has none or old ones.
    own_lists: bool,
}

/// Downloads the first of `packages` that there is, with what it needs, and unpacks it into `destination`.
pub fn unpack(packages: &[&str], destination: &Path, cache: &Path, setup: &Setup) -> Result<()> {
    let program = which::which("apt-get").ok().context("there is no apt-get here to download it with")?;
    let dpkg_deb = which::which("dpkg-deb").ok().context("there is no dpkg-deb here to unpack it with")?;
    let folder = cache.join("apt");
    fs::create_dir_all(&folder)?;
    // A run of its own folder each, so that two at the same time do not meet.
    let folder = tempfile::Builder::new().prefix("run-").tempdir_in(folder)?;
    for name in ["archives/partial", "lists/partial"] {
        fs::create_dir_all(folder.path().join(name))?;
    }
    let mut apt = Apt { program, folder: folder.path().into(), setup, own_lists: false };

    let mut outcome = apt.download_any(packages);
    if let Err(error) = outcome {
        // The system's lists may be old, or not there at all as in a fresh container.
        eprintln!("xtask: reading fresh package lists ({error:#})");
        apt.update()?;
        outcome = apt.download_any(packages);
    }
    outcome?;

    let mut archives: Vec<PathBuf> = fs::read_dir(folder.path().join("archives"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    archives.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    archives.sort();
    anyhow::ensure!(!archives.is_empty(), "apt-get downloaded nothing");
    let _progress = progress::show(format!("unpacking {} packages", archives.len()));
    for archive in archives {
        let output = child::command(&dpkg_deb).arg("-x").arg(&archive).arg(destination).output()?;
        if !output.status.success() {
            bail!("{} cannot be unpacked: {}", archive.display(), errors(&output));
        }
    }
    Ok(())
}

impl Apt<'_> {
    /// Downloads the first of `packages` that apt knows.
    fn download_any(&self, packages: &[&str]) -> Result<()> {
        let mut failures = Vec::new();
        for package in packages {
            match self.download(package) {
                Ok(()) => return Ok(()),
                Err(error) => failures.push(format!("{package}: {error:#}")),
            }
        }
        bail!("{}", failures.join("; "))
    }

    /// Downloads a package and what the system lacks of what it needs.
    fn download(&self, package: &str) -> Result<()> {
        let installed = fs::read(&self.setup.dpkg_status)
            .with_context(|| format!("{} cannot be read", self.setup.dpkg_status.display()))?;
        let installed = String::from_utf8_lossy(&installed);
        // The package itself may be installed, and be wanted here nevertheless.
        let mut without = vec![package.to_owned()];
        let plan = loop {
            fs::write(self.status(), status::edited(&installed, &without))?;
            let output = self.run(&["--simulate", "install", package], None)?;
            let plan = Plan::parse(&String::from_utf8_lossy(&output.stdout));
            if !output.status.success() {
                bail!("{}", errors(&output));
            }
            // Each round leaves out at least one more of the packages that are installed.
            if plan.remove.iter().all(|name| without.contains(name)) {
                break plan;
            }
            without.extend(plan.remove);
        };
        let left_out = without[1..].join(", ");
        let reason = if left_out.is_empty() {
            String::new()
        } else {
            format!(", as if {left_out} were not installed")
        };
        eprintln!(
            "xtask: downloading {package} and {} packages that it needs{reason}",
            plan.install.len().max(1) - 1
        );
        let output =
            self.run(&["--download-only", "install", package], Some(format!("downloading {package}")))?;
        if !output.status.success() {
            bail!("{}", errors(&output));
        }
        Ok(())
    }

    /// Reads the package lists anew, into our own folder.
    fn update(&mut self) -> Result<()> {
        self.own_lists = true;
        fs::write(self.status(), "")?;
        let output = self.run(&["update"], Some("reading package lists".into()))?;
        anyhow::ensure!(output.status.success(), "apt-get update failed: {}", errors(&output));
        Ok(())
    }

    fn status(&self) -> PathBuf {
        self.folder.join("status")
    }

    fn run(&self, arguments: &[&str], doing: Option<String>) -> Result<Output> {
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let mut command: Command = child::command(&self.program);
        command.arg("-o").arg(option("Dir::State::status", self.status()));
        command.arg("-o").arg(option("Dir::Cache", self.folder.clone()));
        if self.own_lists {
            command.arg("-o").arg(option("Dir::State::Lists", self.folder.join("lists")));
        }
        // Nothing of the system is written, so no lock of the system is needed; and our folder is the user's alone,
        // where apt's own user may not write.
        let options = [
            "Debug::NoLocking=1",
            "APT::Sandbox::User=",
            "Acquire::Retries=2",
            "APT::Get::AutomaticRemove=0",
        ];
        command.args(options.iter().flat_map(|option| ["-o", option]));
        command.args(["--yes", "--quiet", "--no-install-recommends"]).args(arguments);
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        let _progress = doing.map(progress::show);
        child::output_limited(&mut command, LIMIT)?
            .with_context(|| format!("apt-get took longer than {} s", LIMIT.as_secs()))
    }
}

/// Returns the reasons that a program gives for its failure, in one line.
fn errors(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("E: ")).collect();
    if lines.is_empty() { text.trim().replace('\n', "; ") } else { lines.join("; ") }
}
