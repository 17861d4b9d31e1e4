//! `allotment record`, on real programs where they are installed.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use allotment_cli::record::is_installed;
use allotment_trace::{Action, open};

use crate::{files, json, root};

/// The preload library, built for this test.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("preload");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--package", "allotment-preload", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status()
        .unwrap();
    assert!(built.success());
    target.join("debug/liballotment_preload.so")
});

/// Runs `allotment record` with these arguments.
pub fn record(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_allotment"))
        .arg("record")
        .args(args)
        .env("ALLOTMENT_PRELOAD", &*LIBRARY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that reads nothing may have ended.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Whether a program is there; says so if not. With the variable `CI` set, it must be there.
pub fn present(program: &str) -> bool {
    let there = is_installed(program);
    if !there {
        assert!(std::env::var_os("CI").is_none(), "{program} is not installed: `.ci/setup` provides it");
        eprintln!("skipped: {program} is not installed");
    }
    there
}

/// Records a program that prints `expected`; its events were checked.
fn recorded(program: &str, args: &[&str], input: &[u8], expected: &str, least: usize) {
    if !present(program) {
        return;
    }
    let (_folder, [trace]) = files(["run.trace.zst"]);
    let output = record(&[&["-o", &trace, "--", program], args].concat(), input);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{error}");
    let mut reader = open(trace.as_ref()).unwrap();
    assert_eq!(reader.header().get("unknown_frees"), Some("0"));
    assert_eq!(reader.header().get("missed_frees"), Some("0"));
    let count = reader.by_ref().map(Result::unwrap).count();
    assert!(count >= least, "{count} events");
}

#[test]
fn jq() {
    let input: String = (0..500).map(|n| format!("{{\"id\":{n},\"name\":\"n{n}\"}}\n")).collect();
    recorded("jq", &["-s", "map(.id) | add"], input.as_bytes(), "124750", 5000);
}

#[test]
fn sqlite() {
    let script = "create table t(a); \
                  with recursive c(x) as (select 1 union all select x + 1 from c where x < 500) \
                  insert into t select x from c; select sum(a) from t;";
    recorded("sqlite3", &[":memory:", script], b"", "125250", 500);
}

#[test]
fn lua() {
    let script = "local t = {} for n = 1, 500 do t[n] = {n} end print(#t)";
    let lua = ["lua5.4", "lua5.3", "lua"].into_iter().find(|lua| is_installed(lua)).unwrap_or("lua5.4");
    recorded(lua, &["-e", script], b"", "500", 500);
}

/// Four threads, a child that goes on alone, and its parent: all are recorded, each in its own file.
#[test]
fn python_with_threads_and_a_child() {
    if !present("python3") {
        return;
    }
    let script = "
import os, threading
def work():
    for _ in range(200): [bytearray(600 + n * 7) for n in range(50)]
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = os.fork()
if child == 0:
    kept = [bytearray(1000 + n) for n in range(100)]
    os._exit(0)
os.waitpid(child, 0)
print('done')
";
    let (folder, [trace]) = files(["run.trace"]);
    let output = record(&["-o", &trace, "--children", "--", "python3", "-c", script], b"");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done");
    let mut big = 0;
    for event in open(trace.as_ref()).unwrap() {
        let event = event.unwrap();
        big += usize::from(matches!(event.event.action, Action::Allocate { size: 600.., .. }));
    }
    assert!(big >= 40_000, "{big} blocks of the threads");
    // Of the traces beside it, one is that of the child that went on.
    let children = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut child = 0;
    for path in children.filter(|path| !path.ends_with("run.trace")) {
        let kept = |size| (1000..1200).contains(&size);
        child += open(&path)
            .unwrap()
            .filter(|event| {
                matches!(event.as_ref().unwrap().event.action, Action::Allocate { size, .. } if kept(size))
            })
            .count();
    }
    assert!(child >= 100, "{child} blocks of the child");
}

#[test]
fn the_exit_status_is_the_program_s() {
    let (_folder, [trace]) = files(["run.trace"]);
    assert_eq!(record(&["-o", &trace, "--", "sh", "-c", "exit 7"], b"").status.code(), Some(7));
    assert_eq!(record(&["-o", &trace, "--", "sh", "-c", "kill -9 $$"], b"").status.code(), Some(137));
    let output = record(&["-o", &trace, "--", "there-is-no-such-program"], b"");
    assert_eq!(output.status.code(), Some(1));
    let output = record(&["-o", "x.doc", "--", "true"], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("write .trace"));
}

/// What a shell executes is recorded, not the shell.
#[test]
fn the_last_image_is_the_program() {
    let (_folder, [trace, out]) = files(["run.trace", "out"]);
    let script = format!("x=$(printf %04096d 0); exec sort -o '{out}' /dev/null");
    let output = record(&["-o", &trace, "--json", "--", "sh", "-c", &script], b"");
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["others"].as_u64().unwrap() >= 1, "{report}");
    let replayed = json(["replay", &trace, "--placement", "tlsf", "--rounds", "0", "--json"]);
    assert_eq!(replayed["events"], report["traces"][0]["events"]);
}
