//! What a program holds while it runs: `allotment top` and `view --serve`, with a program that leaks.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::record::CACHE;
use crate::{files, json, refused};

/// Leaks 1000 B in line 4 every 5 ms; the argument says how often.
const LEAK: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
    __attribute__((noinline)) void *remember(void) { return malloc(1000); }\n\
    __attribute__((noinline)) void work(int n) { void *block = malloc(50 + n % 9); *(volatile char *)block = 1; free(block); }\n\
    int main(int count, char **arguments) { for (int n = 0; n < atoi(arguments[1]); n++) { work(n); remember(); usleep(5000); } return 3; }\n";

fn compiled(program: &str) {
    let source = format!("{program}.c");
    fs::write(&source, LEAK).unwrap();
    assert!(Command::new("cc").args(["-g", "-w", "-o", program, &source]).status().unwrap().success());
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_allotment"));
    command.args(args).env_remove("ALLOTMENT_PRELOAD").env("XDG_CACHE_HOME", CACHE);
    command
}

/// A process that ends with the test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins to record the program.
fn recording(program: &str, trace: &str, times: &str) -> Ended {
    let args = ["record", "--stacks", "-o", trace, "--", program, times];
    Ended(command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

#[test]
fn a_leak_is_first_while_it_grows() {
    let (folder, [program, trace, log]) = files(["leak", "kept.bin", "log"]);
    compiled(&program);
    let args = ["top", "--json", "--interval", "200ms", "-o", &trace, "--log", &log, "--", &program, "400"];
    let output = command(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let moments: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(moments.len() > 2, "{moments:?}");
    let live: Vec<u64> = moments.iter().map(|moment| moment["live"].as_u64().unwrap()).collect();
    assert!(live.is_sorted() && live[0] < live[live.len() - 1], "{live:?}");
    let last = &moments[moments.len() - 1];
    assert_eq!(
        (&last["program"], &last["lines"][0]["function"]),
        (&"leak".into(), &"remember".into()),
        "{last}"
    );
    assert_eq!(
        (&last["lines"][0]["live"], &last["lines"][0]["line"]),
        (&400_000.into(), &4.into()),
        "{last}"
    );
    assert!(moments.iter().any(|moment| moment["lines"][0]["grows"].as_i64().unwrap() > 0), "{moments:?}");
    // The trace has the same.
    assert_eq!(json(["who", &trace, "--json"])["total"]["live"], last["live"]);
    assert!(fs::exists(&log).unwrap() && folder.path().is_dir());
}

#[test]
fn a_recording_that_goes_on_is_read() {
    let (_folder, [program, trace]) = files(["leak", "run.bin"]);
    compiled(&program);
    let mut record = recording(&program, &trace, "100000");
    let begun = Instant::now();
    // As every command does it, by the name that the trace will have.
    let report = loop {
        let output = command(&["who", &trace, "--json"]).output().unwrap();
        match serde_json::from_slice::<Value>(&output.stdout) {
            Ok(report) if report["lines"][0]["function"] == "remember" => break report,
            _ => assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
        sleep(Duration::from_millis(50));
    };
    assert!(report["lines"][0]["live"].as_u64() > Some(0), "{report}");
    let mut watch = Ended(
        command(&["top", &trace, "--json", "--interval", "100ms"]).stdout(Stdio::piped()).spawn().unwrap(),
    );
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let moment: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(moment["lines"][0]["function"], "remember", "{moment}");
    // The picture is the same on the loopback, and only there.
    let mut serve = Ended(command(&["view", "--serve", &trace]).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(serve.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.split(['/', ' ']).nth(2).unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{said}");
    let ask = |request: &str, host: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let wait = |what: &dyn Fn(&str) -> bool| loop {
        let answer = ask("GET /", &address);
        if what(&answer) {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{}", &answer[..answer.len().min(500)]);
        sleep(Duration::from_millis(200));
    };
    let page = wait(&|answer| answer.contains("remember"));
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("Refresh: 2"), "{}", &page[..300]);
    assert!(ask("GET /", "evil.example").starts_with("HTTP/1.1 403"));
    assert!(ask("POST /", &address).starts_with("HTTP/1.1 405"));
    assert!(ask("GET /etc/passwd", &address).starts_with("HTTP/1.1 404"));
    // It ends with the recording: the last page is that of the trace.
    let process = rustix::process::Pid::from_raw(record.0.id().cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    record.0.wait().unwrap();
    wait(&|answer| !answer.contains("Refresh:") && answer.contains("remember"));
    assert!(watch.0.wait().unwrap().success());
}

#[test]
fn a_process_is_recorded_from_now_on() {
    let (_folder, [program]) = files(["leak"]);
    compiled(&program);
    let process = Ended(Command::new(&program).arg("100000").spawn().unwrap());
    let args = ["top", "--json", "--interval", "200ms", "--pid", &process.0.id().to_string()];
    let mut watch = Ended(command(&args).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut moments = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let has =
        |moment: &Value| moment["lines"][0]["function"] == "remember" && moment["live"].as_u64() > Some(2000);
    assert!(moments.any(|moment| has(&moment)));
}

/// Waits until something holds, and fails after a minute.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// Neither the program nor a file of the recording is left, whichever signal ends the tool.
#[test]
fn a_signal_ends_the_program_and_its_recording() {
    use rustix::process::{Pid, Signal, kill_process};
    let (folder, [program, number]) = files(["leak", "number"]);
    compiled(&program);
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let temporary = folder.path().join(format!("tmp-{status}"));
        fs::create_dir(&temporary).unwrap();
        let script =
            format!("echo $$ > '{number}.new'; mv '{number}.new' '{number}'; exec '{program}' 100000");
        let args = ["top", "--json", "--interval", "100ms", "--", "sh", "-c", &script];
        let child = command(&args).env("TMPDIR", &temporary).stdout(Stdio::piped()).spawn().unwrap();
        let mut watch = Ended(child);
        let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
        let reads_on = |line: &str| line.contains("remember");
        assert!(lines.by_ref().any(|line| reads_on(&line.unwrap())));
        let process = fs::read_to_string(&number).unwrap();
        kill_process(Pid::from_raw(watch.0.id().cast_signed()).unwrap(), signal).unwrap();
        // The pipe must not fill.
        let rest = std::thread::spawn(move || lines.count());
        assert_eq!(watch.0.wait().unwrap().code(), Some(status));
        rest.join().unwrap();
        soon("the program ends", || !fs::exists(format!("/proc/{}", process.trim())).unwrap());
        let left: Vec<_> = fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn what_is_not_recorded_is_said() {
    let (_folder, [trace]) = files(["none.bin"]);
    let error = refused(["top", &trace]).1;
    assert!(
        error.contains("there is no recording that goes on: start one with allotment record --stacks"),
        "{error}"
    );
    assert!(refused(["top", "--pid", "999999999"]).1.contains("there is no such process"));
    assert_eq!(refused(["top"]).0, 2);
}
