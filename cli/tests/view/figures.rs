//! What a report says, against figures that can be worked out by hand or in another way.

use std::collections::HashMap;
use std::path::Path;

use allotment_cli::view::{Placing, Report, Trace, report, report_within};
use allotment_planner::deadline::Deadline;
use allotment_trace::{Action, Reader};

use super::firmware;

fn read(text: &str) -> Trace {
    Trace::gather("test".into(), &mut Reader::new(text.as_bytes()).unwrap(), None).unwrap()
}

fn of(text: &str) -> Report {
    report(&read(text), Placing::GoodFit, None).unwrap()
}

#[test]
fn a_small_trace_is_drawn_exactly() {
    let report = of("a 1 16 8 #x\na 2 32 8 #y\nf 1\nr 2 40\na 3 8 8 #x\n");
    let totals = &report.totals;
    assert_eq!((totals.events, totals.blocks, totals.peak, totals.peak_event), (5, 3, 48, 1));
    assert_eq!((totals.live_blocks, totals.live_bytes, totals.requested), (2, 48, 96));
    assert_eq!(report.series.live.max, [16, 48, 32, 40, 48]);
    assert_eq!(report.series.live.min, report.series.live.max);
    let stack = report.stack.as_ref().unwrap();
    let names: Vec<&str> = stack.tags.iter().map(|&tag| &*report.tags[tag as usize]).collect();
    assert_eq!(names, ["y", "x"]);
    assert_eq!(stack.live, [vec![0, 32, 32, 40, 40], vec![16, 16, 0, 0, 8], vec![0; 5]]);
    assert_eq!(
        report.live_groups.iter().map(|group| (group.size, group.count)).collect::<Vec<_>>(),
        [(40, 1), (8, 1)]
    );
    assert_eq!(report.largest[0].size, 40);
}

/// Real traces: every figure over time agrees with a count that knows nothing of buckets, and no bucket leaves a value out.
#[test]
fn buckets_hold_every_value() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/lua_small.trace.zst");
    let trace = Trace::read(&path, None).unwrap();
    let report = report(&trace, Placing::GoodFit, None).unwrap();
    let live = &report.series.live;
    let mut sizes = HashMap::new();
    let (mut now, mut peak) = (0, 0);
    let mut seen = vec![(u64::MAX, 0); report.buckets];
    for (n, checked) in allotment_trace::open(&path).unwrap().take(trace.events.len()).enumerate() {
        let event = checked.unwrap().event;
        let size = match event.action {
            Action::Allocate { size, .. } | Action::Reallocate { size } => size,
            Action::Free => 0,
        };
        now = now - sizes.insert(event.id, size).unwrap_or(0) + size;
        peak = peak.max(now);
        let bucket =
            (0..report.buckets).rev().find(|bucket| bucket * trace.events.len() / report.buckets <= n);
        let (min, max) = &mut seen[bucket.unwrap()];
        (*min, *max) = ((*min).min(now), (*max).max(now));
    }
    assert_eq!(peak, report.totals.peak);
    assert_eq!(seen, live.min.iter().copied().zip(live.max.iter().copied()).collect::<Vec<_>>());
    for (range, bound) in
        [(&report.series.taken, report.totals.taken), (&report.series.span, report.totals.arena)]
    {
        assert_eq!(range.max.len(), report.buckets);
        assert!(range.max.iter().all(|&value| value <= bound));
    }
    assert!(report.series.taken.max.iter().zip(&live.max).all(|(taken, live)| taken >= live));
}

/// Every request is satisfied by the arena that is named, and some request is not by one that is smaller.
#[test]
fn the_arena_is_the_smallest() {
    let trace = read(&firmware::trace(4000, "net"));
    for placing in [Placing::GoodFit, Placing::FirstFit, Placing::BestFit] {
        let found = report(&trace, placing, None).unwrap().totals;
        let again = report(&trace, placing, Some(found.arena)).unwrap().totals;
        assert_eq!((found.failed, again.failed), (0, 0), "{placing}");
        let less = report(&trace, placing, Some(found.arena - found.granule)).unwrap().totals;
        assert!(less.failed > 0, "{placing} needs less than {}", found.arena);
    }
    let buddies = report(&trace, Placing::Buddy, None).unwrap().totals;
    assert_eq!(buddies.failed, 0);
}

/// However early the search for the smallest arena is cut short, an arena that satisfies the trace comes of it, and the
/// search ends at once.
#[test]
fn a_search_that_is_cut_short_has_an_arena() {
    let trace = read(&firmware::trace(4000, "net"));
    let whole = report(&trace, Placing::FirstFit, None).unwrap().totals;
    assert!(whole.smallest);
    let mut last = u64::MAX;
    let mut cut = 0;
    for looks in (0..).map(|n| n * 3) {
        let deadline = Deadline::after_looks(looks);
        let totals = report_within(&trace, Placing::FirstFit, None, &deadline).unwrap().totals;
        assert_eq!(totals.failed, 0, "{looks} looks");
        assert!(totals.arena >= whole.arena && totals.arena <= last, "{looks} looks");
        // Once by the replay that is given up, and once by the search.
        assert!(deadline.late().load(std::sync::atomic::Ordering::Relaxed) <= 2, "{looks} looks");
        last = totals.arena;
        if totals.smallest {
            break;
        }
        cut += 1;
    }
    assert_eq!(last, whole.arena);
    assert!(cut > 12, "{cut}");
}

/// The stack, at the moments of the most, adds up to what is live; the map to what blocks took.
#[test]
fn parts_add_up() {
    let report = of(&firmware::trace(30_000, "net"));
    let stack = report.stack.as_ref().unwrap();
    for (bucket, &live) in report.series.live.max.iter().enumerate() {
        assert_eq!(stack.live.iter().map(|line| line[bucket]).sum::<u64>(), live, "bucket {bucket}");
    }
    let times = report.times.as_ref().unwrap();
    assert_eq!(times.len(), report.buckets + 1);
    assert!(times.is_sorted());
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let map = &report.map;
    assert_eq!(map.cells.len(), map.columns * map.rows);
    let full: f64 = map.cells.chars().map(|cell| letters.find(cell).unwrap() as f64 / 63.0).sum();
    let mean = |range: &[u64]| range.iter().sum::<u64>() as f64 / range.len() as f64;
    let taken = (mean(&report.series.taken.min) + mean(&report.series.taken.max)) / 2.0;
    let drawn = full / map.cells.len() as f64 * report.totals.arena as f64;
    assert!((drawn / taken - 1.0).abs() < 0.03, "{drawn} B are drawn of {taken} B");
    assert!(report.suggestions.iter().any(|each| each.advice.contains(" of 48 B")));
    assert!(report.suggestions.is_sorted_by_key(|each| std::cmp::Reverse(each.saves)));
}

/// What the recorder freed at the end is live; an end of other events is the program's own.
#[test]
fn the_recorders_own_frees_are_left_out() {
    let closed = of("# events=4 tail=2\na 1 10 8\na 2 20 8\nf 1\nf 2\n");
    assert_eq!((closed.totals.events, closed.totals.closing, closed.totals.live_bytes), (2, 2, 30));
    let own = of("# events=4 tail=1\na 1 10 8\na 2 20 8\nf 1\nf 2\n");
    assert_eq!((own.totals.events, own.totals.closing, own.totals.live_bytes), (4, 0, 0));
}

/// No events, events without a size, the largest there are: a report or an error, and no panic.
#[test]
fn odd_traces_are_no_trouble() {
    assert_eq!(of("").totals.events, 0);
    assert_eq!(of("# a comment\n").totals.arena, 8);
    assert_eq!(of("a 1 0 0\n").totals.live_blocks, 1);
    let aligned = of("a 1 100 4096\na 2 100 65536\nf 1\nf 2\n");
    assert_eq!(aligned.totals.failed, 0);
    let huge = of("a 1 20000000000 8\nf 1\n").totals;
    assert_eq!((huge.granule, huge.failed), (256, 0));
    for text in [format!("a 1 {} 8\n", 1_u64 << 50), format!("a 1 8 {}\n", 1_u64 << 62)] {
        let error = report(&read(&text), Placing::GoodFit, None).unwrap_err();
        assert!(error.to_string().starts_with("no arena"), "{error}");
    }
    let mut reader = Reader::new(&b"a 1 9000000000000000 8\n"[..]).unwrap();
    let error = Trace::gather("test".into(), &mut reader, None).unwrap_err();
    assert_eq!(error.to_string(), "more than 4 PiB are live after 0 events");
    assert!(report(&read("a 1 8 8\n"), Placing::GoodFit, Some(3)).is_err());
    let error =
        Trace::gather("test".into(), &mut Reader::new(&b"a 1 8 8\nf 2\n"[..]).unwrap(), None).unwrap_err();
    assert_eq!(error.to_string(), "line 2: block 2 is freed, but not live");
}

/// Each kind of suggestion, and nothing where nothing is wrong.
#[test]
fn suggestions_name_what_is_wrong() {
    let kinds = |text: &str| -> Vec<String> {
        let report = serde_json::to_value(of(text)).unwrap();
        let each = report["suggestions"].as_array().unwrap().iter();
        each.map(|each| each["kind"].as_str().unwrap().to_owned()).collect()
    };
    let repeat = |times: u64, event: &dyn Fn(u64) -> String| (0..times).map(event).collect::<String>();
    assert_eq!(kinds("a 1 64 8\na 2 64 8\nf 2\nf 1\n"), [""; 0]);
    assert_eq!(kinds("a 1 64 8\na 2 64 8\nf 2\n"), ["leak"]);
    // 8 of each 16 bytes live on: what they lie between has no room for 24 bytes.
    let holes = repeat(200, &|n| format!("a {n} 16 8\n")) + &repeat(100, &|n| format!("f {}\n", 2 * n));
    let holes = holes
        + &repeat(40, &|n| format!("a {} 24 8\n", 1000 + n))
        + &repeat(40, &|n| format!("f {}\n", 1000 + n));
    let holes = holes + &repeat(100, &|n| format!("a {} 24 8\n", 2000 + n));
    assert!(kinds(&holes).contains(&"fragmentation".into()), "{:?}", kinds(&holes));
    let odd = repeat(100, &|n| format!("a {n} 9 8\n")) + &repeat(100, &|n| format!("f {n}\n"));
    assert_eq!(kinds(&odd), ["rounding"]);
    let churn = repeat(1000, &|n| format!("a {n} 64 8\nf {n}\n"));
    assert_eq!(kinds(&churn), ["churn"]);
    let growing = repeat(1000, &|n| format!("a {n} 64 8\n")) + &repeat(1000, &|n| format!("f {n}\n"));
    assert_eq!(kinds(&growing), [""; 0], "what is freed in the end does not grow");
    let growing = repeat(1000, &|n| format!("a {n} 64 8\n"));
    assert_eq!(kinds(&growing), ["leak", "growth"]);
    let moving = "a 1 64 8\na 2 64 8\n".to_owned()
        + &repeat(100, &|n| format!("r {} {}\n", 1 + n % 2, 72 + 8 * n))
        + "f 1\nf 2\n";
    assert!(kinds(&moving).contains(&"moves".into()), "{:?}", kinds(&moving));
}
