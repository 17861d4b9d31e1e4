//! `allotment record`, on real programs where they are installed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use allotment_cli::record::is_installed;
use allotment_trace::{Action, open};

use crate::{files, json};

/// Where the tool unpacks its library.
pub const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/cache");

/// Runs `allotment record` with these arguments.
pub fn record(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_allotment"))
        .arg("record")
        .args(args)
        .env_remove("ALLOTMENT_PRELOAD")
        .env("XDG_CACHE_HOME", CACHE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that reads nothing may have ended.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Whether a program is there; says so if not. With the variable `CI` or `ALLOTMENT_CI` set, it must be there.
pub fn present(program: &str) -> bool {
    let there = is_installed(program);
    if !there {
        let must = ["CI", "ALLOTMENT_CI"].into_iter().any(|name| std::env::var_os(name).is_some());
        assert!(!must, "{program} is not installed: `.ci/setup` provides it");
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

/// `allotment record` of a program that has printed its first line: that line, and the rest of what it prints.
type Started = (Child, String, std::io::BufReader<std::process::ChildStdout>);

/// Starts `allotment record` with no signal ignored.
fn started(trace: &str, options: &[&str], script: &str) -> Started {
    // A shell has its background jobs ignore ^C, and these tests may run in one.
    started_with("--default-signal=INT,TERM,HUP,USR1,USR2", trace, options, script)
}

/// Starts `allotment record` by `env` with `signals`, and waits for the program's first line.
fn started_with(signals: &str, trace: &str, options: &[&str], script: &str) -> Started {
    let mut child = Command::new("env")
        .args([signals, env!("CARGO_BIN_EXE_allotment")])
        .args(["record", "-o", trace])
        .args(options)
        .args(["--", "sh", "-c", script])
        .env_remove("ALLOTMENT_PRELOAD")
        .env("XDG_CACHE_HOME", CACHE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(!line.is_empty());
    (child, line.trim().to_owned(), output)
}

fn send(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// Whether a process is there and has not ended.
fn runs(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn events(trace: &str) -> usize {
    open(trace.as_ref()).unwrap().map(Result::unwrap).count()
}

/// A signal ends the program with all that it has started. The trace is there, and nothing else.
#[test]
fn a_signal_ends_the_program_and_keeps_the_trace() {
    for (signal, status) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let (folder, [trace]) = files(["run.trace"]);
        let script = "x=$(ls / | sort); sleep 600 & echo $!; sleep 601";
        let (mut child, orphan, _output) = started(&trace, &[], script);
        assert!(runs(&orphan));
        send(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(status), "{signal}");
        assert!(!runs(&orphan), "{signal}: {orphan} is left");
        assert!(events(&trace) > 0);
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["run.trace"]);
    }
}

/// A program that ignores ^C is ended all the same.
#[test]
fn a_program_that_does_not_listen_is_ended() {
    let (_folder, [trace]) = files(["run.trace"]);
    let script = "trap '' INT TERM; echo go; while :; do x=$(ls /); sleep 0.1; done";
    let (mut child, _, _output) = started(&trace, &[], script);
    send("-INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(events(&trace) > 0);
}

/// What a shell or `nohup` has the tool ignore stays ignored: here ^C, so that SIGTERM is the first to ask for the end.
#[test]
fn a_signal_that_is_ignored_does_nothing() {
    let (_folder, [trace]) = files(["run.trace"]);
    let (mut child, _, _output) = started_with("--ignore-signal=INT", &trace, &[], "echo go; sleep 600");
    send("-INT", child.id());
    send("-TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// A loop of a shell that allocates variables, and goes on until a file is there.
fn until(file: &Path) -> String {
    format!("while [ ! -e '{}' ]; do n=$((n+1)); eval v$n=$n; done;", file.display())
}

#[test]
fn signals_start_and_stop_the_recording() {
    let (folder, [trace]) = files(["run.trace"]);
    let [begin, end] = ["begin", "end"].map(|name| folder.path().join(name));
    let script = format!("n=0; echo go; {} {}", until(&begin), until(&end));
    let (mut child, _, _output) = started(&trace, &["--paused"], &script);
    send("-USR1", child.id());
    std::thread::sleep(Duration::from_millis(300));
    fs::write(&begin, "").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    send("-USR2", child.id());
    std::thread::sleep(Duration::from_millis(300));
    fs::write(&end, "").unwrap();
    assert!(child.wait().unwrap().success());
    let mut reader = open(trace.as_ref()).unwrap();
    assert!(reader.by_ref().map(Result::unwrap).count() > 10);
    // The report counts what came before as lost.
    assert!(reader.lost() > 0);
}

#[test]
fn parts_of_a_run_are_recorded() {
    let (folder, [trace]) = files(["run.trace"]);
    let script = "n=0; while [ $n -lt 5000 ]; do n=$((n+1)); eval v$n=$n; done";
    let count = |options: &[&str]| {
        let output = record(&[&["-o", &trace], options, &["--", "sh", "-c", script]].concat(), b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        events(&trace)
    };
    assert!(count(&[]) > 5000);
    assert_eq!(count(&["--max-events", "500"]), 500);
    assert_eq!(count(&["--after", "1h"]), 0);
    assert!(count(&["--for", "1h"]) > 5000);
    // The program goes on when recording has ended.
    let end = folder.path().join("end");
    let (mut child, _, _output) =
        started(&trace, &["--for", "300ms"], &format!("n=0; echo go; {}", until(&end)));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none());
    fs::write(&end, "").unwrap();
    assert!(child.wait().unwrap().success());
    let times = |event: allotment_trace::Checked| event.event.time.unwrap();
    let last = open(trace.as_ref()).unwrap().map(Result::unwrap).map(times).max().unwrap();
    assert!(last < 1_400_000_000, "{last} ns");
}

/// The library is unpacked into the cache, and where there is none into a folder that goes again.
#[test]
fn the_tool_carries_its_library() {
    let (folder, [trace, cache]) = files(["run.trace", "cache"]);
    let spaces = format!("{cache} with spaces");
    for (cache, kept) in [(cache.as_str(), true), ("/dev/null/none", false), (&spaces, false)] {
        let output = Command::new(env!("CARGO_BIN_EXE_allotment"))
            .args(["record", "-o", &trace, "--", "ls", "/"])
            .env_remove("ALLOTMENT_PRELOAD")
            .env("XDG_CACHE_HOME", cache)
            .env("TMPDIR", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(events(&trace) > 0);
        let library = Path::new(cache).join("allotment").join(env!("CARGO_PKG_VERSION"));
        assert!(!kept || library.join("liballotment_preload.so").exists());
    }
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.filter(|name| name != "cache with spaces").collect();
    left.sort();
    assert_eq!(left, ["cache", "run.trace"]);
}

#[test]
fn what_cannot_be_recorded_is_told_before() {
    let (folder, [trace, source, program]) = files(["run.trace", "main.rs", "program"]);
    let build = |text: &str, more: &[&str]| {
        fs::write(&source, text).unwrap();
        let rustc = Command::new("rustc").args([&source, "-o", &program]).args(more).status();
        assert!(rustc.unwrap().success());
    };
    build("fn main() {}", &["-C", "target-feature=+crt-static"]);
    let output = record(&["-o", &trace, "--", &program], b"");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("program is statically linked") && error.contains("link it dynamically"),
        "{error}"
    );
    // A function that only mimalloc has.
    let own = "#[unsafe(no_mangle)] pub extern \"C\" fn mi_malloc(n: usize) -> usize { n }\n\
               fn main() { println!(\"{}\", mi_malloc(std::hint::black_box(1))); }";
    build(own, &["--edition", "2024"]);
    let output = record(&["-o", &trace, "--", &program], b"");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.contains("brings its own allocator (mimalloc)"), "{error}");
    // A proxy is a link to `rustup`.
    let [rustup, cargo] = ["rustup", "cargo"].map(|name| folder.path().join(name));
    fs::write(&rustup, "#!/bin/sh\nexec ls /\n").unwrap();
    fs::set_permissions(&rustup, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(&rustup, &cargo).unwrap();
    let output = record(&["-o", &trace, "--", cargo.to_str().unwrap()], b"");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.contains("cargo is a proxy of rustup"), "{error}");
    assert!(error.contains("ls in its place"), "{error}");
}
