//! `allotment convert`.

use std::fs;

use crate::{data, files, json, printed, refused};

const TEXT: &str = "# name=demo events=5 clock=ns\na 0 100 8 @1000 #net%20in\n# |   0: main\na 1 24 0 @2500\n\
                    # failed 4096 16 @2600 #net%20in\nr 0 200 @2700\n# lost 3\nf 1 @9000\nf 0 @9999\n";

#[test]
fn nothing_is_lost_between_text_binary_and_chrome() {
    let (_folder, [text, binary, chrome, packed, again]) =
        files(["a.trace", "b.bin", "c.json", "d.trace.zst", "e.txt"]);
    fs::write(&text, TEXT).unwrap();
    for (from, to) in [(&text, &binary), (&binary, &chrome), (&chrome, &packed), (&packed, &again)] {
        let report = json(["convert", from, to, "--json"]);
        assert_eq!(
            (&report["events"], &report["failures"], &report["lost"]),
            (&5.into(), &1.into(), &3.into())
        );
    }
    assert_eq!(fs::read_to_string(&again).unwrap(), TEXT);
    assert!(fs::metadata(&binary).unwrap().len() < TEXT.len() as u64);
}

#[test]
fn a_real_run_survives_every_form() {
    let trace = data("espeak.trace.zst");
    let (_folder, [text, binary, chrome, again]) = files(["a.trace", "b.bin.gz", "c.json.gz", "d.trace"]);
    printed(["convert", trace.to_str().unwrap(), &text]);
    printed(["convert", &text, &binary]);
    printed(["convert", &binary, &chrome]);
    printed(["convert", &chrome, &again]);
    assert_eq!(fs::read(&text).unwrap(), fs::read(&again).unwrap());
}

#[test]
fn chrome_traces_have_slices_and_counters() {
    let (_folder, [text, chrome]) = files(["a.trace", "c.json"]);
    fs::write(&text, TEXT).unwrap();
    printed(["convert", &text, &chrome]);
    let chrome: serde_json::Value = serde_json::from_slice(&fs::read(&chrome).unwrap()).unwrap();
    let events = chrome["traceEvents"].as_array().unwrap();
    let phases: Vec<&str> = events.iter().map(|event| event["ph"].as_str().unwrap()).collect();
    assert_eq!(phases, ["b", "C", "i", "b", "C", "i", "n", "C", "i", "e", "C", "e", "C"]);
    assert_eq!(
        (&events[0]["name"], &events[0]["ts"], &events[0]["id"]),
        (&"net in".into(), &1.0.into(), &"0x0".into())
    );
    let live: Vec<u64> = events.iter().filter_map(|event| event["args"]["bytes"].as_u64()).collect();
    assert_eq!(live, [100, 124, 224, 200, 0]);
}

#[test]
fn massif_snapshots_have_the_peak_by_tag() {
    let (_folder, [text, massif]) = files(["a.trace", "m.massif"]);
    fs::write(&text, TEXT).unwrap();
    printed(["convert", &text, &massif]);
    let massif = fs::read_to_string(&massif).unwrap();
    assert!(massif.starts_with("desc: (none)\ncmd: demo\ntime_unit: i\n"), "{massif}");
    let peak = "time=3\nmem_heap_B=224\nmem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree=peak\n\
                n2: 224 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.\n \
                n0: 200 0x0: net in (tag)\n n0: 24 0x0: (no tag) (tag)\n";
    assert!(massif.contains(peak), "{massif}");
    assert_eq!(massif.matches("snapshot=").count(), 6);
}

/// Massif's last snapshot and its peak are the figures of `who`: of a sample, of a run whose blocks the recorder freed at the end, and of
/// more events than snapshots.
#[test]
fn massif_and_who_agree() {
    let churn: String = (0..500).map(|n| format!("a {} {} 8 #x\n", n + 9, n + 1)).collect();
    let runs = [
        "# sample=512\na 1 100 8 #x\na 2 5000 8\na 3 7 8 #x\nr 1 300 #y\nf 2\n".to_owned(),
        "# events=5 tail=3\na 1 100 8 #x\na 2 50 8\nf 1\na 3 20 8\nf 2\n".to_owned(),
        format!("{churn}f 9\nf 400\n"),
    ];
    for run in runs {
        let (_folder, [text, massif]) = files(["a.trace", "m.massif"]);
        fs::write(&text, &run).unwrap();
        printed(["convert", &text, &massif]);
        let massif = fs::read_to_string(&massif).unwrap();
        let bytes = massif.lines().filter_map(|line| line.strip_prefix("mem_heap_B=")?.parse::<u64>().ok());
        let bytes: Vec<u64> = bytes.collect();
        let who = json(["who", &text, "--json"]);
        assert_eq!(bytes.last().copied(), who["total"]["live"].as_u64(), "{run}");
        assert_eq!(bytes.iter().max().copied(), who["total"]["peak"].as_u64(), "{run}");
        let tags = who["tags"].as_array().unwrap().iter().filter(|tag| tag["tag"] != "");
        for tag in tags.filter(|tag| tag["peak"].as_u64() > Some(0)) {
            let leaf = format!(" n0: {} 0x0: {} (tag)\n", tag["peak"], tag["tag"].as_str().unwrap());
            assert!(massif.contains(&leaf), "{leaf}{massif}");
        }
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    let (_folder, [json, out]) = files(["c.json", "out.trace"]);
    fs::write(&json, "{\"traceEvents\":[{\"ph\":\"X\"}]}").unwrap();
    assert!(refused(["convert", &json, &out]).1.contains("no records"));
    fs::write(&json, "{\"traceEvents\":[{\"ph\":\"X\"}").unwrap();
    assert!(refused(["convert", &json, &out]).1.contains("at line 1 column 2"));
    fs::write(&json, "{\"traceEvents\":[{\"args\":{\"record\":\"a 1 8 8\\nf 7\"}}]}").unwrap();
    assert!(refused(["convert", &json, &out]).1.contains("line 1"));
    assert!(refused(["convert", &json, "out.doc"]).1.contains("write .trace"));
}

/// Valgrind's own `ms_print` draws the run, and names the peak.
#[test]
fn ms_print_reads_massif() {
    let (_folder, [massif]) = files(["run.massif"]);
    let trace = data("espeak.trace.zst");
    printed(["convert", trace.to_str().unwrap(), &massif]);
    let Ok(output) = std::process::Command::new("ms_print").arg(&massif).output() else {
        return eprintln!("ms_print is not installed: not compared");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let peak = json(["who", trace.to_str().unwrap(), "--json"])["total"]["peak"].as_u64().unwrap();
    let peak: String = peak.to_string();
    let digits: String = said.chars().filter(|c| *c != ',').collect();
    assert!(said.contains("(peak)") && digits.contains(&format!(" {peak} ")), "{peak}: {said}");
}

/// DHAT's file has all fields of version 2, whose viewer refuses one without; folded stacks are a list of names and a number.
#[test]
fn dhat_and_folded_keep_to_their_schemas() {
    let (_folder, [text, dhat, folded]) = files(["a.trace", "a.dhat", "a.folded"]);
    fs::write(&text, TEXT).unwrap();
    printed(["convert", &text, &dhat]);
    printed(["convert", &text, &folded, "--by", "bytes"]);
    let dhat: serde_json::Value = serde_json::from_slice(&fs::read(&dhat).unwrap()).unwrap();
    assert_eq!(
        (&dhat["dhatFileVersion"], &dhat["bklt"], &dhat["bkacc"]),
        (&2.into(), &true.into(), &false.into())
    );
    for key in ["mode", "verb", "tu", "Mtu", "cmd"] {
        assert!(dhat[key].is_string(), "{key}");
    }
    for key in ["pid", "te", "tg", "tuth"] {
        assert!(dhat[key].is_u64(), "{key}");
    }
    let frames = dhat["ftbl"].as_array().unwrap();
    assert_eq!(frames[0], "[root]");
    let points = dhat["pps"].as_array().unwrap();
    assert!(!points.is_empty());
    for point in points {
        for key in ["tb", "tbk", "tl", "mb", "mbk", "gb", "gbk", "eb", "ebk"] {
            assert!(point[key].is_u64(), "{key}: {point}");
        }
        let stack = point["fs"].as_array().unwrap();
        assert!(stack.iter().all(|frame| (frame.as_u64().unwrap() as usize) < frames.len()), "{point}");
    }
    for line in fs::read_to_string(&folded).unwrap().lines() {
        let (names, figure) = line.rsplit_once(' ').unwrap();
        assert!(!names.is_empty() && figure.parse::<u64>().is_ok(), "{line}");
    }
}

/// `-` is the standard output, which then has nothing else; a cut input is written once.
#[test]
fn the_standard_output_has_what_is_written() {
    let (folder, [file, cut, page]) = files(["t.trace", "cut.bin", "page.html"]);
    let run = |args: &[&str]| {
        let output = crate::allotment_in(folder.path(), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    let espeak = data("espeak.trace.zst");
    let espeak = espeak.to_str().unwrap();
    for form in ["text", "binary", "chrome", "massif", "folded", "pprof", "dhat", "pytorch"] {
        run(&["convert", espeak, &file, "--to", form]);
        let (written, said) = run(&["convert", espeak, "-", "--to", form, "--json"]);
        assert!(written == std::fs::read(&file).unwrap(), "{form}");
        assert!(said.contains("\"events\": "), "{said}");
    }
    run(&["convert", espeak, &file, "--to", "binary"]);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let (written, _) = run(&["convert", &cut, "-", "--to", "text"]);
    run(&["convert", &cut, &file, "--to", "text"]);
    assert_eq!(String::from_utf8(written).unwrap(), std::fs::read_to_string(&file).unwrap());
    run(&["view", espeak, "-o", &page, "--time-limit", "0s"]);
    let (written, said) = run(&["view", espeak, "-o", "-", "--time-limit", "0s"]);
    assert!(written == std::fs::read(&page).unwrap() && said.contains("standard output: "), "{said}");
    assert!(!folder.path().join("-").exists());
}

/// A name from a trace does not control a terminal, in text or JSON.
#[test]
fn names_do_not_control_the_terminal() {
    let (folder, [trace, after, budget]) = files(["t\u{1b}[31m.trace", "after.trace", "budget.toml"]);
    let mut text = String::from("# name=n\u{1b}[2J\n");
    text += "# module 1 0 0 m\u{1b}c\n";
    for n in 0..40 {
        text += &format!("a {n} 100 8 evil\u{1b}]0;title\u{7}\u{9b}31m\u{202e}\n");
    }
    std::fs::write(&trace, &text).unwrap();
    std::fs::write(&after, text + "a 99 5000 8 evil\u{1b}[2J\n").unwrap();
    std::fs::write(&budget, "[[tag]]\nname = \"evil\\u001b[2J\"\nlive = 1\n").unwrap();
    let mut seen = 0;
    let commands: [&[&str]; 12] = [
        &["who", &trace],
        &["who", &trace, "--json"],
        &["diff", &trace, &after],
        &["diff", &trace, &after, "--json"],
        &["budget", &after, "--file", &budget],
        &["budget", &after, "--file", &trace],
        &["advise", &trace, "--time-limit", "2s", "--rounds", "0"],
        &["replay", &trace, "--rounds", "0"],
        &["view", &trace, "-o", "x.html", "--time-limit", "0s"],
        &["view", &trace, "--json", "--time-limit", "0s"],
        &["plan", &trace, "--quiet", "--explain"],
        &["who", "none\u{1b}[31m.trace"],
    ];
    for command in commands {
        let output = crate::allotment_in(folder.path(), command);
        for said in [output.stdout, output.stderr] {
            let said = String::from_utf8(said).unwrap();
            let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!said.contains(obeyed), "{command:?}: {said:?}");
            seen += said.matches("\\u001b").count();
        }
    }
    assert!(seen >= 8, "{seen}: names are in the messages");
}
