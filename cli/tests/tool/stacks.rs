//! Who holds the memory: recorded stacks, and what the commands say of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use allotment_trace::{Stacks, open};
use serde_json::Value;

use crate::record::record;
use crate::{allotment, files, json, printed, refused};

/// A server with a leak: line 6 is never freed. The answer moves when it grows.
const SERVER: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void *kept[100000];
__attribute__((noinline)) void remember(int n) {
    kept[n] = malloc(300);
}
__attribute__((noinline)) int serve(int n) {
    char *request = malloc(100 + n % 50), *answer = calloc(4, 64);
    snprintf(request, 100, "request %d", n);
    if (n % 10 == 0) remember(n / 10);
    answer = realloc(answer, 1000);
    int length = strlen(request);
    free(request);
    free(answer);
    return length;
}
int main(int count, char **arguments) {
    int sum = 0;
    for (int n = 0; n < atoi(arguments[1]); n++) sum += serve(n);
    return sum == 0;
}
"#;

fn compiled(program: &str, source: &str, options: &[&str]) {
    let file = format!("{program}.c");
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(["-w", "-g", "-o", program, &file]).args(options).status();
    assert!(built.unwrap().success());
}

/// Records a program with its stacks.
fn recorded(trace: &str, program: &str, arguments: &[&str], options: &[&str]) {
    let before = ["--stacks", "-o", trace];
    let output = record(&[&before, options, &["--", program], arguments].concat(), b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The functions of a line's heaviest stack, without those of the C library.
fn functions(line: &Value) -> Vec<String> {
    let stack = line["stack"].as_array().unwrap().iter().map(|frame| frame.as_str().unwrap());
    stack.map(|frame| frame.split("  ").next().unwrap().to_owned()).collect()
}

#[test]
fn the_line_of_a_leak_comes_first() {
    let (_folder, [program, binary, text]) = files(["server", "run.bin.zst", "run.trace"]);
    for options in [&["-O2", "-fomit-frame-pointer"][..], &["-O0"], &["-O2", "-fno-omit-frame-pointer"]] {
        compiled(&program, SERVER, options);
        for trace in [&binary, &text] {
            recorded(trace, &program, &["1000"], &[]);
            let said = printed(["who", trace]);
            let first = said.lines().find(|line| line.contains('%')).unwrap();
            assert!(first.trim().starts_with("30000 B 100.0 % in 100 blocks  remember  "), "{said}");
            assert!(first.ends_with("server.c:6"), "{said}");
            let report = json(["who", trace, "--json"]);
            let leak = &report["lines"][0];
            assert_eq!(
                (&leak["live"], &leak["blocks"], &leak["calls"]),
                (&30_000.into(), &100.into(), &100.into())
            );
            assert_eq!(functions(leak)[..3], ["remember", "serve", "main"]);
            assert!(leak["first_event"].as_u64() < leak["last_event"].as_u64());
            // Requests of other lines, each with its own number.
            let calls = |line: u64| -> u64 {
                let lines = report["lines"].as_array().unwrap().iter();
                lines.filter(|one| one["line"] == line).map(|one| one["calls"].as_u64().unwrap()).sum()
            };
            assert_eq!((calls(9), calls(12)), (2000, 1000), "{options:?}");
            assert_eq!(report["lines"].as_array().unwrap().len(), 3, "{report}");
        }
    }
}

/// What is counted adds up to what the trace holds, and a part of a run is one.
#[test]
fn every_measure_and_a_part_of_a_run() {
    let (_folder, [program, trace]) = files(["server", "run.bin"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&trace, &program, &["1000"], &[]);
    for (measure, key) in [
        ("live", "live"),
        ("peak", "peak"),
        ("bytes", "bytes"),
        ("calls", "calls"),
        ("temporary", "temporary"),
    ] {
        let report = json(["who", &trace, "--json", "--by", measure]);
        let lines = report["lines"].as_array().unwrap();
        let figures: Vec<u64> = lines.iter().map(|line| line[key].as_u64().unwrap()).collect();
        assert!(figures.is_sorted_by(|a, b| a >= b), "{measure}: {figures:?}");
        assert_eq!(figures.iter().sum::<u64>(), report["total"][key].as_u64().unwrap(), "{measure}");
    }
    let part = json(["who", &trace, "--json", "--until", "500"]);
    assert_eq!(part["events"], 500);
    assert!(part["lines"][0]["live"].as_u64() < Some(30_000));
    // An answer is freed before anything else is asked for.
    let report = json(["who", &trace, "--json", "--by", "temporary"]);
    assert_eq!((&report["lines"][0]["temporary"], &report["lines"][0]["line"]), (&1000.into(), &12.into()));
    let error = refused(["who", &trace, "--until", "soon"]).1;
    assert!(error.contains("write a number of events, such as 5000, or a time, such as 10s"), "{error}");
}

/// Two libraries at one address, one after the other: each has its own names.
#[test]
fn a_library_that_takes_the_place_of_another_has_its_own_names() {
    let (_folder, [program, alpha, beta, trace]) = files(["program", "alpha.so", "beta.so", "run.bin"]);
    for (library, size) in [(&alpha, 1111), (&beta, 2222)] {
        let name = Path::new(library).file_stem().unwrap().to_str().unwrap();
        let source = format!(
            "#include <stdlib.h>\nvoid *sink; __attribute__((noinline)) void {name}_inner(void) {{ sink = malloc({size}); }}\n\
             int ask(void) {{ {name}_inner(); return 1; }}\n"
        );
        compiled(library, &source, &["-O1", "-shared", "-fPIC"]);
    }
    let source = r#"#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
    for (int n = 1; n < count; n++) {
        void *library = dlopen(arguments[n], RTLD_NOW);
        int (*ask)(void) = (int (*)(void))dlsym(library, "ask");
        printf("%p\n", (void *)ask);
        ask();
        dlclose(library);
    }
}
"#;
    compiled(&program, source, &["-O1", "-ldl"]);
    recorded(&trace, &program, &[&alpha, &beta, &alpha], &[]);
    let report = json(["who", &trace, "--json"]);
    let lines = report["lines"].as_array().unwrap();
    let of = |name: &str| {
        lines.iter().find(|line| line["function"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
    };
    assert_eq!((&of("alpha_inner")["live"], &of("beta_inner")["live"]), (&2222.into(), &2222.into()));
    assert_eq!(functions(of("beta_inner"))[..3], ["beta_inner", "ask", "main"]);
}

/// Threads, a signal's handler, a child: each has a stack that leads to where it began.
#[test]
fn threads_handlers_and_children_have_stacks() {
    let (folder, [program, trace]) = files(["program", "run.bin"]);
    let source = r#"#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
void *volatile sink;
__attribute__((noinline)) void in_thread(void) { for (int n = 0; n < 2000; n++) { sink = malloc(40); } }
void *begin(void *unused) { in_thread(); return 0; }
__attribute__((noinline)) void in_handler(void) { sink = malloc(4444); }
void handle(int signal) { in_handler(); }
__attribute__((noinline)) void raises(void) { raise(SIGUSR1); sink = 0; }
__attribute__((noinline)) void in_child(void) { sink = malloc(5555); }
__attribute__((noinline)) int deep(int n) { if (n == 0) { sink = malloc(6666); return 0; } int below = deep(n - 1); return below + 1; }
int main(void) {
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], 0, begin, 0);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    signal(SIGUSR1, handle);
    raises();
    deep(500);
    if (fork() == 0) { in_child(); _exit(0); }
    wait(0);
}
"#;
    compiled(&program, source, &["-O1", "-fno-optimize-sibling-calls", "-pthread"]);
    recorded(&trace, &program, &[], &["--children"]);
    let report = json(["who", &trace, "--json"]);
    let lines = report["lines"].as_array().unwrap();
    let of = |name: &str| {
        lines.iter().find(|line| line["function"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
    };
    assert_eq!(of("in_thread")["calls"], 8000);
    assert_eq!(functions(of("in_thread"))[..2], ["in_thread", "begin"]);
    let handler = functions(of("in_handler"));
    assert!(handler.starts_with(&["in_handler".into(), "handle".into()]), "{handler:?}");
    assert!(
        handler.iter().any(|name| name == "raises") && handler.iter().any(|name| name == "main"),
        "{handler:?}"
    );
    assert_eq!(functions(of("deep")).len(), 128);
    let children = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let child =
        children.filter(|path| path.to_string_lossy().ends_with(".bin") && !path.ends_with("run.bin"));
    let child: Vec<_> = child.collect();
    assert_eq!(child.len(), 1);
    let report = json(["who".as_ref(), child[0].as_os_str(), "--json".as_ref()]);
    let own = &report["lines"][0];
    assert_eq!((&own["function"], &own["live"]), (&"in_child".into(), &5555.into()));
    assert_eq!(functions(own)[..2], ["in_child", "main"]);
}

/// A trace without names gets them from the same program later, and none from another build.
#[test]
fn names_are_found_later_by_the_build() {
    let (_folder, [program, trace, again]) = files(["server", "run.trace", "again.bin"]);
    compiled(&program, SERVER, &["-O1", "-Wl,--build-id"]);
    recorded(&trace, &program, &["100"], &["--no-symbols"]);
    let text = fs::read_to_string(&trace).unwrap();
    assert!(text.contains("#^n ") && !text.contains("remember"), "{text}");
    assert_eq!(json(["who", &trace, "--json"])["lines"][0]["function"], "remember");
    // Neither binary form nor compression loses them.
    printed(["convert", &trace, &again]);
    assert_eq!(json(["who", &again, "--json"])["lines"][0]["function"], "remember");
    compiled(&program, &SERVER.replace("300", "301"), &["-O1", "-Wl,--build-id"]);
    let function = json(["who", &trace, "--json"])["lines"][0]["function"].as_str().unwrap().to_owned();
    assert!(function.starts_with("server+0x"), "{function}");
}

/// A reader that knows nothing of stacks, such as the one of before, finds the same events.
#[test]
fn stacks_are_comments_to_others() {
    let (_folder, [program, with, without]) = files(["server", "with.trace", "without.trace"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&with, &program, &["200"], &["--no-times"]);
    assert!(record(&["--no-times", "-o", &without, "--", &program, "200"], b"").status.success());
    let text = fs::read_to_string(&with).unwrap();
    let (comments, events): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
    assert!(comments.len() > events.len() / 2);
    let plain = fs::read_to_string(&without).unwrap();
    assert_eq!(events, plain.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>());
}

/// The notes of `TraceWriter`, and text with a frame on each line.
#[test]
fn notes_are_stacks() {
    let (_folder, [trace]) = files(["run.trace"]);
    let text = "a 1 100 8\n# | backtrace 10 20 30\na 2 50 8\n# | backtrace 11 20 30\nf 2\na 3 7 8\n# | in words\n# | main\n\
                # | frame 10 alloc::alloc::alloc /rustc/library/alloc.rs:9\n# | frame 11 other one.rs:3\n\
                # | frame 20 serve::inlined serve.rs:41\n# | frame 20 serve::answer serve.rs:7\n# | frame 30 main\n";
    fs::write(&trace, text).unwrap();
    let report = json(["who", &trace, "--json"]);
    let first = &report["lines"][0];
    assert_eq!(
        (&first["function"], &first["line"], &first["live"]),
        (&"serve::inlined".into(), &41.into(), &100.into())
    );
    assert_eq!(functions(first), ["alloc::alloc::alloc", "serve::inlined", "serve::answer", "main"]);
    assert_eq!(functions(&report["lines"][1]), ["in words", "main"]);
    // Without any, it is said how to have them.
    fs::write(&trace, "a 1 100 8 #net\na 2 10 8\n").unwrap();
    let said = printed(["who", &trace]);
    assert!(said.contains("record with --stacks") && said.contains("100 B  90.9 %  net"), "{said}");
}

/// A firmware, of which no process tells where its functions are. `held` is inlined.
const FIRMWARE: &str = "#include <stdlib.h>
static inline __attribute__((always_inline)) void *held(int n) {
    return malloc(n);
}
__attribute__((noinline)) void *session(int n) {
    return held(n);
}
int main(void) {
    return session(8) == 0;
}
";

/// A device records addresses; the firmware names the functions.
#[test]
fn the_functions_of_a_device_are_those_of_its_firmware() {
    let (_folder, [firmware, raw, named, page]) = files(["firmware", "raw.bin", "named.trace", "page.html"]);
    compiled(&firmware, FIRMWARE, &["-O1"]);
    // The places of two calls, as a device would find them on its stack.
    let code = Command::new("objdump").args(["-d", "--no-show-raw-insn", &firmware]).output().unwrap();
    let code = String::from_utf8(code.stdout).unwrap();
    let call = |function: &str| {
        let (_, code) = code.split_once(&format!("<{function}>:")).unwrap();
        let line = code.lines().find(|line| line.contains("call")).unwrap();
        line.split_once(':').unwrap().0.trim().to_owned()
    };
    let text = format!(
        "#^n 0 0 {}\n#^n 1 0 {}\n#^2\na 1 100 8 &2000\n#^1\na 2 7 8 &3000\n#^n 0 0 1\n#^3\na 3 1 1 &4000\n",
        call("main"),
        call("session")
    );
    fs::write(&named, text).unwrap();
    printed(["convert", &named, &raw]);
    let without = json(["who", &raw, "--json"]);
    assert!(without["lines"][0]["function"].as_str().unwrap().starts_with("?+0x"), "{without}");

    let holds = |report: &Value| {
        let first = &report["lines"][0];
        assert_eq!(
            (&first["function"], &first["line"], &first["live"]),
            (&"held".into(), &3.into(), &100.into())
        );
        assert_eq!(functions(first), ["held", "session", "main"]);
        assert_eq!(report["lines"][1]["function"], "main");
        assert_eq!(report["lines"][2]["function"], "?+0x1", "it is nowhere in the firmware");
    };
    holds(&json(["who", &raw, "--elf", &firmware, "--json"]));
    let grown = json(["diff", &raw, "--to", "3", "--elf", &firmware, "--json"]);
    assert!(grown["lines"][0]["what"].as_str().unwrap().starts_with("held  "), "{grown}");
    printed(["view", &raw, "--elf", &firmware, "-o", &page]);
    assert!(fs::read_to_string(&page).unwrap().contains("session"));
    // What is converted or comes from the device has the names in itself, whether or not the firmware has a log of its own.
    printed(["convert", &raw, &named, "--elf", &firmware]);
    holds(&json(["who", &named, "--json"]));
    fs::remove_file(&named).unwrap();
    printed(["attach", &raw, "-o", &named, "--elf", &firmware]);
    holds(&json(["who", &named, "--json"]));
    fs::write(&page, "[function.session]\nlive = 99\n").unwrap();
    let over = allotment(["budget", &raw, "--elf", &firmware, "--file", &page]);
    assert_eq!((over.status.code(), over.stderr.len()), (Some(1), 0), "it is there and exceeded");
    // Another file is no firmware.
    assert!(refused(["who", &raw, "--elf", &raw]).1.contains("raw.bin: "));
    assert!(refused(["view", &raw, "--elf", "/nowhere/firmware"]).1.contains("firmware: "));
}

#[test]
fn what_has_grown_comes_first() {
    let (folder, [program, before, after]) = files(["server", "before.bin", "after.bin"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&before, &program, &["1000"], &[]);
    // A new leak, of larger blocks, which moves all lines.
    let leaks = SERVER.replace("    free(request);\n", "    if (n % 2) free(request);\n");
    compiled(&program, &format!("\n\n{leaks}"), &["-O1"]);
    recorded(&after, &program, &["2000"], &[]);
    let report = json(["diff", &before, &after, "--json"]);
    let what = |list: &str, at: usize| report[list][at]["what"].as_str().unwrap().to_owned();
    assert!(what("lines", 0).starts_with("serve  "), "{report}");
    assert!(what("lines", 1).starts_with("remember  "), "{report}");
    assert_eq!(report["lines"][1]["grown"], 30_000);
    assert!(what("stacks", 0).ends_with(" > main > serve"), "{report}");
    assert_eq!(what("sizes", 0), "300 B");
    // By event the old leak has hardly grown: a round has a tenth fewer events now.
    let scaled = json(["diff", &before, &after, "--json", "--per", "event"]);
    let old = scaled["lines"]
        .as_array()
        .unwrap()
        .iter()
        .find(|line| line["what"].as_str().unwrap().starts_with("remember"));
    let grown = old.unwrap()["grown"].as_i64().unwrap();
    assert!(grown.abs() < 4000, "{scaled}");
    let said = printed(["diff", &before, &after]);
    let first = said.lines().find(|line| line.contains("serve")).unwrap();
    assert!(first.trim_start().starts_with('+'), "{said}");
    // The page has the same figures, and one tree of both runs although all lines have moved.
    let page = json(["view", &before, &after, "--json"]);
    assert_eq!((&page["name"], &page["before"]["name"]), (&"after.bin".into(), &"before.bin".into()));
    assert_eq!(page["before"]["changes"][0]["lines"][0], report["lines"][0]);
    assert_eq!(page["before"]["changes"][0]["total"], report["total"]);
    let sum = |list: &str, at: usize| {
        let rows = page["who"][list].as_array().unwrap();
        rows.iter().map(|row| row[at].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum("before", 1), report["total"]["before"]);
    assert_eq!(sum("parts", 3), report["total"]["after"]);
    let frames = page["who"]["frames"].as_array().unwrap();
    assert_eq!(frames.iter().filter(|frame| frame[0] == "remember").count(), 1);
    let halved = json(["view", &before, &after, "--json", "--per", "event"]);
    assert!(halved["before"]["scale"].as_f64().unwrap() > 1.5);
    assert!(folder.path().join("after.bin").exists() && !folder.path().join("after.html").exists());
    printed(["view", &before, &after]);
    assert!(folder.path().join("after.html").exists() && !folder.path().join("before.html").exists());
    // Two moments of one run.
    let marks = json(["diff", &before, "--from", "1000", "--to", "3000", "--json"]);
    assert!(marks["lines"][0]["what"].as_str().unwrap().starts_with("remember"), "{marks}");
    assert!(marks["lines"][0]["grown"].as_i64() > Some(0));
    assert_eq!(refused(["diff", &before]).0, 2);
    // No time is named where there is none.
    let (_other, [timeless]) = files(["timeless.trace"]);
    fs::write(&timeless, "a 1 8 8\n").unwrap();
    assert!(
        refused(["diff", &before, &timeless, "--per", "second"]).1.contains("one of the traces has no times")
    );
}

#[test]
fn a_budget_is_kept_or_named() {
    let (_folder, [program, trace, budget]) = files(["server", "run.bin", "budget.toml"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&trace, &program, &["1000"], &[]);
    let check = |text: &str| {
        fs::write(&budget, text).unwrap();
        let output = allotment(["budget", &trace, "--file", &budget]);
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code().unwrap(), said.concat())
    };
    let fine = "[total]\npeak = \"64KiB\"\nlive = 30000\n[function.remember]\nlive = 30000\npeak = 30000\ncalls = 100\n\
                [function.serve]\npeak = 32000\n";
    let (status, said) = check(fine);
    assert_eq!((status, said.lines().filter(|line| line.starts_with("within: ")).count()), (0, 6), "{said}");
    let (status, said) = check(&fine.replace("calls = 100", "calls = 99"));
    assert_eq!(status, 1);
    assert!(said.contains("exceeded: function remember, calls: 100 of 99, 1 too many"), "{said}");
    // The peak of `serve` has what it calls in it.
    let (status, said) = check("[function.serve]\npeak = 30000\n");
    assert_eq!(status, 1);
    assert!(said.contains("exceeded: function serve, peak: 3") && said.contains(" B of 30000 B"), "{said}");
    let (status, said) = check("[function.nothing]\npeak = 1\n");
    assert_eq!(status, 0);
    assert!(said.contains("no stack of the trace has a function nothing"), "{said}");
    let (status, said) = check("[total]\npeek = 1\n");
    assert_eq!(status, 1);
    assert!(said.contains("budget.toml: ") && said.contains("peek"), "{said}");
    // By tag, also without stacks.
    fs::write(trace.replace(".bin", ".trace"), "a 1 100 8 #net\na 2 10 8\nf 1\n").unwrap();
    fs::write(&budget, "[tag.net]\npeak = 99\n").unwrap();
    let output = allotment(["budget", &trace.replace(".bin", ".trace"), "--file", &budget, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found[0]["of"], &found[0]["found"], &found[0]["exceeded"]),
        (&"tag net".into(), &100.into(), &true.into())
    );
    fs::write(&budget, "[function.main]\npeak = 99\n").unwrap();
    let error = refused(["budget", &trace.replace(".bin", ".trace"), "--file", &budget]).1;
    assert!(error.contains("no function can be checked"), "{error}");
}

#[test]
fn other_viewers_read_the_stacks() {
    let (_folder, [program, trace, folded, pprof, dhat]) =
        files(["server", "run.bin", "a.folded", "a.pb.gz", "a.dhat"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&trace, &program, &["1000"], &[]);
    for output in [&folded, &pprof, &dhat] {
        printed(["convert", &trace, output]);
    }
    let text = fs::read_to_string(&folded).unwrap();
    assert!(text.lines().any(|line| line.ends_with(";main;serve;remember 30000")), "{text}");
    printed(["convert", &trace, &folded, "--by", "calls"]);
    let text = fs::read_to_string(&folded).unwrap();
    assert!(text.lines().any(|line| line.ends_with(";main;serve 3000")), "{text}");
    let points: Value = serde_json::from_slice(&fs::read(&dhat).unwrap()).unwrap();
    let leak = points["pps"].as_array().unwrap().iter().find(|point| point["eb"] == 30_000).unwrap();
    assert_eq!((&leak["tbk"], &leak["mb"]), (&100.into(), &30_000.into()));
    let first = usize::try_from(leak["fs"][0].as_u64().unwrap()).unwrap();
    assert!(points["ftbl"][first].as_str().unwrap().ends_with("server.c:6"), "{points}");
    assert!(fs::read(&pprof).unwrap().starts_with(&[0x1f, 0x8b]));
}

/// The page has the tree, and the blocks name their calls in it.
#[test]
fn the_page_has_the_tree_of_calls() {
    let (folder, [program, trace]) = files(["server", "run.bin.zst"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&trace, &program, &["1000"], &[]);
    let report = json(["view", &trace, "--json"]);
    let (frames, nodes) = (&report["who"]["frames"], report["who"]["nodes"].as_array().unwrap());
    let parts = report["who"]["parts"].as_array().unwrap();
    let sum = |at: usize| parts.iter().map(|part| part[at].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum(3), sum(6)), (30_000, 3100));
    // What is live grows with the leak, and is the same at the last moment as at the end.
    let moments = report["who"]["moments"].as_array().unwrap();
    assert!(moments.len() > 100 && moments.last() == Some(&report["totals"]["events"]), "{moments:?}");
    let mut live = vec![0; parts.len()];
    let mut sums = Vec::new();
    for changes in report["who"]["changes"].as_array().unwrap() {
        let mut part = 0;
        for change in changes.as_array().unwrap().chunks(2) {
            part += usize::try_from(change[0].as_u64().unwrap()).unwrap();
            live[part] = change[1].as_u64().unwrap();
        }
        sums.push(live.iter().sum::<u64>());
    }
    assert_eq!((sums.len(), sums.last()), (moments.len(), Some(&30_000)));
    let middle = sums[sums.len() / 2];
    assert!((13_000..17_000).contains(&middle), "{middle}");
    let way = |call: &Value| {
        let mut names = Vec::new();
        let mut at = usize::try_from(call.as_u64().unwrap()).unwrap();
        while at > 0 {
            let frame = usize::try_from(nodes[at][1].as_u64().unwrap()).unwrap();
            names.push(frames[frame][0].as_str().unwrap().to_owned());
            at = usize::try_from(nodes[at][0].as_u64().unwrap()).unwrap();
        }
        names
    };
    assert_eq!(way(&report["live"][0]["call"])[..3], ["remember", "serve", "main"]);
    assert_eq!(way(&report["largest"][0]["call"])[..2], ["serve", "main"]);
    // Without -o the page lies beside the trace.
    printed(["view", &trace]);
    assert!(fs::read_to_string(folder.path().join("run.html")).unwrap().contains("remember"));
    assert!(json(["view", crate::data("espeak.trace.zst").to_str().unwrap(), "--json"])["who"].is_null());
}

#[test]
fn the_tool_names_itself_and_describes_itself() {
    assert_eq!(printed(["--version"]), format!("allotment {}\n", env!("CARGO_PKG_VERSION")));
    assert!(printed(["completions", "bash"]).contains("budget"));
    let (folder, [man]) = files(["man"]);
    printed(["man", &man]);
    assert!(fs::read_to_string(folder.path().join("man/allotment-who.1")).unwrap().contains("allotment"));
    // Commands stand in the order of their use, options in groups.
    let help = printed(["--help"]);
    let places = ["record ", "who ", "view ", "advise ", "plan ", "completions "]
        .map(|name| help.find(&format!("\n  {name}")).unwrap());
    assert!(places.is_sorted(), "{help}");
    let help = printed(["record", "--help"]);
    let groups = ["\nOptions:", "\nWhich part of the run:", "\nWhat each event has:", "\nWhich processes:"];
    assert!(groups.into_iter().all(|group| help.contains(group)), "{help}");
}

/// A program with an allocator that calls hooks as jemalloc does; `remember` is never freed.
const HOOKED: &str = r#"#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef uintptr_t word;
struct { void (*allocate)(void *, int, void *, word, word *), (*free)(void *, int, void *, word *),
    (*expand)(void *, int, void *, size_t, size_t, word, word *); void *extra; } hooks;
int je_mallctl(const char *name, void *old, size_t *length, void *new, size_t size) {
    if (strcmp(name, "experimental.hooks.install") || size != sizeof hooks) return 2;
    memcpy(&hooks, new, size);
    return 0;
}
static char memory[1 << 20], *next = memory;
__attribute__((noinline)) void *je_aligned_alloc(size_t align, size_t size) {
    word arguments[] = {align, size, 0};
    char *block = (char *)(((word)next + align - 1) & -align);
    next = block + size;
    if (hooks.allocate) hooks.allocate(hooks.extra, 2, block, (word)block, arguments);
    return block;
}
void *je_malloc(size_t size) { return je_aligned_alloc(16, size); }
void je_free(void *block) { word arguments[] = {(word)block, 0, 0}; if (hooks.free) hooks.free(hooks.extra, 0, block, arguments); }
void je_expand(void *block, size_t size) {
    word arguments[] = {(word)block, size, 0, 0};
    if (hooks.expand) hooks.expand(hooks.extra, 0, block, 0, size + 8, (word)block, arguments);
}
__attribute__((noinline)) void *remember(int n) { return je_aligned_alloc(64, 100 + n); }
int main(int count, char **arguments) {
    void *resized = je_aligned_alloc(16, 10);
    je_expand(resized, 500);
    for (int n = 0; n < 50; n++) { remember(n); je_free(je_aligned_alloc(8, 33)); }
    je_free(resized);
    // What starts next brings no allocator, but has the same environment.
    return count > 1 ? execv(arguments[1], arguments + 1) : 0;
}
"#;

#[test]
fn jemalloc_s_hooks_tell_what_is_requested_of_it() {
    let (_folder, [program, trace, sample, other]) = files(["hooked", "run.bin", "sample.bin", "other"]);
    compiled(&program, HOOKED, &[]);
    let output = record(&["--stacks", "-o", &trace, "--", &program], b"");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("hooked brings jemalloc, whose hooks tell"), "{told}");
    assert!(!told.contains("warning"), "{told}");
    let report = json(["who", &trace, "--json"]);
    let first = &report["lines"][0];
    assert_eq!(functions(first)[..3], ["je_aligned_alloc", "remember", "main"], "{report}");
    let text = trace.replace(".bin", ".trace");
    printed(["convert", &trace, &text]);
    let text = fs::read_to_string(text).unwrap();
    let events = |start: &str, end: &str| {
        text.lines().filter(|line| line.starts_with(start) && line.contains(end)).count()
    };
    assert_eq!((events("a ", " 10 16"), events("r ", " 500"), events("a ", " 33 8")), (1, 1, 50), "{text}");
    let remembered: usize = (100..150).map(|size| events("a ", &format!(" {size} 64"))).sum();
    assert_eq!((remembered, events("f ", "")), (50, 51), "{text}");
    // A sample of every byte has the same blocks.
    assert!(record(&["--sample", "1", "-o", &sample, "--", &program], b"").status.success());
    let sampled = json(["who", &sample, "--json"]);
    assert_eq!(sampled["lines"][0]["blocks"], report["lines"][0]["blocks"], "{sampled}");
    // Another program inherits the address, but does not use it.
    compiled(&other, SERVER, &[]);
    let output = record(&["--stacks", "-o", &trace, "--", &program, &other, "10"], b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(json(["who", &trace, "--json"])["lines"][0]["function"], "remember");
}

/// Every stack of a real program leads to where programs begin.
#[test]
fn stacks_of_a_real_program_are_whole() {
    if !crate::record::present("jq") {
        return;
    }
    let (_folder, [trace]) = files(["run.trace"]);
    let input: String = (0..300).map(|n| format!("{{\"id\":{n},\"name\":\"n{n}\"}}\n")).collect();
    let output = record(&["--stacks", "-o", &trace, "--", "jq", "-s", "map(.id) | add"], input.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut reader = open(trace.as_ref()).unwrap().with_stacks();
    let requests: Vec<u32> = reader
        .by_ref()
        .map(Result::unwrap)
        .filter(|checked| checked.event.action != allotment_trace::Action::Free)
        .map(|checked| checked.stack)
        .collect();
    let stacks: Stacks = reader.take_stacks();
    let whole = requests.iter().filter(|&&stack| {
        let mut at = stacks.node(stack);
        let mut outermost = None;
        while let Some(node) = at {
            (outermost, at) = (Some(node), stacks.node(node.parent));
        }
        outermost.is_some_and(|node| {
            stacks.frames(node).iter().any(|frame| {
                ["_start", "_dl_start", "clone", "_dl_start_user"]
                    .iter()
                    .any(|name| frame.function.contains(name))
            }) || stacks
                .module(node)
                .is_some_and(|module| module.path.contains("/jq") || module.path.contains("/ld-"))
        })
    });
    let (whole, all) = (whole.count(), requests.len());
    assert!(all > 1000 && whole == all, "{whole} of {all} stacks are whole");
}

/// A sample that misses next to nothing is the whole: blocks are remembered and forgotten, moved and freed.
#[test]
fn a_sample_of_every_byte_is_the_whole_run() {
    let (_folder, [program, whole, sample]) = files(["server", "whole.bin", "sample.bin"]);
    compiled(&program, SERVER, &["-O1"]);
    recorded(&whole, &program, &["1000"], &[]);
    recorded(&sample, &program, &["1000"], &["--sample", "1"]);
    let [whole, sampled] = [&whole, &sample].map(|trace| json(["who", trace, "--json"]));
    assert_eq!(sampled["sample"], 1);
    assert_eq!(whole["sample"], Value::Null);
    for key in ["calls", "bytes", "blocks", "live", "peak"] {
        assert_eq!(whole["lines"][0][key], sampled["lines"][0][key], "{key}");
        assert_eq!(whole["total"][key], sampled["total"][key], "{key}");
    }
    // What needs all blocks says so, and what a sample does not say is not made up.
    for args in [&["advise", &sample][..], &["replay", &sample], &["plan", &sample, "--form", "trace"]] {
        let error = refused(args).1;
        assert!(error.contains("record without --sample"), "{error}");
    }
    assert!(refused(["who", &sample, "--by", "temporary"]).1.contains("record without --sample"));
    let page = json(["view", &sample, "--json", "--arena", "1MiB"]);
    assert_eq!((&page["totals"]["sample"], &page["totals"]["live_bytes"]), (&1.into(), &30_000.into()));
}

/// What the lines of a program take, from one block in thirty or so: within the stated error in most runs, and on average without bias.
#[test]
fn estimates_of_a_sample_are_within_the_stated_error() {
    let (_folder, [program, trace, profile]) = files(["server", "run.bin", "run.pb"]);
    compiled(&program, SERVER, &["-O1"]);
    let runs = 16;
    let (mut within, mut sum) = (0, 0.0);
    for _ in 0..runs {
        recorded(&trace, &program, &["5000"], &["--sample", "10KiB"]);
        let report = json(["who", &trace, "--json"]);
        let leak =
            &report["lines"].as_array().unwrap().iter().find(|line| line["function"] == "remember").unwrap();
        let live = leak["live"].as_f64().unwrap();
        let error = (live - 150_000.0).abs();
        within += u32::from(error <= 2.0 * (10_240.0 * live).sqrt());
        sum += live;
        // Far fewer events than the 25,500 of the whole.
        assert!(report["events"].as_u64().unwrap() < 3000, "{}", report["events"]);
    }
    assert!(within >= runs - 4, "{within} of {runs}");
    // Five deviations of the mean of all runs.
    let mean = sum / f64::from(runs);
    assert!((mean - 150_000.0).abs() < 5.0 * (10_240.0 * 150_000.0 / f64::from(runs)).sqrt(), "{mean}");
    let said = printed(["who", &trace]);
    assert!(
        said.contains("a sample, one block per 10240 B on average: all figures but events are estimates"),
        "{said}"
    );
    assert!(said.contains(" ± "), "{said}");
    printed(["convert", &trace, &profile]);
    let error = refused(["record", "--sample", "0", "--", &program]).1;
    assert!(error.contains("it must be at least 1"), "{error}");
}

/// Threads that free each other's blocks, and children: no block of a sample is freed twice or lost.
#[test]
fn a_sample_holds_over_threads_and_children() {
    let (_folder, [program, trace]) = files(["threads", "run.bin"]);
    let source = r#"#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#define MANY 20000
static void *_Atomic passed[MANY];
static void *makes(void *all) {
    for (int n = 0; n < MANY; n++) {
        void *block = malloc(16 + n % 300);
        passed[n] = n % 3 ? block : realloc(block, 500);
    }
    return all;
}
static void *frees(void *all) {
    for (int n = 0; n < MANY; n++) {
        while (!passed[n]) sched_yield();
        free(passed[n]);
    }
    return all;
}
int main(void) {
    void *kept[100];
    for (int n = 0; n < 100; n++) kept[n] = malloc(1000);
    pthread_t threads[2];
    pthread_create(&threads[0], 0, makes, 0);
    pthread_create(&threads[1], 0, frees, 0);
    for (int n = 0; n < 2; n++) pthread_join(threads[n], 0);
    if (fork() == 0) {
        for (int n = 0; n < 100; n++) free(kept[n]), kept[n] = malloc(2000);
        _exit(0);
    }
    int status;
    wait(&status);
    for (int n = 0; n < 100; n++) free(kept[n]);
    return status;
}
"#;
    compiled(&program, source, &["-O1", "-pthread"]);
    for sample in ["1", "64", "2KiB"] {
        recorded(&trace, &program, &[], &["--sample", sample, "--children"]);
        let header = open(Path::new(&trace)).unwrap().header().text().to_owned();
        assert!(header.contains("unknown_frees=0 missed_frees=0"), "{sample}: {header}");
        let report = json(["who", &trace, "--json", "--by", "bytes"]);
        // What the system's own functions keep for a thread is not the program's.
        let own = |line: &&Value| line["function"] == "makes" || line["function"] == "main";
        for line in report["lines"].as_array().unwrap().iter().filter(own) {
            assert_eq!(line["live"], 0, "{sample}: {line}");
        }
        assert!(report["lines"].as_array().unwrap().iter().filter(own).count() > 0, "{sample}: {report}");
        let child =
            fs::read_dir(Path::new(&trace).parent().unwrap()).unwrap().map(|file| file.unwrap().path());
        let child = child
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("run."))
            .find(|path| *path != Path::new(&trace));
        let child = child.unwrap();
        let report = json(["who", child.to_str().unwrap(), "--json"]);
        if sample == "1" {
            assert_eq!(report["total"]["live"], 200_000);
        }
        fs::remove_file(child).unwrap();
    }
}

/// Two threads with names, and the first one, which has none. They take turns, so that each names itself before it goes on.
const THREADS: &str = r#"#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
void *kept[1000], *mine[10];
pthread_barrier_t turn;
void *work(void *name) {
    int is_first = *(char *)name == 'a';
    pthread_setname_np(pthread_self(), name);
    for (int n = 0; n < 100; n++) {
        if (is_first) kept[n] = malloc(500);
        pthread_barrier_wait(&turn);
        if (!is_first) kept[500 + n] = malloc(700);
        pthread_barrier_wait(&turn);
    }
    return 0;
}
int main() {
    pthread_t threads[2];
    pthread_barrier_init(&turn, 0, 2);
    for (int n = 0; n < 10; n++) mine[n] = malloc(90);
    pthread_create(threads, 0, work, "alpha");
    pthread_create(threads + 1, 0, work, "beta gamma");
    for (int n = 0; n < 2; n++) pthread_join(threads[n], 0);
    for (int n = 0; n < 50; n++) free(kept[n]);
    if (fork() == 0) mine[0] = malloc(80);
    return 0;
}
"#;

#[test]
fn threads_are_told_apart() {
    let (_folder, [program, binary, text]) = files(["pair", "run.bin.zst", "run.trace"]);
    compiled(&program, THREADS, &["-pthread"]);
    let tag = |start: &str, tags: &Value| {
        let tags = tags.as_array().unwrap();
        let found: Vec<&Value> =
            tags.iter().filter(|tag| tag["tag"].as_str().unwrap().starts_with(start)).collect();
        assert_eq!(found.len(), 1, "{start} in {tags:?}");
        (found[0]["live"].as_u64().unwrap(), found[0]["calls"].as_u64().unwrap())
    };
    for (trace, options) in [(&binary, &["--stacks"][..]), (&text, &["--stacks"]), (&text, &[])] {
        let arguments = [options, &["-o", trace, "--", &program]].concat();
        assert!(record(&arguments, b"").status.success());
        let report = json(["who", trace, "--json"]);
        assert_eq!(tag("alpha/", &report["tags"]), (25_000, 100));
        assert_eq!(tag("beta gamma/", &report["tags"]), (70_000, 100));
        assert_eq!(report["tags"].as_array().unwrap().len(), 3, "{}", report["tags"]);
        let (own, _) = (report["tags"].as_array().unwrap().iter())
            .filter(|tag| tag["tag"] == "")
            .map(|tag| (tag["live"].as_u64().unwrap(), 0))
            .next()
            .unwrap();
        assert!((900..10_000).contains(&own), "{own}");
    }
    assert!(printed(["who", &binary]).contains("by tag or thread, live at the end:"));
}
