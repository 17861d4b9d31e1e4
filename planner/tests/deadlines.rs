//! Every phase keeps to its limit, on instances that are built to be bad for it.
//!
//! Each phase is given a deadline that passes after a number of looks at it, whatever the time is, and may do little work after that,
//! counted in looks as well. A phase that did not look at all would run for minutes or hours, which the generous bound tells apart.

#[path = "common/generate.rs"]
mod generate;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use allotment_planner::bounds::{clique_bound, load_bound};
use allotment_planner::boxes::{Join, boxes};
use allotment_planner::deadline::Deadline;
use allotment_planner::exact::skyline::{Order, Pick, Problem, Search, Strategy};
use allotment_planner::exact::{Limits, general, perfect};
use allotment_planner::explain::explain;
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::greedy::Conflicts;
use allotment_planner::greedy::repair::Repair;
use allotment_planner::model::{Buffer, Gap, Instance};
use allotment_planner::sections::Sections;
use allotment_planner::solve::{Options, solve, solve_within};
use allotment_planner::transform::{rematerialise, reorder, spill};
use allotment_planner::validate::validate;
use generate::{perfect_packing, random};

/// Looks at a deadline before it passes: about a tenth of a second of work.
const LOOKS: u64 = 100;

/// Looks at it after it has passed: several per thread, and what the first bound and the first plan may still do.
const LATE: u64 = 120;

/// What only a phase without a limit takes, even on a busy machine.
const FAR_TOO_LONG: Duration = Duration::from_secs(30);

/// Runs a phase with a deadline, and fails if it goes on after that.
fn in_time<T>(phase: impl FnOnce(Deadline) -> T) -> T {
    in_looks(LOOKS, phase)
}

/// Does the same with a deadline that passes after `looks`.
fn in_looks<T>(looks: u64, phase: impl FnOnce(Deadline) -> T) -> T {
    let start = Instant::now();
    let deadline = Deadline::after_looks(looks);
    let late = deadline.late();
    let result = phase(deadline);
    let (took, late) = (start.elapsed(), late.load(Relaxed));
    assert!(took < FAR_TOO_LONG, "{took:?}");
    assert!(late <= LATE, "{late} looks after the deadline had passed");
    result
}

fn instance(buffers: impl IntoIterator<Item = Buffer>) -> Instance {
    Instance::new(buffers.into_iter().collect()).unwrap()
}

/// A heap that grows: most buffers live to the end, and every fifth is short. More pairs are live at once than are listed.
fn growing(count: i64) -> Instance {
    instance((0..count).map(|n| {
        let end = if n % 5 == 0 { 2 * n + 1 } else { 3 * count - (n * 7919) % count };
        Buffer::new(n.to_string(), 8 + (n as u64 * 37) % 600, 2 * n, end)
    }))
}

/// Buffers that are all live together, with many gaps that go past each other.
fn gappy(count: i64, gaps: i64) -> Instance {
    instance((0..count).map(|n| {
        let gap = |k: i64| Gap { start: 10 * k + n % 7, end: 10 * k + n % 7 + 2, window: None };
        let buffer = Buffer::new(n.to_string(), 100 + (n as u64 * 31) % 900, -1, 10 * gaps + 20);
        Buffer { gaps: (0..gaps).map(gap).collect(), ..buffer }
    }))
}

/// Buffers that may all share one place.
fn sharing(count: usize) -> Instance {
    instance((0..count).map(|n| {
        let alias = (n > 0).then_some(n / 2);
        Buffer { alias, ..Buffer::new(n.to_string(), 1 + n as u64 % 90, 0, 10 + n as i64) }
    }))
}

/// Half of the buffers end where the other half starts.
fn abutting(count: i64) -> Instance {
    instance((0..count).map(|n| {
        let (start, end) = if n % 2 == 0 { (-1 - n, 0) } else { (0, 1 + n) };
        Buffer::new(n.to_string(), 64, start, end)
    }))
}

/// Operators that each read the results of a few before them, and are otherwise free to move.
fn wide(count: usize) -> Graph {
    let tensor = |n: usize, kind| {
        let bytes = 1 + (n as u64 * 7919) % 1000;
        Tensor { name: format!("t{n}"), shape: vec![bytes], dtype: "u8".into(), bytes, kind }
    };
    let mut graph = Graph { tensors: vec![tensor(0, Kind::Input)], ..Graph::default() };
    for n in 1..=count {
        graph.tensors.push(tensor(n, if n == count { Kind::Output } else { Kind::Intermediate }));
        let inputs = [n / 2, n / 3, n.saturating_sub(200)].to_vec();
        let op = Op { name: format!("op{n}"), inputs, outputs: vec![n], ..op() };
        graph.ops.push(op);
    }
    graph
}

fn op() -> Op {
    Op {
        name: String::new(),
        kind: "Add".into(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        sharing: Sharing::None,
        cost: 1,
    }
}

#[test]
fn bounds() {
    let many = random(300_000, 1000, 1);
    assert!(load_bound(&many, &Deadline::after_looks(1)).is_none());
    in_time(|deadline| clique_bound(&gappy(4000, 300), usize::MAX, &deadline));
    in_time(|deadline| load_bound(&sharing(60_000), &deadline));
}

#[test]
fn conflicts() {
    assert!(in_time(|deadline| Conflicts::within(&growing(200_000), &deadline)).is_none());
}

#[test]
fn packing_into_boxes_keeps_to_it() {
    let abutting = abutting(200_000);
    // The buffers are taken in after about 300 looks; then they are joined.
    for looks in [LOOKS, 500] {
        assert!(in_looks(looks, |deadline| boxes(&abutting, Join::Longest, 0.0, &deadline)).is_none());
    }
    assert!(in_time(|deadline| boxes(&abutting, Join::Longest, 0.1, &deadline)).is_none());
}

#[test]
fn exact_searches() {
    let packed = perfect_packing(9000, 40_000, 1 << 30, 3);
    let sections = Sections::new(packed.buffers().iter().map(|b| (b.start, b.end)));
    let problem = Problem {
        first: sections.first,
        last: sections.last,
        size: packed.buffers().iter().map(|b| b.size as u32).collect(),
        align: vec![1; packed.len()],
        sections: sections.count,
    };
    for (section, order) in [(Pick::Fewest, Order::Total), (Pick::LowestLeft, Order::Size)] {
        let mut search = Search::new(&problem, 1 << 30);
        in_time(|deadline| {
            search.run(Strategy { order, section, seed: 1 }, &Limits { nodes: u64::MAX, deadline: &deadline })
        });
    }
    for instance in [gappy(400, 100), sharing(2000)] {
        let conflicts = Conflicts::new(&instance);
        in_time(|deadline| {
            general::search(&instance, &conflicts, 150_000, &Limits { nodes: u64::MAX, deadline: &deadline })
        });
    }
}

#[test]
fn perfect_packings() {
    let packed = perfect_packing(60_000, 40_000, 1 << 30, 3);
    assert_eq!(in_time(|deadline| perfect::pack(&packed, &deadline)), None);
}

#[test]
fn repairs() {
    let instance = random(20_000, 3000, 5);
    let conflicts = Conflicts::new(&instance);
    let plan = solve(&instance, &Options { time_limit: Duration::ZERO, ..Options::default() }, None);
    let mut repair = Repair::new(&instance, &conflicts, 1, plan.offsets, 1);
    assert!(!in_time(|deadline| repair.run(u32::MAX, &deadline)));
}

/// The whole search, of which every phase looks at the same clock. The plan is valid all the same.
#[test]
fn searches() {
    let cases = [
        // More than 12,000 buffers, and more than 50 million pairs: only descents, each of many steps.
        growing(14_000),
        // As many as are still searched exactly, with as many sections.
        growing(11_000),
        random(11_000, 4000, 2),
        abutting(60_000),
        gappy(1500, 200),
        gappy(20_000, 3),
        sharing(20_000),
    ];
    for instance in cases {
        for threads in [1, 3] {
            let options = Options { threads, ..Options::default() };
            let plan = in_time(|deadline| solve_within(&instance, &options, deadline, None));
            assert_eq!(validate(&instance, &plan.offsets, None), Ok(()), "{}", instance.len());
        }
        // By the clock, too.
        let options = Options { time_limit: Duration::from_millis(300), ..Options::default() };
        let start = Instant::now();
        let plan = solve(&instance, &options, None);
        assert!(start.elapsed() < FAR_TOO_LONG);
        eprintln!("{} buffers: {:?}", instance.len(), plan.elapsed);
    }
}

/// A search ends when it is interrupted, with a valid plan.
#[test]
fn interruptions() {
    let options = Options { time_limit: 2 * FAR_TOO_LONG, ..Options::default() };
    let interrupt = options.interrupt.clone();
    let instance = perfect_packing(11_000, 40_000, 1 << 30, 3);
    let watcher = |_| interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
    let plan = in_time(|_| solve(&instance, &options, Some(&watcher)));
    assert_eq!(validate(&instance, &plan.offsets, None), Ok(()));
}

#[test]
fn transforms() {
    let lowering = Lowering::default();
    let graph = wide(3000);
    let reordered = in_time(|deadline| reorder(&graph, lowering, false, &deadline));
    assert!(reordered.after <= reordered.before && !reordered.optimal);
    in_time(|deadline| rematerialise(&graph, lowering, u64::MAX, &deadline));
    let spilled = in_time(|deadline| spill(&graph, lowering, 5000, &deadline)).unwrap();
    assert!(!spilled.optimal);
    let plan = solve(&spilled.instance, &Options { time_limit: Duration::ZERO, ..Options::default() }, None);
    assert!(plan.bound.bytes <= 5000, "{}", plan.bound.bytes);
}

#[test]
fn explanations() {
    let instance = growing(150_000);
    let plan = solve(&instance, &Options { time_limit: Duration::ZERO, ..Options::default() }, None);
    in_time(|deadline| explain(&instance, &plan, None, &deadline));
}
