//! `allotment advise`, up to the heap that it advises.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use allotment_cli::advise::classes::Classes;
use allotment_cli::advise::code::{Choice, fixed_pool, kept};
use allotment_cli::replay::subject::ENTRIES;
use serde_json::Value;

use crate::{allotment, data, files, json, root};

/// Builds a program with this source beside the library; its path.
fn build(folder: &Path, source: &str) -> PathBuf {
    // Tests run side by side, and share what is compiled of the library.
    static PROGRAMS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("advised{}", PROGRAMS.fetch_add(1, Ordering::Relaxed));
    let (root, project) = (root().canonicalize().unwrap(), folder.join(&name));
    fs::create_dir_all(project.join("src")).unwrap();
    let root = root.to_str().unwrap();
    let manifest = format!(
        "[workspace]\n[package]\nname = \"{name}\"\nedition = \"2024\"\n[dependencies]\n\
         allotment = {{ path = {root:?}, features = [\"std\"] }}\nallotment-trace = {{ path = \"{root}/trace\" }}\n"
    );
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    // The versions that the project itself is built with.
    fs::copy(format!("{root}/Cargo.lock"), project.join("Cargo.lock")).unwrap();
    fs::write(project.join("src/main.rs"), source).unwrap();
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("advised");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--manifest-path"])
        .arg(project.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status()
        .unwrap();
    assert!(built.success(), "{source}");
    target.join("debug").join(name)
}

/// Replays a trace on the static `HEAP`, contents checked; the events that were not satisfied and the peak.
const REPLAY: &str = r#"
fn main() {
    use allotment_trace::{Kind, Program};
    let path = std::env::args().nth(1).unwrap();
    let program = Program::compile(allotment_trace::open(path.as_ref()).unwrap()).unwrap();
    let mut blocks = vec![None; program.slots];
    let mut failures = 0;
    for (number, op) in program.ops.iter().enumerate() {
        let layout = op.layout();
        let old = blocks[op.slot as usize].take();
        let fill = number as u8;
        let new = match (op.kind, old) {
            (Kind::Allocate, _) => HEAP.try_allocate(layout).ok(),
            (_, None) => None,
            (Kind::Free, Some((block, fill))) => {
                let bytes = unsafe { std::slice::from_raw_parts(std::ptr::NonNull::as_ptr(block), layout.size()) };
                assert!(bytes.iter().all(|&byte| byte == fill), "contents changed");
                unsafe { HEAP.try_deallocate(block, layout) }.unwrap();
                continue;
            }
            (Kind::Reallocate, Some((block, _))) => {
                let new = unsafe { std::alloc::GlobalAlloc::realloc(&HEAP, block.as_ptr(), layout, op.resized()) };
                std::ptr::NonNull::new(new)
            }
        };
        if let Some(block) = new {
            unsafe { block.write_bytes(fill, op.after()) };
            blocks[op.slot as usize] = Some((block, fill));
        } else {
            failures += 1;
        }
    }
    println!("{failures} {}", HEAP.peak());
}
"#;

/// Builds the advised heap and replays the trace on it: every request succeeds, and the figures are those that were promised.
fn keeps_its_word(advice: &Value, trace: &str) {
    let folder = tempfile::tempdir().unwrap();
    let code = advice["code"].as_str().unwrap();
    // Once as it stands there, as the global allocator of a program that needs little.
    let program =
        build(folder.path(), &format!("{code}\nfn main() {{ println!(\"{{}}\", HEAP.used() > 0); }}\n"));
    let output = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "true");
    // Once as a value, so that nothing but the trace is in it.
    let value = code.replace("#[global_allocator]\n", "");
    let output = Command::new(build(folder.path(), &(value + REPLAY))).arg(trace).output().unwrap();
    let expected = format!("0 {}", advice["used_peak"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{code}");
}

fn advice(trace: &str, more: &[&str]) -> Value {
    json([&["advise", trace, "--json"], more].concat())
}

/// The chain of a user: record a program, be advised, build the heap, replay on it.
#[cfg(target_os = "linux")]
#[test]
fn a_recorded_program_gets_a_heap_that_fits_it() {
    if !crate::record::present("jq") {
        return;
    }
    let (_folder, [trace]) = files(["jq.trace.zst"]);
    let input: String = (0..300).map(|n| format!("{{\"id\":{n},\"name\":\"n{n}\"}}\n")).collect();
    let output = crate::record::record(
        &["-o", &trace, "--", "jq", "-s", "map(.name) | join(\" \") | length"],
        input.as_bytes(),
    );
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1389");
    let advice = advice(&trace, &[]);
    assert_eq!(advice["check_failures"], 0);
    keeps_its_word(&advice, &trace);
}

#[test]
fn recorded_runs_get_heaps_that_fit_them() {
    let trace = data("mosquitto.trace.zst");
    let trace = trace.to_str().unwrap();
    let least = advice(trace, &["--rounds", "0"]);
    assert_eq!((&least["placement"], &least["heap_type"]), (&"tlsf16".into(), &"Heap<Tlsf16>".into()));
    assert!(least["arena"].as_u64().unwrap() < 312_000);
    keeps_its_word(&least, trace);
    // With enough RAM, the one with the fewest instructions, in every run and whatever the times are; with too little, the least, and
    // the status says so.
    let fast = advice(trace, &["--ram", "512K", "--rounds", "1", "--margin", "10"]);
    let instructions = |one: &Value| one["instructions"].as_u64().unwrap();
    let candidates = fast["candidates"].as_array().unwrap();
    let chosen = candidates.iter().find(|one| one["placement"] == fast["placement"]).unwrap();
    let able = candidates.iter().filter(|one| !one["smallest"].is_null());
    assert!(able.clone().all(|other| instructions(chosen) <= instructions(other)), "{fast}");
    assert_eq!(advice(trace, &["--ram", "512K", "--rounds", "0"])["placement"], fast["placement"]);
    for name in ["micro-tlsf", "tiny-heap"] {
        assert!(able.clone().any(|one| one["placement"] == name), "{name}: {fast}");
    }
    assert!(
        least["candidates"].as_array().unwrap().iter().any(|one| one["placement"] == "growing"),
        "{least}"
    );
    let (smallest, arena) = (fast["smallest"].as_u64().unwrap(), fast["arena"].as_u64().unwrap());
    assert!(arena >= smallest / 100 * 110 && arena < smallest * 111 / 100 + 16);
    let output = allotment(["advise", trace, "--ram", "64K", "--rounds", "0", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let refused: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&refused["fits"], &refused["arena"]), (&false.into(), &least["arena"]));
}

/// For a chip the two heaps of chips are tried, with pools for equal blocks and room for large ones.
#[test]
fn chips_get_their_own_heaps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chip.trace");
    // A buffer of 2000 bytes and 3 messages of 44 come and go 100 times.
    let mut trace = String::new();
    for round in 0..100 {
        let id = |n: usize| round * 4 + n;
        trace += &format!("a {} 2000 8\n", id(0));
        (1..4).for_each(|n| trace += &format!("a {} 44 4\n", id(n)));
        (0..4).for_each(|n| trace += &format!("f {}\n", id(n)));
    }
    fs::write(&path, trace).unwrap();
    let advice = advice(path.to_str().unwrap(), &["--target", "mcu", "--rounds", "0"]);
    let names: Vec<&str> =
        advice["candidates"].as_array().unwrap().iter().filter_map(|one| one["placement"].as_str()).collect();
    assert!(names.len() == 2 && names.contains(&"micro-tlsf") && names.contains(&"tiny-heap"), "{names:?}");
    let of = |kind: &str| {
        let all = advice["suggestions"].as_array().unwrap();
        let one = all.iter().find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {advice}"));
        one["code"].as_str().unwrap_or_default().to_owned()
    };
    let pool = of("pool");
    assert!(pool.contains("FixedPool<[u64; 6], 3>") || pool.contains("FixedPool<[u64; 250], 1>"), "{pool}");
    let kept = of("kept");
    assert!(kept.contains("Kept<Heap, 1>") && kept.contains("2000, 2000"), "{kept}");
}

/// A run that is too large for the links of these two gets the next heap, with links of 32 bits.
#[test]
fn chips_with_much_memory_get_a_heap() {
    let (_folder, trace) = made((0..300).map(|n| format!("a {n} 3000 4")));
    let advice = advice(&trace, &["--target", "mcu", "--rounds", "0"]);
    assert_eq!(advice["placement"], "tlsf", "{advice}");
    let arena = advice["arena"].as_u64().unwrap();
    assert!((900_000..920_000).contains(&arena), "{arena}");
}

/// All code that can be advised, in one program.
#[test]
fn the_code_of_every_choice_compiles() {
    let named = ENTRIES
        .iter()
        .filter(|entry| entry.advised)
        .filter_map(|entry| Some(Choice::Named(entry.id, entry.code?)));
    let slab = Choice::Slab(Classes { sizes: vec![16, 24, 104] });
    let mut source = String::new();
    let mut main = String::from("fn main() {\n");
    let choices = named.chain([slab, Choice::Tiny, Choice::Growing]).map(|choice| choice.source(40_000));
    // What is suggested beside them.
    let pool = fixed_pool(44, 40);
    source += &format!(
        "mod pool {{\n{pool}pub fn run() {{ assert_eq!(POOL.alloc([0; 6]).unwrap().len(), 6); }}\n}}\n"
    );
    main += "pool::run();\n";
    for (n, code) in choices.chain([kept(40_000, 2, 100, 16_000)]).enumerate() {
        let code = code.replace("#[global_allocator]\n", "");
        let run = "pub fn run() {\n    let layout = std::alloc::Layout::new::<[u8; 100]>();\n    \
                   assert!(!unsafe { std::alloc::GlobalAlloc::alloc(&HEAP, layout) }.is_null());\n}";
        source += &format!("mod m{n} {{\n{code}{run}\n}}\n");
        main += &format!("m{n}::run();\n");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new(build(folder.path(), &(source + &main + "}\n"))).status().unwrap().success());
}

fn made(lines: impl IntoIterator<Item = String>) -> (tempfile::TempDir, String) {
    let (folder, [trace]) = files(["t.trace"]);
    fs::write(&trace, lines.into_iter().map(|line| line + "\n").collect::<String>()).unwrap();
    (folder, trace)
}

fn suggestion<'a>(advice: &'a Value, kind: &str) -> Option<&'a Value> {
    advice["suggestions"].as_array().unwrap().iter().find(|one| one["kind"] == kind)
}

#[test]
fn leaks_and_growth_are_warned_of_and_ranked() {
    // Every round keeps 48 bytes and gives 500 back.
    let lines = (0..200).flat_map(|n| {
        let (kept, scratch) = (2 * n, 2 * n + 1);
        [format!("a {kept} 48 8 #cache"), format!("a {scratch} 500 8"), format!("f {scratch}")]
    });
    let (_folder, trace) = made(lines);
    let advice = advice(&trace, &["--rounds", "0"]);
    let leaks = advice["leaks"].as_array().unwrap();
    assert_eq!(leaks.len(), 1);
    assert_eq!((&leaks[0]["blocks"], &leaks[0]["bytes"]), (&200.into(), &9600.into()));
    assert_eq!((&leaks[0]["tag"], &leaks[0]["growing"]), (&"cache".into(), &true.into()));
    assert!(advice["growth"]["per_run"].as_u64().unwrap() > 8000);
    let suggestions = advice["suggestions"].as_array().unwrap();
    let saved: Vec<u64> = suggestions.iter().map(|one| one["bytes_saved"].as_u64().unwrap()).collect();
    assert!(saved.is_sorted_by(|a, b| a >= b), "{saved:?}");
    let leak = suggestion(&advice, "leak").unwrap();
    // All but the largest scratch block goes.
    assert!(leak["bytes_saved"].as_u64().unwrap() >= 9500, "{leak}");
    let pool = suggestion(&advice, "pool").unwrap();
    assert_eq!(pool["calls_saved"], 400);
}

/// What would have prevented a leak stands under it, in the text and on the page: only what was tried, and only for its blocks.
#[test]
fn suggestions_stand_under_their_leaks() {
    let lines = (0..200).flat_map(|n| {
        let kept = format!("#^1\na {} 48 8 #cache", 2 * n);
        let other = (n % 40 == 0).then(|| format!("#^2\na {} 64 8", 1000 + n));
        [kept, format!("#^2\na {} 500 8\nf {}", 2 * n + 1, 2 * n + 1)].into_iter().chain(other)
    });
    let names = ["#^n 0 1 10", "#^n 0 1 20"].map(String::from);
    let ends = ["#^s add", "#^s serve", "#^f 1 10 1 0 0", "#^f 1 20 2 0 0"].map(String::from);
    let (_folder, trace) = made(names.into_iter().chain(lines).chain(ends));
    let advised = advice(&trace, &["--rounds", "0"]);
    let all = advised["suggestions"].as_array().unwrap();
    let leaks = advised["leaks"].as_array().unwrap();
    let of = |leak: &Value| -> Vec<String> {
        let numbers = leak["suggestions"].as_array().unwrap().iter();
        numbers.map(|n| all[n.as_u64().unwrap() as usize]["text"].as_str().unwrap().to_owned()).collect()
    };
    let (cache, other) = (of(&leaks[0]), of(&leaks[1]));
    assert!(cache.len() == 1 && cache[0].contains("free the blocks of 48 B under `cache`"), "{cache:?}");
    assert!(other.is_empty(), "{other:?}");
    let text = crate::printed(["advise", &trace, "--rounds", "0"]);
    let (_, under) = text.split_once("  200 asked for 48 B, tag `cache`").unwrap();
    let line = under.lines().nth(1).unwrap();
    assert!(line.starts_with("    saves ") && line.ends_with(&cache[0]), "{text}");
    let page = json(["view", &trace, "--json"]);
    let left: Vec<&Value> = page["suggestions"].as_array().unwrap().iter().map(|one| &one["left"]).collect();
    let tried: Vec<&&Value> =
        left.iter().filter(|left| left.as_array().is_some_and(|left| !left.is_empty())).collect();
    assert_eq!(tried.len(), 1, "{page}");
    let row = tried[0][0].as_array().unwrap();
    let call = row[2].as_u64().unwrap() as usize;
    let frame = page["who"]["nodes"][call][1].as_u64().unwrap() as usize;
    assert_eq!((&row[1], &row[3]), (&48.into(), &200.into()));
    assert_eq!(page["tags"][row[0].as_u64().unwrap() as usize], "cache");
    assert_eq!(page["who"]["frames"][frame][0], "add");
}

#[test]
fn a_run_that_settles_does_not_grow() {
    let lines = (0..64).map(|n| format!("a {n} 64 8"));
    let churn = (0..500).flat_map(|n| [format!("a {} 100 8", 100 + n), format!("f {}", 100 + n)]);
    let (_folder, trace) = made(lines.chain(churn).chain((0..64).map(|n| format!("f {n}"))));
    let advice = advice(&trace, &["--rounds", "0"]);
    assert_eq!(advice["growth"], Value::Null);
    assert_eq!(advice["leaks"].as_array().unwrap().len(), 0);
    assert!(suggestion(&advice, "leak").is_none());
}

#[test]
fn alignment_and_growing_blocks_are_tried_without() {
    // A block of 16 bytes at every 256: 240 bytes between them are of no use to blocks of 300.
    let lines = (0..32).flat_map(|n| [format!("a {n} 16 256"), format!("a {} 300 8", 100 + n)]);
    let (_folder, trace) = made(lines);
    let aligned = advice(&trace, &["--rounds", "0"]);
    let alignment = suggestion(&aligned, "alignment").unwrap();
    assert!(alignment["bytes_saved"].as_u64().unwrap() > 1000, "{aligned}");
    // Two blocks that grow in turns cannot grow in place.
    let mut lines = vec!["a 0 16 8".to_owned(), "a 1 16 8".to_owned()];
    lines.extend((2..60).flat_map(|n| [format!("r 0 {}", 16 * n), format!("r 1 {}", 16 * n)]));
    let (_folder, trace) = made(lines);
    let growing = advice(&trace, &["--rounds", "0"]);
    let growth = suggestion(&growing, "growth").unwrap();
    assert_eq!(growth["calls_saved"], 116);
    assert!(growth["bytes_saved"].as_u64().unwrap() > 0);
}

/// Blocks take whole granules, many times what such small ones ask for.
#[test]
fn tiny_blocks_get_a_heap() {
    let (_folder, trace) = made((0..4000).map(|n| format!("a {n} 1 1")));
    let advice = advice(&trace, &["--rounds", "0"]);
    let smallest = advice["smallest"].as_u64().unwrap();
    assert!((32_000..70_000).contains(&smallest), "{advice}");
    assert_eq!(advice["check_failures"], 0);
    let replayed = json(["replay", &trace, "--placement", "tlsf", "--rounds", "0", "--json"]);
    assert_eq!(replayed["placements"][0]["ok"], true, "{replayed}");
}

/// What alignments leave between blocks counts, however short the blocks are.
#[test]
fn aligned_blocks_get_a_heap() {
    let (_folder, trace) = made((0..100).map(|n| format!("a {n} 1 4096")));
    let advice = advice(&trace, &["--rounds", "0", "--target", "mcu"]);
    let smallest = advice["smallest"].as_u64().unwrap();
    assert!((99 * 4096..120 * 4096).contains(&smallest), "{advice}");
    assert_eq!(advice["check_failures"], 0);
    let replayed = json(["replay", &trace, "--placement", "tlsf", "--rounds", "0", "--json"]);
    assert_eq!(replayed["placements"][0]["ok"], true, "{replayed}");
}

/// The recorder's own frees at the end of a trace are no frees of the program.
#[test]
fn what_the_recorder_freed_is_left() {
    let (_folder, trace) =
        made(["# events=4 tail=3", "a 0 100 8", "a 1 50 8", "f 1", "f 0"].map(String::from));
    let advice = advice(&trace, &["--rounds", "0"]);
    assert_eq!(advice["leaks"][0]["bytes"], 100);
    assert_eq!(advice["events"], 3);
}
