//! `gpu-bundle`: the tests, the example, PyTorch's allocator and the benchmark of the feature `gpu` in one folder, for a machine
//! with a device and without Rust.

mod glibc;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{child, firmware, progress};

/// What to do.
#[derive(clap::Args)]
pub struct Bundle {
    /// Run what was built, without a device: the tests on the stand-in driver, the benchmark in simulation
    #[arg(long)]
    check: bool,
}

/// The name of the stand-in driver's library.
const STAND_IN: &str = "liballotment_stand_in_driver.so";

/// Builds the bundle.
pub fn run(bundle: &Bundle) -> Result<ExitCode> {
    let root = firmware::root();
    let folder = root.join("target/gpu-bundle");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;

    // As CI has built the tests before, so that little is left to do.
    let mut tests = cargo(root, "test --no-run --features gpu --test gpu");
    tests.env("ALLOTMENT_BUNDLED_CUDA_DRIVER", "system");
    let tests = artifact(tests, "gpu")?;
    let driver = cargo(root, "build --package allotment-stand-in-driver");
    let driver = artifact(driver, "allotment_stand_in_driver")?;
    let bench = "build --release --no-default-features --features gpu --bin gpu-bench --target-dir target";
    let bench = artifact(cargo(&root.join("benches"), bench), "gpu-bench")?;

    // A check only starts them, and CI has built them for its tests.
    let profile = if bundle.check { "dev" } else { "release" };
    let build = |what: &str| cargo(root, &format!("build --features gpu --profile {profile} {what}"));
    let example = artifact(build("--example gpu_pipeline"), "gpu_pipeline")?;
    let torch = artifact(build("--package allotment-capi"), "allotment")?;

    for (from, name) in [
        (tests, "gpu-tests"),
        (bench, "gpu-bench"),
        (driver, STAND_IN),
        (example, "gpu_pipeline"),
        (torch, "liballotment.so"),
    ] {
        let to = folder.join(name);
        copy(&from, &to)?;
        let bytes = fs::read(&to)?;
        glibc::check(&bytes).with_context(|| format!("{name} would not start on other machines"))?;
    }
    for file in [
        "benches/gpu/run.sh",
        "benches/gpu/peers.py",
        "benches/gpu/torch_device.py",
        "capi/python/allotment_torch.py",
    ] {
        let from = root.join(file);
        let name = from.file_name().context("a file has a name")?;
        copy(&from, &folder.join(name))?;
    }
    fs::write(folder.join("revision"), revision(root))?;
    println!("{}", folder.display());
    if !bundle.check {
        return Ok(ExitCode::SUCCESS);
    }
    // From elsewhere, and into another folder: the bundle needs nothing of this repository.
    let elsewhere = tempfile::tempdir()?;
    let mut script = child::command(folder.join("run.sh"));
    script.arg("--check").arg(elsewhere.path().join("results")).current_dir(elsewhere.path());
    let status = script.status().context("run.sh does not start")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo`, with messages that [`artifact`] reads.
pub fn cargo(folder: &Path, arguments: &str) -> Command {
    child::cargo(folder, &format!("{arguments} --locked --quiet --message-format json-render-diagnostics"))
}

/// Builds, and finds the file that the target `name` has become.
pub fn artifact(mut cargo: Command, name: &str) -> Result<PathBuf> {
    let _progress = progress::show(format!("building {name}"));
    let messages = child::stdout_of(&mut cargo)?;
    find_artifact(&messages, name).with_context(|| format!("cargo has not built {name}"))
}

/// The program or library of a target among cargo's messages.
fn find_artifact(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        if message["reason"] != "compiler-artifact" || message["target"]["name"] != name {
            return None;
        }
        let library = || {
            let mut files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
            files.find(|file| file.ends_with(".so"))
        };
        message["executable"].as_str().or_else(library).map(PathBuf::from)
    })
}

/// Copies a file, without what only a debugger needs where there is a `strip`.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    let is_program = fs::read(to)?.starts_with(b"\x7fELF");
    if let Some(strip) = which::which("strip").ok().filter(|_| is_program) {
        let status = child::command(strip).arg("--strip-debug").arg(to).status();
        ensure!(status.is_ok_and(|status| status.success()), "strip fails on {}", to.display());
    }
    Ok(())
}

/// The commit, if git tells.
fn revision(root: &Path) -> String {
    let mut git = child::command("git");
    git.arg("-C").arg(root).args(["describe", "--always", "--dirty", "--exclude=*"]);
    child::stdout_of(&mut git).unwrap_or_else(|_| "an unknown commit".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_libraries_are_found_among_messages() {
        let messages = r#"not json
{"reason":"compiler-artifact","target":{"name":"gpu"},"executable":null,"filenames":["/t/libgpu.rlib"]}
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other","filenames":["/t/other"]}
{"reason":"compiler-artifact","target":{"name":"gpu"},"executable":"/t/gpu-1","filenames":["/t/gpu-1"]}
{"reason":"compiler-artifact","target":{"name":"driver"},"executable":null,"filenames":["/t/libdriver.so"]}"#;
        assert_eq!(find_artifact(messages, "gpu"), Some("/t/gpu-1".into()));
        assert_eq!(find_artifact(messages, "driver"), Some("/t/libdriver.so".into()));
        assert_eq!(find_artifact(messages, "none"), None);
    }
}
