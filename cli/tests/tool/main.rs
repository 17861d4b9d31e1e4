//! The commands on traces, as a user runs them.

mod advise;
mod attach;
mod bad;
mod bench;
mod convert;
mod device;
mod endure;
#[cfg(target_os = "linux")]
mod fate;
#[path = "../../../planner/tests/common/generate.rs"]
mod generate;
mod import;
mod outputs;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod pid;
mod plan;
mod pool;
#[cfg(target_os = "linux")]
mod record;
mod replay;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stacks;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod top;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The project's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A recorded trace.
fn data(name: &str) -> PathBuf {
    root().join("tests/data").join(name)
}

/// Runs `allotment`.
fn allotment<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_allotment")).args(args).output().unwrap()
}

/// Runs `allotment` in a folder.
fn allotment_in(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_allotment")).args(args).current_dir(folder).output().unwrap()
}

/// What it prints if all goes well.
fn printed<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = allotment(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The same as JSON.
fn json<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Value {
    serde_json::from_str(&printed(args)).unwrap()
}

/// What it says when it fails, and its exit status.
fn refused<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> (i32, String) {
    let output = allotment(args);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A folder for files, and the paths of some in it.
fn files<const N: usize>(names: [&str; N]) -> (tempfile::TempDir, [String; N]) {
    let folder = tempfile::tempdir().unwrap();
    let paths = names.map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    (folder, paths)
}

#[test]
fn bad_traces_name_line_and_reason_in_every_command() {
    let (_folder, [trace, out]) = files(["bad.trace", "out.bin"]);
    std::fs::write(&trace, "a 1 8 8\nf 2\n").unwrap();
    for args in [vec!["replay", &trace], vec!["advise", &trace]] {
        let (status, error) = refused(args);
        assert_eq!(status, 1);
        assert!(error.contains("bad.trace: line 2: block 2 is freed, but not live"), "{error}");
    }
    std::fs::write(&trace, "a 1 8 8\nf 99999999999999999999\n").unwrap();
    let (status, error) = refused(["convert", &trace, &out]);
    assert_eq!(status, 1);
    assert!(error.contains("bad.trace: line 2: `id` is `99999999999999999999`"), "{error}");
    // As many blocks of 4 GiB as no machine of today holds.
    std::fs::write(&trace, (0..1 << 14).map(|n| format!("a {n} 4294967295 8\n")).collect::<String>())
        .unwrap();
    for args in [vec!["replay", &trace], vec!["advise", &trace]] {
        let (status, error) = refused(args);
        assert_eq!(status, 1);
        assert!(error.contains("B are live at once") || error.contains("no memory"), "{error}");
    }
    assert_eq!(refused(["replay", "nowhere.trace"]).0, 1);
    assert_eq!(refused(["replay", &trace, "--placement", "nothing"]).0, 2);
}

#[test]
fn plans_are_printed_as_json() {
    let (_folder, [csv]) = files(["b.csv"]);
    std::fs::write(&csv, "id,lower,upper,size\na,0,2,100\nb,1,3,50\n").unwrap();
    let figures = json(["plan", &csv, "--json"]);
    assert_eq!((&figures[0]["peak"], &figures[0]["buffers"]), (&150.into(), &2.into()));
    assert_eq!(figures[0]["status"], "optimal (proved)");
}
