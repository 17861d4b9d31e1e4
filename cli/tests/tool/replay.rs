//! `allotment replay`.

use std::fs;

use crate::{allotment, data, files, json};
use serde_json::Value;

fn replayed<'a>(report: &'a Value, placement: &str) -> &'a Value {
    let placements = report["placements"].as_array().unwrap();
    placements.iter().find(|one| one["placement"] == placement).unwrap_or_else(|| panic!("{placement}"))
}

#[test]
fn every_placement_replays_a_real_run() {
    let trace = data("espeak.trace.zst");
    let report =
        json(["replay", trace.to_str().unwrap(), "--all", "--arena", "2M", "--rounds", "3", "--json"]);
    assert_eq!(report["events"], 2317);
    let peak = report["peak"].as_u64().unwrap();
    let names = [
        "tlsf",
        "first-fit",
        "best-fit",
        "buddy",
        "slab",
        "tiered",
        "linked-list",
        "buddy-system",
        "talc",
        "rlsf",
    ];
    for name in names {
        let one = replayed(&report, name);
        assert_eq!((&one["ok"], &one["failures"]), (&true.into(), &0.into()), "{name}");
        let smallest = one["smallest"].as_u64().unwrap();
        assert!(smallest >= peak && smallest < 2 * peak, "{name}: {smallest}");
        assert!(one["time"].as_f64().unwrap() > 0.0, "{name}");
    }
    assert_eq!(replayed(&report, "tlsf")["time"], 1.0);
    // Nothing is used again: the run does not fit, which is no reason to fail unless it was asked for.
    assert_eq!(replayed(&report, "bump")["ok"], false);
    let output = allotment(["replay", trace.to_str().unwrap(), "--placement", "bump", "--no-smallest"]);
    assert_eq!(output.status.code(), Some(1));
}

/// Blocks of 4 GiB and more are replayed without memory for all of them, and heaps are advised for them.
#[test]
fn long_blocks_are_replayed() {
    let (_folder, [trace]) = files(["t.trace"]);
    let gib = 1_u64 << 30;
    let text =
        format!("a 0 {} 256\na 1 700 8\nf 0\na 2 {} 256\na 3 {} 256\nf 1\n", 5 * gib, 4 * gib, gib / 2);
    std::fs::write(&trace, text).unwrap();
    let report = json(["replay", &trace, "--placement", "tlsf,best-fit", "--rounds", "0", "--json"]);
    assert_eq!(report["peak"], 5 * gib + 700);
    for name in ["tlsf", "best-fit"] {
        let one = replayed(&report, name);
        assert_eq!(one["ok"], true, "{one}");
        assert!(one["smallest"].as_u64().unwrap() < 6 * gib, "{one}");
    }
    let advice = json(["advise", &trace, "--rounds", "0", "--json"]);
    assert_eq!((&advice["check_failures"], &advice["sparse"]), (&0.into(), &true.into()));
    // More than a placement can index is refused.
    std::fs::write(&trace, format!("a 0 {} 256\n", 40 * gib)).unwrap();
    let output = allotment(["replay", &trace, "--rounds", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no placement can use an arena of more than"));
}

/// A byte less than the smallest arena is too little, and the arena itself is enough.
#[test]
fn the_smallest_arena_is_the_smallest() {
    let (_folder, [trace]) = files(["t.trace"]);
    // 40 blocks of 100 to 490 bytes, every second one freed, then larger ones in the gaps and behind.
    let mut text = String::new();
    for n in 0..40 {
        text += &format!("a {n} {} 8\n", 100 + n * 10);
    }
    for n in (0..40).step_by(2) {
        text += &format!("f {n}\n");
    }
    for n in 40..50 {
        text += &format!("a {n} 700 8\n");
    }
    std::fs::write(&trace, text).unwrap();
    let replay = |placement: &str, arena: Option<u64>| {
        let mut args = ["replay", &trace, "--rounds", "0", "--json", "--placement", placement]
            .map(String::from)
            .to_vec();
        if let Some(arena) = arena {
            args.extend(["--arena".into(), arena.to_string(), "--no-smallest".into()]);
        }
        let output = allotment(&args);
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    for placement in ["tlsf", "tlsf16", "first-fit", "best-fit", "slab", "linked-list", "talc"] {
        let (_, report) = replay(placement, None);
        let smallest = replayed(&report, placement)["smallest"].as_u64().unwrap();
        let (status, report) = replay(placement, Some(smallest));
        assert_eq!((status, &replayed(&report, placement)["ok"]), (Some(0), &true.into()), "{placement}");
        let (status, report) = replay(placement, Some(smallest - 16));
        let one = replayed(&report, placement);
        assert_eq!((status, &one["ok"]), (Some(1), &false.into()), "{placement}");
        assert!(one["failures"].as_u64().unwrap() > 0 && one["failed_event"].is_u64());
    }
}

#[test]
fn fragmentation_is_what_the_definition_says() {
    let (_folder, [trace]) = files(["t.trace"]);
    // 12 bytes take 16: a quarter of what is used is waste. One arena, no gaps: nothing free lies outside the largest.
    std::fs::write(&trace, "a 0 12 8\na 1 12 8\n").unwrap();
    let report =
        json(["replay", &trace, "--placement", "first-fit", "--arena", "4K", "--rounds", "0", "--json"]);
    let one = replayed(&report, "first-fit");
    assert_eq!((&one["internal_fragmentation"], &one["external_fragmentation"]), (&0.25.into(), &0.0.into()));
    assert_eq!(one["used_peak"], 32);
}

/// A request for nothing gets a block, but adds nothing to the peak, in every command.
#[test]
fn requests_for_nothing_add_nothing_to_the_peak() {
    let (_folder, [trace]) = files(["zero.trace"]);
    let text: String = (0..100).map(|n| format!("a {n} 0 8\n")).collect();
    fs::write(&trace, text + "a 100 8 8\nr 7 5\nr 7 0\nf 100\nf 3\n").unwrap();
    let replayed = json(["replay", &trace, "--placement", "tlsf", "--rounds", "0", "--json"]);
    let advised = json(["advise", &trace, "--rounds", "0", "--json"]);
    let who = json(["who", &trace, "--json"]);
    assert_eq!(
        (&replayed["peak"], &advised["peak"], &who["total"]["peak"]),
        (&13.into(), &13.into(), &13.into())
    );
    assert_eq!(replayed["placements"][0]["ok"], true);
}
