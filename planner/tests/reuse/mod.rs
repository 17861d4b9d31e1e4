//! The cost of reuse against the truth.

use allotment_planner::deadline::Deadline;
use allotment_planner::model::{Buffer, Instance};
use allotment_planner::reuse::{Banks, Cost, PriceError, Priced, Prices, Uses, cheapest, curve};
use allotment_planner::solve::Options;
use allotment_planner::validate::validate;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use crate::common::generate::random;

/// The cost of a plan, written from the definition.
fn cost(instance: &Instance, uses: &Uses, prices: Prices, offsets: &[Option<u64>]) -> u64 {
    let buffers = instance.buffers();
    let bytes = |n: usize| offsets[n].map_or(0..0, |at| at..at + buffers[n].size);
    let stream = |n: usize| uses.streams.get(n).copied().unwrap_or(0);
    let mut total = 0;
    for b in 0..buffers.len() {
        let earlier = (0..buffers.len()).filter(|&a| {
            stream(a) != stream(b)
                && (buffers[a].start..buffers[a].end).all(|time| time < buffers[b].start)
                && bytes(a).start.max(bytes(b).start) < bytes(a).end.min(bytes(b).end)
        });
        let streams: std::collections::BTreeSet<u32> = earlier.map(stream).collect();
        total += prices.event * streams.len() as u64;
        if offsets[b].is_none() {
            total += prices.byte * uses.moves[b].unwrap_or(0);
        }
    }
    if let Some(banks) = prices.banks {
        let bank = |at: u64| (at / banks.bytes) % banks.count;
        let clash = |&&(a, b): &&(usize, usize)| match (offsets[a], offsets[b]) {
            (Some(a), Some(b)) => bank(a) == bank(b),
            _ => false,
        };
        total += prices.clash * uses.together.iter().filter(clash).count() as u64;
    }
    total
}

/// The least cost of any plan within `capacity`, by trying all offsets.
fn brute(
    instance: &Instance,
    uses: &Uses,
    prices: Prices,
    capacity: u64,
    offsets: &mut Vec<Option<u64>>,
) -> Option<u64> {
    let n = offsets.len();
    let Some(buffer) = instance.buffers().get(n) else {
        return Some(cost(instance, uses, prices, offsets));
    };
    let mut best: Option<u64> = None;
    let places = (0..=capacity).filter(|at| at % buffer.align == 0 && at + buffer.size <= capacity).map(Some);
    let moved = uses.moves[n].is_some().then_some(None);
    for place in places.chain(moved) {
        let fits = place.is_none_or(|at| {
            (0..n).all(|k| offsets[k].is_none_or(|there| crate::common::apart(instance, (k, there), (n, at))))
        });
        if fits {
            offsets.push(place);
            best = best.into_iter().chain(brute(instance, uses, prices, capacity, offsets)).min();
            offsets.pop();
        }
    }
    best
}

fn never() -> Deadline {
    Deadline::never()
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    #[test]
    fn the_cheapest_of_a_few_agrees_with_brute_force(
        list in proptest::collection::vec((1_u64..4, 0_i64..4, 1_i64..4, 0_u32..2, 0_u32..3, any::<bool>()), 1..=4),
        capacity in 3_u64..9, event in 0_u64..4, clash in 0_u64..3, byte in 0_u64..3, banks in (1_u64..4, 1_u64..3),
    ) {
        let buffers = list.iter().enumerate().map(|(n, &(size, start, length, shift, ..))| Buffer {
            align: 1 << shift,
            ..Buffer::new(n.to_string(), size, start, start + length)
        });
        let instance = Instance::new(buffers.collect()).unwrap();
        let n = instance.len();
        let uses = Uses {
            streams: list.iter().map(|item| item.4).collect(),
            together: (0..n).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|(a, b)| (a + b) % 2 == 1).collect(),
            moves: list.iter().map(|item| item.5.then_some(2 * item.0)).collect(),
        };
        let prices = Prices { event, clash, byte, banks: Some(Banks { count: banks.0, bytes: banks.1 }) };
        let least = brute(&instance, &uses, prices, capacity, &mut Vec::new());
        let priced = Priced::new(&instance, &uses, prices).unwrap();
        let found = cheapest(&priced, capacity, &Options::default(), &never());
        prop_assert_eq!(found.as_ref().map(|plan| plan.cost.total), least);
        if let Some(plan) = found {
            prop_assert!(plan.optimal && plan.peak <= capacity);
            prop_assert_eq!(cost(&instance, &uses, prices, &plan.offsets), plan.cost.total);
        }
    }
}

/// 150 buffers of four streams: cheaper than the smallest plan at its own peak, and never dearer at a larger one.
#[test]
fn more_memory_costs_fewer_events() {
    let instance = random(150, 16, 4);
    let uses = Uses { streams: (0..150).map(|n| n % 4).collect(), ..Uses::default() };
    let prices = Prices { event: 5, ..Prices::default() };
    let priced = Priced::new(&instance, &uses, prices).unwrap();
    let options = Options { threads: 1, ..Options::default() };
    let found = curve(&priced, 5, &options, &Deadline::after_looks(200));
    for (capacity, plan) in &found {
        let offsets: Vec<u64> = plan.offsets.iter().map(|offset| offset.unwrap()).collect();
        validate(&instance, &offsets, Some(*capacity)).unwrap();
        assert_eq!(cost(&instance, &uses, prices, &plan.offsets), plan.cost.total);
    }
    let totals: Vec<u64> = found.iter().map(|(_, plan)| plan.cost.total).collect();
    assert!(totals.is_sorted_by(|a, b| a >= b), "{totals:?}");
    assert!(totals.len() >= 3 && totals[1] < totals[0] * 3 / 4, "{totals:?}");
    // The plan of the least peak, not looked at for its cost.
    let plain = allotment_planner::solve::solve_within(&instance, &options, Deadline::after_looks(150), None);
    let plain: Vec<Option<u64>> = plain.offsets.into_iter().map(Some).collect();
    assert!(totals[0] < priced.cost(&plain).total, "{totals:?}, {:?}", priced.cost(&plain));
}

#[test]
fn what_cannot_be_priced_is_said() {
    let buffer = Buffer { tier: 1, ..Buffer::new("far", 8, 0, 1) };
    let far = Instance::new(vec![buffer]).unwrap();
    let wrong = |instance: &Instance, uses: Uses, prices| Priced::new(instance, &uses, prices).unwrap_err();
    assert_eq!(wrong(&far, Uses::default(), Prices::default()), PriceError::Shape("far".into()));
    let near = Instance::new(vec![Buffer::new("near", 8, 0, 1)]).unwrap();
    let pair = Uses { together: vec![(0, 7)], ..Uses::default() };
    assert_eq!(wrong(&near, pair, Prices::default()), PriceError::Pair(7));
    let none = Prices { banks: Some(Banks { count: 0, bytes: 1 }), ..Prices::default() };
    assert_eq!(wrong(&near, Uses::default(), none), PriceError::Banks);
    let priced = Priced::new(&near, &Uses::default(), Prices::default()).unwrap();
    assert!(cheapest(&priced, 7, &Options::default(), &never()).is_none());
    assert_eq!(cheapest(&priced, 8, &Options::default(), &never()).unwrap().cost, Cost::default());
}
