//! Instances at the edges: empty lifetimes, sizes of 0, equal buffers, fixed ones, aliases of aliases. All phases must mean the same by them.

mod common;

use std::time::Duration;

use allotment_planner::bounds::{clique_bound, load_bound, lower_bound};
use allotment_planner::boxes::{Join, boxes};
use allotment_planner::deadline::Deadline;
use allotment_planner::exact::{Answer, general};
use allotment_planner::exact::{Limits, perfect};
use allotment_planner::explain::explain;
use allotment_planner::greedy::descent::{Descent, Prefer, descend};
use allotment_planner::greedy::{self, Baseline, Conflicts, Fit, Order};
use allotment_planner::model::{Buffer, Gap, Instance, InstanceError};
use allotment_planner::read::read_csv;
use allotment_planner::reuse::{Priced, Prices, Uses, cheapest};
use allotment_planner::schedule::{Schedule, replay};
use allotment_planner::sections::Sections;
use allotment_planner::solve::{Options, Status, solve};
use allotment_planner::validate::validate;
use allotment_planner::write::{Planned, csv};
use common::{apart, brute_force, solved};
use proptest::option::weighted;
use proptest::prelude::*;

/// Size, alignment, start, steps, gap, fixed offset, alias, and whether it is equal to the one before.
type Draw = (u64, u64, i64, i64, Option<(i64, i64)>, Option<u64>, Option<usize>, bool);

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    let one = (
        0_u64..5,
        1_u64..3,
        0_i64..4,
        0_i64..4,
        weighted(0.15, (0_i64..3, 1_i64..3)),
        weighted(0.15, 0_u64..7),
        weighted(0.4, 0_usize..5),
        proptest::bool::weighted(0.25),
    );
    proptest::collection::vec(one, 1..6)
}

fn buffers(draws: &[Draw]) -> Vec<Buffer> {
    let mut buffers: Vec<Buffer> = Vec::new();
    for (n, &(size, align, start, steps, gap, fixed, alias, equal)) in draws.iter().enumerate() {
        let mut buffer = match buffers.last().filter(|_| equal) {
            Some(before) => Buffer { id: n.to_string(), ..before.clone() },
            None => Buffer { align, ..Buffer::new(n.to_string(), size, start, start + steps) },
        };
        if let Some((from, steps)) = gap.filter(|_| !equal) {
            let (start, end) = (buffer.start + from, (buffer.start + from + steps).min(buffer.end));
            buffer.gaps.extend((start < end).then_some(Gap { start, end, window: None }));
        }
        buffer.fixed = fixed.map(|offset| offset * buffer.align);
        buffer.alias = alias.filter(|&other| other < draws.len() && other != n);
        buffers.push(buffer);
    }
    buffers
}

/// The instance; none if two of its fixed buffers cannot both be, which the error must name.
fn instance(buffers: Vec<Buffer>) -> Option<Instance> {
    match Instance::new(buffers.clone()) {
        Ok(instance) => Some(instance),
        Err(InstanceError::FixedOverlap { first, second, time }) => {
            let place = |name: &str| buffers.iter().position(|buffer| buffer.id == name).unwrap();
            let (a, b) = (place(&first), place(&second));
            let loose = buffers.iter().map(|b| Buffer { fixed: None, ..b.clone() }).collect();
            let at = |n: usize| (n, buffers[n].fixed.unwrap());
            assert!(!apart(&Instance::new(loose).unwrap(), at(a), at(b)));
            assert!([a, b].iter().all(|&n| (buffers[n].start..buffers[n].end).contains(&time)));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Greedy plans, conflicts and sections.
fn check_greedy(instance: &Instance) {
    let buffers = instance.buffers();
    let conflicts = Conflicts::new(instance);
    let mut pairs = 0;
    for (a, own) in buffers.iter().enumerate() {
        let mut found = vec![false; buffers.len()];
        conflicts.each(a, |b| found[b] = true);
        for (b, (other, listed)) in buffers.iter().zip(found).enumerate() {
            assert_eq!(listed, a != b && own.meets(other), "{own:?} {other:?}");
            pairs += u64::from(listed);
        }
    }
    assert_eq!(Conflicts::count(instance), pairs / 2);
    for order in Order::ALL {
        for fit in [Fit::First, Fit::Best] {
            let order = greedy::ordered(instance, &conflicts, order, None);
            validate(instance, &greedy::place(instance, &conflicts, &order, fit), None).unwrap();
        }
    }
    let sections = Sections::new(buffers.iter().map(|b| (b.start, b.end)));
    for (n, buffer) in buffers.iter().enumerate() {
        assert_eq!(sections.first[n] < sections.last[n], buffer.start < buffer.end);
    }
    if !instance.is_plain() {
        return;
    }
    for rule in Baseline::ALL {
        validate(instance, &greedy::baseline(instance, &conflicts, rule), None).unwrap();
    }
    let never = Deadline::never();
    for prefer in [Prefer::Leftmost, Prefer::Longest] {
        for (mirror, aligned) in [(false, false), (false, true), (true, false), (true, true)] {
            let descent = Descent { prefer, mirror, aligned, noise: Some((99, 1)) };
            validate(instance, &descend(instance, descent, &never).unwrap(), None).unwrap();
            for join in [Join::Forced, Join::Longest] {
                let boxed = boxes(instance, join, 0.0, &Deadline::never()).unwrap();
                let packed = descend(&boxed.instance, descent, &never).unwrap();
                let offsets = boxed.unpack(&packed);
                validate(instance, &offsets, None).unwrap();
                assert_eq!(instance.peak(&offsets), boxed.instance.peak(&packed));
            }
        }
    }
    if let Some(offsets) = perfect::pack(instance, &never) {
        validate(instance, &offsets, None).unwrap();
    }
}

/// The driver finds and proves the optimum, whatever the threads and the seed.
fn check_driver(instance: &Instance, optimum: u64) {
    for (threads, seed) in [(1, 0), (1, 7), (3, 0)] {
        let options = Options { threads, seed, time_limit: Duration::from_secs(20), ..Options::default() };
        let solution = solve(instance, &options, None);
        validate(instance, &solution.offsets, None).unwrap();
        assert_eq!((solution.peak, solution.lower_bound), (optimum, optimum), "{instance:?}");
        assert_eq!(solution.status, Status::Optimal);
        assert!(solution.history.iter().all(|&(_, peak)| peak >= optimum), "{:?}", solution.history);
    }
    assert_eq!(solved(instance, Some(optimum), 20).status, Status::Fits);
    if let Some(less) = optimum.checked_sub(1) {
        assert_eq!(solved(instance, Some(less), 20).status, Status::Infeasible);
    }
    // Without time there is a plan, and no proof that is wrong.
    let hurried = solved(instance, None, 0);
    assert!(hurried.lower_bound <= optimum && hurried.peak >= optimum);
}

/// The buffers that are ever live, with their streams.
fn without_dead(instance: &Instance, uses: &Uses) -> (Instance, Uses) {
    let live: Vec<usize> = (0..instance.len()).filter(|&n| instance.buffers()[n].is_ever_live()).collect();
    let streams = live.iter().map(|&n| uses.streams[n]).collect();
    (instance.part(&live), Uses { streams, ..uses.clone() })
}

/// The exact search by itself, prices, what is written, and a replay of it.
fn check_others(instance: &Instance, optimum: u64) {
    let never = Deadline::never();
    let limits = Limits { nodes: 100_000, deadline: &never };
    let conflicts = Conflicts::new(instance);
    assert_ne!(general::search(instance, &conflicts, optimum, &limits), Answer::None);
    let below = optimum.checked_sub(1).map(|less| general::search(instance, &conflicts, less, &limits));
    assert!(!matches!(below, Some(Answer::Found(_))), "{below:?}");
    let solution = solved(instance, None, 20);
    let schedule = Schedule::of(instance.clone(), solution.clone());
    let read = read_csv(csv(Planned::new("x", &schedule)).as_bytes()).unwrap();
    replay(&schedule.written(), 2).unwrap();
    assert_eq!(&read, instance);
    let _ = explain(instance, &solution, Some(optimum / 2), &Deadline::never()).to_string();
    if instance.is_plain() {
        let uses = Uses { streams: (0..instance.len() as u32).map(|n| n % 2).collect(), ..Uses::default() };
        for prices in [Prices::default(), Prices { event: 3, ..Prices::default() }] {
            let priced = Priced::new(instance, &uses, prices).unwrap();
            let plan = cheapest(&priced, optimum, &Options::default(), &never).expect("the optimum fits");
            let offsets: Vec<u64> = plan.offsets.iter().map(|offset| offset.unwrap()).collect();
            validate(instance, &offsets, Some(optimum)).unwrap();
            assert_eq!(priced.cost(&plan.offsets), plan.cost);
            // What is never live waits for nothing.
            let (live, uses) = without_dead(instance, &uses);
            let alone = Priced::new(&live, &uses, prices).unwrap();
            let alone = cheapest(&alone, optimum, &Options::default(), &never).unwrap();
            assert!(!plan.optimal || !alone.optimal || plan.cost.total == alone.cost.total, "{instance:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_phases_mean_the_same(draws in draws()) {
        let Some(instance) = instance(buffers(&draws)) else { return Ok(()) };
        let optimum = brute_force(&instance);
        let never = &Deadline::never();
        for bound in [lower_bound(&instance), load_bound(&instance, never).unwrap(), clique_bound(&instance, 1000, never)] {
            prop_assert!(bound.bytes <= optimum, "{bound:?} {optimum}");
        }
        check_greedy(&instance);
        check_driver(&instance, optimum);
        check_others(&instance, optimum);
    }
}

/// What is never live shares its place with all others, and lies in the arena.
#[test]
fn empty_lifetimes_take_no_memory_of_others() {
    let list = vec![Buffer::new("a", 10, 3, 3), Buffer::new("b", 20, 3, 3), Buffer::new("c", 5, 0, 5)];
    let solution = solved(&Instance::new(list.clone()).unwrap(), None, 20);
    assert_eq!((solution.peak, solution.lower_bound, solution.status), (20, 20, Status::Optimal));
    // Under a fixed one as well.
    let fixed = Buffer { fixed: Some(30), ..list[1].clone() };
    let over = Buffer { fixed: Some(40), ..list[2].clone() };
    let solution = solved(&Instance::new(vec![list[0].clone(), fixed, over]).unwrap(), None, 20);
    assert_eq!((solution.peak, solution.status), (50, Status::Optimal));
    // A gap over the whole life is no other thing.
    let gap = Gap { start: 0, end: 5, window: None };
    let never = Buffer { gaps: vec![gap], ..Buffer::new("d", 7, 0, 5) };
    let solution = solved(&Instance::new(vec![never, list[2].clone()]).unwrap(), None, 20);
    assert_eq!((solution.peak, solution.status), (7, Status::Optimal));
}

/// Four that may share in a chain: the load says 3, and only a search of all orders and choices that 4 is the least.
#[test]
fn what_may_share_is_proved() {
    let shares = |id: &str, size, start, end, alias| Buffer { alias, ..Buffer::new(id, size, start, end) };
    let chains = [
        vec![
            shares("a", 3, 0, 2, None),
            shares("b", 3, 1, 3, Some(0)),
            shares("c", 3, 1, 4, Some(1)),
            shares("d", 3, 2, 5, Some(2)),
        ],
        vec![
            shares("a", 1, 0, 3, Some(1)),
            shares("b", 2, 0, 3, Some(2)),
            shares("c", 3, 0, 3, Some(3)),
            shares("d", 4, 0, 3, None),
        ],
    ];
    for chain in chains {
        let instance = Instance::new(chain).unwrap();
        let solution = solved(&instance, None, 20);
        assert_eq!(
            (solution.peak, solution.status),
            (brute_force(&instance), Status::Optimal),
            "{instance:?}"
        );
        assert!(solution.peak > load_bound(&instance, &Deadline::never()).unwrap().bytes);
    }
    // One that must lie apart from a fixed one, but for its place, which is above.
    let fixed = Buffer { fixed: Some(8), ..Buffer::new("f", 8, 0, 2) };
    let instance = Instance::new(vec![fixed, shares("g", 10, 0, 2, Some(0))]).unwrap();
    let solution = solved(&instance, None, 20);
    assert_eq!((solution.peak, solution.status, solution.offsets), (18, Status::Optimal, vec![8, 8]));
}

/// Larger instances, which take a search: what is never live among them changes nothing.
#[test]
fn what_is_never_live_changes_no_search() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut buffers: Vec<Buffer> = Vec::new();
        for n in 0..14 {
            let (start, steps) = (random.i64(0..6), random.i64(1..4));
            let align = 1 << random.u32(0..2);
            let live = Buffer::new(n.to_string(), random.u64(1..10), start, start + steps);
            buffers.push(Buffer { align, ..live });
        }
        let alone = solved(&Instance::new(buffers.clone()).unwrap(), None, 60);
        for n in 0..5 {
            let time = random.i64(0..9);
            buffers.insert(random.usize(..buffers.len()), Buffer::new(format!("dead {n}"), 9, time, time));
        }
        let among = solved(&Instance::new(buffers).unwrap(), None, 60);
        assert_eq!((among.peak, among.status), (alone.peak, Status::Optimal), "seed {seed}");
    }
}

/// No plan fits, which the bound says at once, and no time is left: there is a plan all the same.
#[test]
fn what_cannot_fit_has_a_plan_without_time() {
    let buffers = [Buffer::new("a", 64, 3, 7), Buffer::new("b", 16, 0, 5), Buffer::new("never", 9, 2, 2)];
    for (count, work) in [(2, None), (3, None), (2, Some(1)), (3, Some(1))] {
        let instance = Instance::new(buffers[..count].to_vec()).unwrap();
        let time_limit = if work.is_some() { Duration::MAX } else { Duration::ZERO };
        let options = Options { capacity: Some(1), time_limit, work, threads: 1, ..Options::default() };
        let solution = solve(&instance, &options, None);
        assert_eq!(solution.status, Status::Infeasible, "{count} {work:?}");
        validate(&instance, &solution.offsets, None).unwrap();
    }
}
