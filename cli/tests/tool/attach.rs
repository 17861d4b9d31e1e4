//! `allotment attach`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::{data, files, json, printed, refused};

/// A trace as a device sends it, and its text.
fn sent() -> (tempfile::TempDir, Vec<u8>, String) {
    let (folder, [binary, text]) = files(["b.bin", "t.trace"]);
    printed(["convert", data("espeak.trace.zst").to_str().unwrap(), &binary]);
    printed(["convert", &binary, &text]);
    let (bytes, text) = (fs::read(&binary).unwrap(), fs::read_to_string(&text).unwrap());
    (folder, bytes, text)
}

#[test]
fn a_stream_becomes_a_trace() {
    let (folder, bytes, text) = sent();
    let out = folder.path().join("out.trace");
    let mut child = Command::new(env!("CARGO_BIN_EXE_allotment"))
        .args(["attach", "-", "--json", "-o", out.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stream = child.stdin.take().unwrap();
    // In parts that end anywhere.
    for part in bytes.chunks(777) {
        stream.write_all(part).unwrap();
        stream.flush().unwrap();
    }
    drop(stream);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&figures["events"], &figures["lost"], &figures["live_blocks"]),
        (&2317.into(), &0.into(), &0.into())
    );
    assert_eq!(figures["peak"], 872_799);
    assert_eq!(fs::read_to_string(out).unwrap(), text);
}

#[test]
fn a_log_with_parts_of_a_trace_is_read() {
    let (folder, bytes, text) = sent();
    let [log, out] =
        ["log.txt", "out.trace"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let mut lines = String::from("INFO starting\n");
    for part in bytes.chunks(100) {
        lines += &format!("INFO allotment trace {part:?} (main.rs:3)\nWARN something else [1]\n");
    }
    fs::write(&log, lines).unwrap();
    let figures = json(["attach", &log, "--json", "-o", &out]);
    assert_eq!(figures["events"], 2317);
    assert_eq!(fs::read_to_string(&out).unwrap(), text);
    // From a program's output, whose failure is ours.
    let page = folder.path().join("page.html").to_str().unwrap().to_owned();
    printed(["attach", "-o", &out, "--view", &page, "--", "cat", &log]);
    assert_eq!(fs::read_to_string(&out).unwrap(), text);
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.starts_with("<!") && page.contains("2317"), "the trace is drawn");
    assert_eq!(refused(["attach", "-o", &out, "--", "sh", "-c", &format!("cat '{log}'; exit 3")]).0, 1);
}

#[test]
fn what_came_before_a_break_is_kept() {
    let (folder, bytes, text) = sent();
    let [cut, out] =
        ["cut.bin", "out.trace"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let (status, error) = refused(["attach", &cut, "-o", &out]);
    assert_eq!(status, 1);
    assert!(
        error.contains("cut.bin: record ") && error.contains("the trace ends inside a record"),
        "{error}"
    );
    let kept = fs::read_to_string(&out).unwrap();
    assert!(kept.len() > text.len() / 3 && text.starts_with(&kept));
    fs::write(&cut, "no trace here\n").unwrap();
    assert!(refused(["attach", &cut, "-o", &out]).1.contains("no trace came"));
}

/// A device sends until someone ends the command, which keeps what has come.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_the_stream() {
    use rustix::process::{Pid, Signal, kill_process};
    let (folder, bytes, text) = sent();
    let [out, page, half] = ["out.trace.zst", "page.html", "half.bin"]
        .map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    let begin = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_allotment"));
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let send = |process: u32, signal| {
        kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
    };
    // The emulator says on the standard error that all it has was read.
    let emulator = format!("cat '{half}'; sleep 0.5; echo sent $$ >&2; exec sleep 600");
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut child = begin(&["attach", "-o", &out, "--view", &page, "--", "sh", "-c", &emulator]);
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        send(child.id(), signal);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{rest}");
        assert!(rest.contains("allotment: interrupted; what was received is kept"), "{rest}");
        let kept = printed(["convert", &out, "-", "--to", "text"]);
        // The header has the number of events.
        let events = |text: &str| text.split_once('\n').unwrap().1.to_owned();
        let (kept, all) = (events(&kept), events(&text));
        assert!(kept.len() > all.len() / 3 && all.starts_with(&kept), "{} of {}", kept.len(), all.len());
        assert!(fs::read_to_string(&page).unwrap().starts_with("<!"));
        assert!(String::from_utf8(output.stdout).unwrap().contains(" events, 0 lost"));
        let emulator = line.trim().rsplit(' ').next().unwrap();
        assert!(!fs::exists(format!("/proc/{emulator}")).unwrap(), "{line}");
    }
    // Before anything has come there is nothing to keep.
    let [none] = ["none.trace"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let mut child = begin(&["attach", "-o", &none, "--", "sh", "-c", "echo sent >&2; exec sleep 600"]);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    send(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!fs::exists(&none).unwrap());
}
