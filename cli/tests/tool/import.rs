//! The files of other profilers, made by those and by Python.

use std::fs;
use std::process::Command;

use crate::{allotment, data, files, json, printed, refused};

/// A recording by heaptrack has the figures that `heaptrack_print` says, and the stacks.
#[cfg(target_os = "linux")]
#[test]
fn heaptrack_s_recordings_are_read() {
    if !allotment_cli::record::is_installed("heaptrack") {
        eprintln!("heaptrack is not installed: not compared");
        return;
    }
    let (folder, [program, recording]) = files(["leaks", "run"]);
    let source = "#include <stdlib.h>\nvoid *kept[100];\n__attribute__((noinline)) void remember(int n) { kept[n] = malloc(300); }\n\
        int main(void) { for (int n = 0; n < 1000; n++) { void *block = malloc(64 + n % 7); if (n % 10 == 0) remember(n / 10); free(block); } return 0; }\n";
    let file = folder.path().join("leaks.c");
    fs::write(&file, source).unwrap();
    assert!(
        Command::new("cc").args(["-g", "-O1", "-w", "-o", &program]).arg(&file).status().unwrap().success()
    );
    let made = Command::new("heaptrack").args(["-o", &recording, &program]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let recording = [".zst", ".gz"].map(|end| format!("{recording}{end}"));
    let recording = recording.iter().find(|path| fs::exists(path).unwrap()).unwrap();
    let said = Command::new("heaptrack_print").arg(recording).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    let figure = |start: &str| {
        let line = said.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{said}"));
        line.split(": ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let report = json(["who", recording, "--json"]);
    assert_eq!(report["total"]["calls"].to_string(), figure("calls to allocation functions"));
    assert_eq!(
        figure("total memory leaked"),
        format!("{:.2}K", report["total"]["live"].as_f64().unwrap() / 1000.0)
    );
    let first = &report["lines"][0];
    assert_eq!((&first["blocks"], &first["live"]), (&100.into(), &30_000.into()), "{report}");
    assert!(first["stack"].as_array().unwrap().len() > 2, "{first}");
    // Every other command reads it as well.
    assert!(printed(["diff", recording, "--from", "100", "--to", "1000"]).contains("live at the end"));
    assert!(printed(["advise", recording]).contains("HEAP"));
    assert_eq!(json(["view", recording, "--json"])["totals"]["live_bytes"], report["total"]["live"]);
}

#[test]
fn damaged_recordings_of_heaptrack_name_the_line() {
    let (_folder, [recording]) = files(["run"]);
    let good =
        "v 10400 3\nX program\ns 4 /bin/a\ns 4 main\ni 1000 1 2 0 0\nt 1 0\na 64 1\n+ 0\nc 5\n+ 0\n- 0\n";
    fs::write(&recording, good).unwrap();
    let report = json(["who", &recording, "--json"]);
    assert_eq!((&report["total"]["calls"], &report["total"]["live"]), (&2.into(), &100.into()));
    assert_eq!(report["lines"][0]["function"], "main");
    assert_eq!(report["seconds"], 0.005);
    for bad in ["+ 9", "t 7 0", "- x", "a 1", "+"] {
        fs::write(&recording, format!("{good}{bad}\n")).unwrap();
        let error = refused(["who", &recording]).1;
        assert!(error.contains("line 12 is not one of heaptrack's"), "{bad}: {error}");
    }
    // A cycle of callers cannot be said: a caller comes first.
    fs::write(&recording, "v 10400 3\ns 1 a\ni 1 1\nt 1 1\na 8 1\n+ 0\n").unwrap();
    assert_eq!(json(["who", &recording, "--json"])["total"]["live"], 8);
}

/// Plain values as Python's `pickle` writes them, in all its protocols.
const SNAPSHOT: &str = r#"
import pickle, sys
frames = [{'filename': 'model.py', 'line': 7, 'name': 'forward'}, {'filename': 'train.py', 'line': 3, 'name': 'main'}]
other = [{'filename': 'train.py', 'line': 9, 'name': 'load'}]
trace = [{'action': 'alloc', 'addr': 0x7f0000000000 + n * 4096, 'size': 1000, 'stream': 0, 'time_us': 1700000000000000 + n, 'frames': frames} for n in range(300)]
trace += [{'action': kind, 'addr': 0x7f0000000000 + n * 4096, 'size': 1000, 'stream': 0, 'time_us': 1700000000001000 + n, 'frames': []}
    for n in range(100) for kind in ('free_requested', 'free_completed')]
segments = [{'device': 0, 'address': 0x7e0000000000, 'total_size': 1 << 21, 'segment_type': 'large', 'blocks': [
    {'size': 4096, 'requested_size': 4000, 'address': 0x7e0000000000, 'state': 'active_allocated', 'frames': other},
    {'size': 4096, 'requested_size': 0, 'address': 0x7e0000001000, 'state': 'inactive', 'frames': []}]}]
snapshot = {'segments': segments, 'device_traces': [trace], 'allocator_settings': {'expandable_segments': False, 'ratio': 0.5}, 'x': None, 'big': (-1, 1 << 40, 'ä' * 300)}
pickle.dump(snapshot, open(sys.argv[1], 'wb'), protocol=int(sys.argv[2]))
"#;

#[test]
fn snapshots_of_pytorch_are_read() {
    let (_folder, [snapshot]) = files(["snapshot.pickle"]);
    for protocol in ["2", "4", "5"] {
        let made = Command::new("python3").args(["-c", SNAPSHOT, &snapshot, protocol]).output();
        let Ok(made) = made else { return eprintln!("python3 is not installed: not compared") };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let report = json(["who", &snapshot, "--json"]);
        assert_eq!((&report["total"]["live"], &report["total"]["calls"]), (&204_000.into(), &301.into()));
        let lines: Vec<(&str, u64)> = report["lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| (line["function"].as_str().unwrap(), line["live"].as_u64().unwrap()))
            .collect();
        assert_eq!(lines, [("forward", 200_000), ("load", 4000)], "{protocol}");
        assert_eq!(report["lines"][0]["stack"][1], "main  train.py:3");
    }
    assert!(printed(["advise", &snapshot]).contains("HEAP"));
}

/// Files that would have something called, or more memory than there is, end with a message.
#[test]
fn hostile_pickles_are_refused() {
    let (_folder, [snapshot]) = files(["snapshot.pickle"]);
    let deep = [b"\x80\x04".to_vec(), vec![b']'; 3 << 20], vec![b'a'; (3 << 20) - 1], b".".to_vec()].concat();
    let cases: [(&[u8], &str); 12] = [
        (
            b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.",
            "byte 3: operation 0x63 makes no plain value, so it is refused",
        ),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "operation 0x93 makes no plain value"),
        (b"\x80\x04N\x81.", "operation 0x81 makes no plain value"),
        (b"\x80\x04X\xff\xff\xff\xff", "the file ends too early"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "the file ends too early"),
        (b"\x80\x04h\x07.", "a value that was not kept is named"),
        (b"\x80\x04\x85.", "a value is missing"),
        (b"\x80\x04e.", "a mark is missing"),
        (b"\x80\x04}Na.", "only a list can be extended"),
        (b"\x80\x04]NNs.", "only a dictionary has keys"),
        // A list in itself.
        (b"\x80\x04]q\x00h\x00a.", "no snapshot of PyTorch's memory"),
        (&deep, "no snapshot of PyTorch's memory"),
    ];
    for (bytes, why) in cases {
        fs::write(&snapshot, bytes).unwrap();
        let error = refused(["who", &snapshot]).1;
        assert!(error.contains(why), "{why}: {error}");
    }
}

/// What a server holds, by stack: two live blocks, one freed.
const HELD: &str = "# name=held clock=ns\n#^s main\n#^s leak\n#^s a.c\n#^f 0 10 1 0 0\n#^f 0 20 2 3 7\n#^n 0 0 10\n#^n 1 0 20\n\
    #^2\na 1 100 8 @1000\n#^1\na 2 50 8 @2000 #net\n#^2\na 3 101 8 @3000\nf 2 @4000\n";

/// The functions that hold memory, with it.
fn held(report: &serde_json::Value) -> Vec<(String, u64)> {
    let lines = report["lines"].as_array().unwrap().iter();
    lines
        .filter(|line| line["live"] != 0)
        .map(|line| (line["function"].as_str().unwrap().to_owned(), line["live"].as_u64().unwrap()))
        .collect()
}

/// A profile says what each stack holds, and nothing of the order.
#[test]
fn profiles_of_pprof_are_read() {
    let (folder, [trace, profile, page, other]) =
        files(["held.trace", "held.pb.gz", "held.html", "more.trace"]);
    fs::write(&trace, HELD).unwrap();
    printed(["convert", &trace, &profile]);
    let report = json(["who", &profile, "--json"]);
    assert_eq!(held(&report), [("leak".into(), 201)]);
    assert_eq!((&report["total"]["calls"], &report["total"]["bytes"]), (&3.into(), &251.into()));
    assert_eq!(report["lines"][0]["stack"][0], "leak  a.c:7");
    // Its name does not matter, nor whether it is compressed.
    let plain = folder.path().join("held");
    printed(["convert", &trace, plain.to_str().unwrap(), "--to", "pprof"]);
    assert_eq!(json(["who", plain.to_str().unwrap(), "--json"])["lines"], report["lines"]);
    fs::write(&other, format!("{HELD}#^2\na 4 1000 8\n")).unwrap();
    let grown = json(["diff", &profile, &other, "--json"]);
    assert_eq!(
        (&grown["lines"][0]["what"], &grown["lines"][0]["grown"]),
        (&"leak  a.c".into(), &1000.into())
    );
    printed(["view", &profile, "-o", &page]);
    assert!(fs::read_to_string(&page).unwrap().contains("a.c"));
    for command in ["advise", "replay"] {
        assert!(
            refused([command, &profile])
                .1
                .contains("a profile does not say in which order blocks come and go")
        );
    }
    fs::write(&profile, b"\x0a\x04\x08\x01\x10\x02\xff\xff\xff").unwrap();
    assert!(refused(["who", &profile]).1.contains("held.pb.gz: no profile of pprof: "));
}

/// Chrome's JSON that `convert` wrote is a trace for every command.
#[test]
fn what_reads_a_trace_of_perfetto_is_named() {
    let (_folder, [trace]) = files(["heap.pftrace"]);
    // A packet with the user's number and the time, one with a sequence's number, and one that is longer than what is looked at.
    let mut bytes = vec![0x0a, 5, 0x18, 0, 0x40, 0x80, 1, 0x0a, 4, 0x50, 1, 0x40, 5, 0x0a, 0x88, 0x27];
    bytes.resize(bytes.len() + 5000, b'x');
    std::fs::write(&trace, bytes).unwrap();
    for command in ["who", "view", "replay"] {
        let (status, error) = refused([command, &trace]);
        assert!(status == 1 && error.contains("`traceconv profile` writes"), "{error}");
    }
    // Lines whose breaks could be keys.
    std::fs::write(&trace, "\n  a 1 8 8\nf 1\n").unwrap();
    assert!(!String::from_utf8_lossy(&allotment(["who", &trace]).stderr).contains("Perfetto"));
}

#[test]
fn chrome_traces_are_read_by_every_command() {
    let (_folder, [trace, chrome]) = files(["held.trace", "held.json.gz"]);
    fs::write(&trace, HELD).unwrap();
    printed(["convert", &trace, &chrome]);
    assert_eq!(json(["who", &chrome, "--json"])["lines"], json(["who", &trace, "--json"])["lines"]);
    assert!(printed(["advise", &chrome]).contains("HEAP"));
    assert!(printed(["diff", &trace, &chrome]).contains("201 B to 201 B (+0)"));
}

/// A snapshot has the run as PyTorch would have written it: it is read back, and by Python, whose dictionaries have all keys that
/// `torch.cuda.memory._snapshot` names and the viewer reads.
#[test]
fn snapshots_for_memory_viz_have_the_whole_run() {
    let (_folder, [trace, snapshot, real]) = files(["held.trace", "held.pickle", "real.pickle"]);
    fs::write(&trace, HELD).unwrap();
    printed(["convert", &trace, &snapshot]);
    let report = json(["who", &snapshot, "--json"]);
    assert_eq!(report["lines"], {
        let mut lines = json(["who", &trace, "--json"])["lines"].clone();
        for key in ["first_seconds", "last_seconds"] {
            lines[0][key] = report["lines"][0][key].clone();
        }
        lines
    });
    // A real run keeps its figures, and devices stay apart.
    let run = data("espeak.trace.zst");
    let run = run.to_str().unwrap();
    printed(["convert", run, &real]);
    let (before, after) = (json(["who", run, "--json"]), json(["who", &real, "--json"]));
    for key in ["live", "peak", "blocks"] {
        assert_eq!(before["total"][key], after["total"][key], "{key}");
    }
    let check = r#"
import pickle, pickletools, sys
# Those that the viewer's own unpickler knows.
known = {'PROTO', 'STOP', 'EMPTY_DICT', 'EMPTY_LIST', 'MARK', 'APPENDS', 'SETITEMS', 'BININT', 'BININT1', 'BININT2', 'LONG1', 'BINUNICODE',
    'MEMOIZE', 'BINGET', 'LONG_BINGET'}
for path in sys.argv[1:]:
    assert {op.name for op, _, _ in pickletools.genops(open(path, 'rb'))} <= known
    snapshot = pickle.load(open(path, 'rb'))
    live = {}
    for trace in snapshot['device_traces']:
        for entry in trace:
            assert {'action', 'size', 'stream', 'time_us', 'frames'} <= entry.keys(), entry
            for frame in entry['frames']:
                assert frame.keys() == {'name', 'filename', 'line'}, frame
            if entry['action'] == 'alloc':
                inside = [s for s in snapshot['segments'] if s['address'] <= entry['addr'] < s['address'] + s['total_size']]
                assert len(inside) == 1 and entry['addr'] not in live, entry
                live[entry['addr']] = entry['size']
            elif entry['action'] == 'free_completed':
                assert live.pop(entry['addr']) == entry['size']
    found = {}
    for segment in snapshot['segments']:
        at = segment['address']
        for block in segment['blocks']:
            assert block['address'] == at, block
            at += block['size']
            if block['state'] == 'active_allocated':
                found[block['address']] = block['requested_size']
        assert at == segment['address'] + segment['total_size'], segment
    assert found == live and live, (found, live)
    print(len(live))
"#;
    let Ok(checked) = Command::new("python3").args(["-c", check, &snapshot, &real]).output() else {
        return eprintln!("python3 is not installed: not compared");
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let live = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(live, format!("2\n{}\n", before["total"]["blocks"]));
}

/// A profile's order of events is made up, so no command tells of a peak or a moment in it.
#[test]
fn profiles_have_no_moments() {
    let (_folder, [trace, profile, html, folded]) = files(["t.trace", "p.pb.gz", "p.html", "p.folded"]);
    fs::write(&trace, "#^n 0 1 10\n#^1\na 1 900 8\n#^1\nf 1\n#^1\na 2 50 8\n#^s main\n#^f 1 10 1 0 0\n")
        .unwrap();
    printed(["convert", &trace, &profile]);
    let who = printed(["who", &profile]);
    let told = "p.pb.gz: a profile of 2 requests in no order, 1 blocks of 50 B live at the end\n";
    assert!(who.starts_with(told) && !who.contains("event") && !who.contains("since"), "{who}");
    let report = json(["who", &profile, "--json"]);
    assert!(report["peak_event"].is_null() && report["lines"][0]["first_event"].is_null(), "{report}");
    let view = printed(["view", &profile, "-o", &html]);
    assert!(view.contains("a profile of 2 requests in no order") && !view.contains("peak"), "{view}");
    let report = json(["view", &profile, "--json"]);
    assert_eq!(report["totals"]["ordered"], false);
    let kinds = report["suggestions"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap());
    assert_eq!(kinds.collect::<Vec<_>>(), ["leak"]);
    let lacking: [&[&str]; 6] = [
        &["who", &profile, "--by", "peak"],
        &["who", &profile, "--by", "temporary"],
        &["who", &profile, "--until", "1"],
        &["diff", &profile, &trace, "--by", "peak"],
        &["diff", &profile, "--to", "1"],
        &["convert", &profile, &folded, "--by", "peak"],
    ];
    for args in lacking {
        let (status, error) = refused(args);
        assert!(status == 1 && error.contains("a profile does not say in which order"), "{args:?}: {error}");
    }
}

/// A resize without a tag or without a stack leaves the block where it was, as in `who`.
#[test]
fn budgets_follow_resized_blocks() {
    let (_folder, [trace, budget]) = files(["t.trace", "b.toml"]);
    let text = "#^n 0 1 10\n#^n 0 1 20\n#^1\na 1 100 8 #net\n#^2\nr 1 300\na 2 10 8 #net\nr 2 20 #log\n\
                #^s main\n#^s other\n#^f 1 10 1 0 0\n#^f 1 20 2 0 0\n";
    fs::write(&trace, text).unwrap();
    let limits = "[tag.net]\nlive = 1\n[tag.log]\nlive = 1\n[function.main]\nlive = 1000\n[function.other]\nlive = 1000\n";
    fs::write(&budget, limits).unwrap();
    let found = allotment(["budget", &trace, "--file", &budget, "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let live =
        |of: &str| found.as_array().unwrap().iter().find(|one| one["of"] == of).unwrap()["found"].clone();
    let who = json(["who", &trace, "--json"]);
    for tag in ["net", "log"] {
        let all = who["tags"].as_array().unwrap();
        let known = &all.iter().find(|one| one["tag"] == tag).unwrap()["live"];
        assert_eq!(live(&format!("tag {tag}")), *known, "{tag}: {found}");
    }
    assert_eq!((live("tag net"), live("tag log")), (300.into(), 20.into()));
    assert_eq!(live("function other"), 300, "{found}");
    // What has no stack is in no line, so `who` says how much that is.
    assert_eq!(who["unknown"]["live"], 20, "{who}");
    let text = printed(["who", &trace]);
    assert!(text.contains("          20 B   6.2 %  without a stack\n"), "{text}");
}
