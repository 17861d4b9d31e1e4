//! `vulkan`: the Vulkan tests on lavapipe, Mesa's driver for CPUs, with Khronos's validation layers.
//!
//! Loader, driver and layers are Debian's packages, unpacked into the cache folder. The paths in their manifests are made those of
//! that folder, in copies. The tests run with nothing else: no driver or layer of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{Setup, child, firmware, setup};

/// The tests take some ten seconds.
const LIMIT: Duration = Duration::from_secs(900);

/// The check that looks at several submissions together, which only this variable turns on.
const AT_SUBMISSION: &str = "VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT";

/// The file that the tests write the numbers of their messages to.
const REPORT: &str = "ALLOTMENT_VULKAN_REPORT";

/// Runs the tests, and prints how many there were, and how many messages of the layers.
///
/// # Errors
/// The driver or the layers cannot be had here, or a test fails.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    let variables = environment(setup).context("no Vulkan driver can be had here")?;
    let tests = || cargo("test --package allotment --no-default-features --features vulkan --test vulkan");
    child::run(tests().arg("--no-run"), "building the Vulkan tests")?;

    let report = tempfile::NamedTempFile::new()?;
    let mut command = tests();
    command.envs(variables.clone()).env(REPORT, report.path());
    let (status, text) = child::run_limited(&mut command, LIMIT)?;
    print!("{text}");
    let status =
        status.with_context(|| format!("the Vulkan tests took longer than {} s", LIMIT.as_secs()))?;
    // The counts come last.
    let same = if status.success() { same_everywhere(&variables) } else { Ok(()) };
    let report = fs::read_to_string(report.path())?;
    let [expected, unexpected] = messages(&report);
    println!(
        "vulkan: {} tests passed on {} devices; the layers sent {expected} messages that planted faults called for, and {unexpected} others",
        passed(&text),
        report.lines().count()
    );
    ensure!(status.success(), "the Vulkan tests failed");
    ensure!(
        unexpected == 0 && expected > 0 && passed(&text) > 0,
        "the layers were silent, or had something to say"
    );
    same.map(|()| ExitCode::SUCCESS)
}

/// Measures the pools on lavapipe beside VMA and gpu-allocator.
///
/// # Errors
/// The driver cannot be had here, or the benchmark does not compile or fails.
pub fn race(setup: &Setup) -> Result<ExitCode> {
    let variables = environment(setup).context("no Vulkan driver can be had here")?;
    let folder = firmware::root().join("benches");
    let build = "build --release --no-default-features --features vulkan --bin gpu-bench";
    child::run(&mut child::cargo(&folder, build), "building the benchmark")?;
    let mut command = child::command(folder.join("target/release/gpu-bench"));
    command.current_dir(&folder).envs(variables).args(RACE.split(' '));
    child::run(&mut command, "the race on Vulkan").map(|()| ExitCode::SUCCESS)
}

/// Cargo in the project's folder.
fn cargo(arguments: &str) -> Command {
    child::cargo(firmware::root(), arguments)
}

/// Some six minutes.
const RACE: &str = "--vulkan --rounds 3 --seconds 250 --patience 4 replay rmm instructions --output results/gpu/lavapipe.csv";

/// Runs the example on each kind of device, and compares what it prints.
fn same_everywhere(variables: &[(&'static str, String)]) -> Result<()> {
    let example = "--quiet --package allotment --features gpu,vulkan --example any_device";
    child::run(&mut cargo(&format!("build {example}")), "building the example")?;
    let mut printed = Vec::new();
    for device in ["--host", "--vulkan", "--sim"] {
        let mut run = cargo(&format!("run {example} -- {device}"));
        let output = child::output_limited(run.envs(variables.iter().cloned()), LIMIT)?;
        let output = output.filter(|output| output.status.success() && !output.stdout.is_empty());
        printed.push(output.with_context(|| format!("the example fails with {device}"))?.stdout);
    }
    ensure!(
        printed.windows(2).all(|pair| pair[0] == pair[1]),
        "the example does not print the same on each device"
    );
    println!("vulkan: the example prints the same in ordinary memory, on Vulkan and on the stand-in of CUDA");
    Ok(())
}

/// The variables that let the loader find the driver and the layers, and nothing else.
fn environment(setup: &Setup) -> Result<Vec<(&'static str, String)>> {
    let of = |package: &'static str| setup::unpacked(package, &[package], setup);
    let (loader, driver, layers) =
        (of("libvulkan1")?, of("mesa-vulkan-drivers")?, of("vulkan-validationlayers")?);
    let folder = setup::cache(setup)?.join("vulkan");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let icd = manifest(
        &driver.join("usr/share/vulkan/icd.d"),
        "lvp_icd",
        "ICD",
        "libvulkan_lvp.so",
        &driver,
        &folder,
    )?;
    let (name, library) = ("VkLayer_khronos_validation", "libVkLayer_khronos_validation.so");
    manifest(&layers.join("usr/share/vulkan/explicit_layer.d"), name, "layer", library, &layers, &folder)?;
    let mut libraries = Vec::new();
    for root in [&loader, &driver, &layers] {
        libraries.extend(setup::libraries(root)?);
    }
    let inherited = std::env::var_os("LD_LIBRARY_PATH");
    libraries.extend(inherited.iter().flat_map(std::env::split_paths));
    let libraries = std::env::join_paths(libraries)?.to_string_lossy().into_owned();
    let [icd, folder] = [icd, folder].map(|path| path.to_string_lossy().into_owned());
    Ok(vec![
        // The old name and the new one.
        ("VK_ICD_FILENAMES", icd.clone()),
        ("VK_DRIVER_FILES", icd),
        ("VK_LAYER_PATH", folder),
        ("VK_LOADER_LAYERS_DISABLE", "~implicit~".into()),
        ("VK_LAYER_ENABLES", AT_SUBMISSION.into()),
        ("LD_LIBRARY_PATH", libraries),
    ])
}

/// Copies the manifest in `from` whose name starts with `name` into `to`, with the library's whole path. Returns the copy's path.
fn manifest(from: &Path, name: &str, part: &str, library: &str, root: &Path, to: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))?;
    let mut files = files.filter_map(Result::ok).map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(name) && file.ends_with(".json")
    };
    let file = files.find(is_it).with_context(|| format!("{} has no {name}", from.display()))?;
    let folders = setup::libraries(root)?;
    let path = folders.iter().map(|folder| folder.join(library)).find(|path| path.is_file());
    let path = path.with_context(|| format!("{} has no {library}", root.display()))?;
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
    json[part]["library_path"] = path.to_string_lossy().into();
    let copy = to.join(name).with_extension("json");
    let written = tempfile::NamedTempFile::new_in(to)?;
    fs::write(written.path(), serde_json::to_string_pretty(&json)?)?;
    written.persist(&copy)?;
    Ok(copy)
}

/// The expected and the unexpected messages in the lines that the tests have written, one for each device.
fn messages(report: &str) -> [u64; 2] {
    let mut sums = [0; 2];
    for line in report.lines() {
        let numbers =
            line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok());
        numbers.zip(&mut sums).for_each(|(number, sum): (u64, _)| *sum += number);
    }
    sums
}

/// The tests that passed, by what they print in the end.
pub fn passed(text: &str) -> u64 {
    let results = text.lines().filter_map(|line| line.split_once("test result: ok. ")?.1.split(' ').next());
    results.filter_map(|number| number.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_tests_are_counted() {
        assert_eq!(messages("3 expected, 0 unexpected\n1 expected, 2 unexpected\n"), [4, 2]);
        assert_eq!(messages(""), [0, 0]);
        let text = "running 2 tests\ntest result: ok. 2 passed; 0 failed;\ntest result: FAILED. 1 passed; 1 failed;\n";
        assert_eq!(passed(text), 2);
    }

    #[test]
    fn a_manifest_names_the_unpacked_library() {
        let folder = tempfile::tempdir().unwrap();
        let (root, to) = (folder.path().join("root"), folder.path().join("to"));
        let (lib, from) = (root.join("usr/lib"), root.join("icd.d"));
        for folder in [&lib, &from, &to] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(lib.join("libdriver.so"), "").unwrap();
        fs::write(from.join("driver_icd.x86_64.json"), r#"{"ICD":{"library_path":"/usr/lib/libdriver.so"}}"#)
            .unwrap();
        let copy = manifest(&from, "driver_icd", "ICD", "libdriver.so", &root, &to).unwrap();
        assert_eq!(copy, to.join("driver_icd.json"));
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&copy).unwrap()).unwrap();
        assert_eq!(json["ICD"]["library_path"], lib.join("libdriver.so").to_str().unwrap());
        assert!(manifest(&from, "other", "ICD", "libdriver.so", &root, &to).is_err());
    }
}
