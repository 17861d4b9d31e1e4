//! Recording a process that runs already.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use allotment_trace::{Action, open};
use serde_json::Value;

use crate::record::{CACHE, record};
use crate::top::Ended;
use crate::{files, json, refused};

/// Four threads allocate without a pause, one by a library that it loads once the file of the third argument is there. Main leaks
/// 1000 B in line 12 every 5 ms, and adds up numbers in between. A byte on standard input ends the program, which prints the sum.
const BUSY: &str = r#"#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int over;
static double sum;
static long turns;
char **arguments;
__attribute__((noinline)) void *remember(void) {
    return malloc(1000);
}
void *work(void *start) {
    for (long n = 0; !over; n++) { char *block = malloc(50 + n % 9); *(volatile char *)block = 1; free(realloc(block, 3000)); }
    return 0;
}
void *late(void *start) {
    while (!over && access(arguments[2], F_OK)) usleep(1000);
    void *(*make)(void) = over ? 0 : dlsym(dlopen(arguments[1], RTLD_NOW), "make");
    while (!over) free(make());
    return 0;
}
int main(int count, char **words) {
    arguments = words;
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(threads + n, 0, n ? work : late, 0);
    for (struct pollfd input = {0, POLLIN}; poll(&input, 1, 5) < 1; turns++) {
        remember();
        for (int n = 1; n < 20000; n++) sum += 1.0 / n;
        if (turns % 2) sum = 0;
    }
    over = 1;
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    if (turns % 2) for (int n = 1; n < 20000; n++) sum -= 1.0 / n;
    printf("%s\n", sum < 1e-9 && sum > -1e-9 ? "right" : "wrong");
    return 3;
}
"#;

/// The library: blocks of 777 bytes.
const LATE: &str = "#include <stdlib.h>\nvoid *make(void) { return malloc(777); }\n";

fn compiled(output: &str, source: &str, options: &[&str]) {
    let file = format!("{output}.c");
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(["-g", "-w", "-O1", "-o", output, &file]).args(options).status();
    assert!(built.unwrap().success());
}

#[test]
fn a_process_that_runs_is_recorded_and_goes_on() {
    let (_folder, [program, library, now, trace]) = files(["busy", "late.so", "now", "run.bin.zst"]);
    compiled(&program, BUSY, &["-pthread"]);
    compiled(&library, LATE, &["-shared", "-fPIC"]);
    let mut command = Command::new(&program);
    command.args([&library, &now]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Ended(command.spawn().unwrap());
    let pid = process.0.id().to_string();
    sleep(Duration::from_millis(100));
    let read = |trace: &str| -> Vec<Action> {
        open(trace.as_ref()).unwrap().map(|event| event.unwrap().event.action).collect()
    };
    // A library that the program loads while it is recorded is recorded as well.
    fs::write(&now, "").unwrap();
    for (option, what) in [("--stacks", "all"), ("--sample=100", "a sample")] {
        let output = record(&["--pid", &pid, option, "--for", "1s", "-o", &trace], b"");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report = json(["who", &trace, "--json"]);
        let lines = report["lines"].as_array().unwrap();
        let leak = lines
            .iter()
            .find(|line| line["function"] == "remember")
            .unwrap_or_else(|| panic!("{what}: {report}"));
        assert_eq!(leak["line"], 12, "{leak}");
        let by = leak["stack"][1].as_str().unwrap();
        assert!(by.starts_with("main  "), "{by}");
        let actions = read(&trace);
        let has = |wanted: u64| {
            actions.iter().any(|action| matches!(action, Action::Allocate { size, .. } if *size == wanted))
        };
        assert!(has(50) && has(777), "{what}: {} events", actions.len());
        assert!(actions.iter().any(|action| matches!(action, Action::Reallocate { size: 3000 })));
        assert!(actions.iter().any(|action| matches!(action, Action::Free)));
    }
    // Threads still have a distance to the next block of the sample.
    let output = record(&["--pid", &pid, "--for", "1s", "-o", &trace], b"");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("it was recorded with --sample before: do so again, or restart it"), "{error}");
    // Nothing of it is left in the way of the program.
    drop(process.0.stdin.take());
    let mut said = String::new();
    process.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((said.trim(), process.0.wait().unwrap().code()), ("right", Some(3)));
}

/// The recording ends with the process, or with the wanted number of events.
#[test]
fn a_recording_of_a_process_ends() {
    let (_folder, [program, trace]) = files(["brief", "run.trace"]);
    let source = "#include <stdlib.h>\n#include <unistd.h>\nint main(int count, char **arguments) \
        { for (int n = 0; n < atoi(arguments[1]); n++) { char *block = malloc(40); *(volatile char *)block = 1; free(block); usleep(1000); } return 0; }\n";
    compiled(&program, source, &[]);
    for (times, most) in [("5000", "1000000"), ("100000000", "20")] {
        let mut process = Ended(Command::new(&program).arg(times).spawn().unwrap());
        let pid = process.0.id().to_string();
        let output = record(&["--pid", &pid, "--max-events", most, "--json", "-o", &trace], b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let events = report["traces"][0]["events"].as_u64().unwrap();
        // The process is not there any more if it has ended.
        let running = report["running"].as_array().unwrap().len();
        assert_eq!((events, running) == (20, 1), most == "20", "{report}");
        assert!(events > 0 && (running == 0) == process.0.try_wait().unwrap().is_some(), "{report}");
    }
}

/// Main sleeps on a stack of 4 KiB, and allocates on its own: 40 B by a variable that began as `malloc`, 50 B by one that still is.
/// A byte on standard input ends it.
const OWN: &str = r#"#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
static long calls, turns;
static int over;
static char area[36 << 10];
static ucontext_t outer, inner;
static void *own(size_t size) { calls++; return malloc(size); }
void *(*volatile make)(size_t) = malloc;
void *(*volatile same)(size_t) = malloc;
static void wait(void) {
    for (;;) {
        struct pollfd input = {0, POLLIN};
        over = poll(&input, 1, 5);
        swapcontext(&inner, &outer);
    }
}
int main(void) {
    make = own;
    memset(area, 0x55, 32 << 10);
    getcontext(&inner);
    inner.uc_stack.ss_sp = area + (32 << 10);
    inner.uc_stack.ss_size = 4 << 10;
    makecontext(&inner, wait, 0);
    for (; swapcontext(&outer, &inner), !over; turns++) { free(make(40)); free(same(50)); }
    for (int n = 0; n < 32 << 10; n++) if (area[n] != 0x55) return 4;
    return calls == turns ? 3 : 5;
}
"#;

/// A second recording is refused, and neither writes to what is the program's.
#[test]
fn a_process_keeps_its_variables_and_its_stacks() {
    let (_folder, [program, trace, second]) = files(["own", "run.trace", "second.trace"]);
    compiled(&program, OWN, &[]);
    let mut process = Ended(Command::new(&program).stdin(Stdio::piped()).spawn().unwrap());
    let pid = process.0.id().to_string();
    sleep(Duration::from_millis(100));
    let mut tool = Command::new(env!("CARGO_BIN_EXE_allotment"));
    tool.args(["record", "--pid", &pid, "-o", &trace]).env("XDG_CACHE_HOME", CACHE).stderr(Stdio::piped());
    let mut tool = Ended(tool.spawn().unwrap());
    let mut said = BufReader::new(tool.0.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("recording process"), "{line}");
    let output = record(&["--pid", &pid, "--for", "1s", "-o", &second], b"");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("it is being recorded already"), "{error}");
    sleep(Duration::from_millis(300));
    assert!(Command::new("kill").args(["-INT", &tool.0.id().to_string()]).status().unwrap().success());
    said.read_to_string(&mut line).unwrap();
    assert!(tool.0.wait().unwrap().success(), "{line}");
    let sizes: Vec<u64> = open(trace.as_ref())
        .unwrap()
        .filter_map(|event| match event.unwrap().event.action {
            Action::Allocate { size, .. } => Some(size),
            _ => None,
        })
        .collect();
    assert!(sizes.contains(&40) && sizes.contains(&50), "{sizes:?}");
    drop(process.0.stdin.take());
    assert_eq!(process.0.wait().unwrap().code(), Some(3));
}

#[test]
fn a_process_that_cannot_be_recorded_is_named() {
    let (_folder, [trace]) = files(["none.bin"]);
    assert!(refused(["record", "--pid", "999999999", "-o", &trace]).1.contains("there is no such process"));
    assert_eq!(refused(["record", "--pid", "1", "--", "true"]).0, 2);
    assert_eq!(refused(["record"]).0, 2);
    // No process may trace itself.
    let script = format!("exec {} record --pid $$ -o {trace}", env!("CARGO_BIN_EXE_allotment"));
    let output = Command::new("sh").args(["-c", &script]).env("XDG_CACHE_HOME", CACHE).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("the system does not let this user attach to it: run `sudo allotment record --pid "),
        "{error}"
    );
}
