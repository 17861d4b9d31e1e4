//! Random instances with every kind of constraint.

use crate::oracle;
use allotment::plan::{Buffer, Interval, RULES, load, load_at, try_plan, validate};
use proptest::prelude::*;

/// The random values from which a buffer is made, including its gap and its list of other buffers.
#[derive(Clone, Debug)]
struct Draw {
    size: u64,
    align: u64,
    start: u64,
    length: u64,
    gap: Option<(u64, u64)>,
    fixed: Option<u64>,
    hint: Option<u64>,
    alias: Option<usize>,
    apart: Option<usize>,
}

fn draw(n: usize, most: u64) -> impl Strategy<Value = Vec<Draw>> {
    let one = (
        (0..=most, 0..4u32, 0..12u64, 0..6u64),
        proptest::option::weighted(0.2, (0..4u64, 1..3u64)),
        proptest::option::weighted(0.05, 0..4u64),
        proptest::option::weighted(0.2, 0..most * 2),
        proptest::option::weighted(0.5, 0..n),
        proptest::option::weighted(0.1, 0..n),
    );
    let one = one.prop_map(|((size, shift, start, length), gap, fixed, hint, alias, apart)| {
        let align = 1 << shift;
        Draw { size, align, start, length, gap, fixed: fixed.map(|k| k * align), hint, alias, apart }
    });
    proptest::collection::vec(one, n)
}

/// Makes the buffers, with aliases that are valid half of the time, and passes them to `then`.
fn with_buffers(draws: &[Draw], then: impl FnOnce(&[Buffer])) {
    let gaps: Vec<Vec<Interval>> = draws
        .iter()
        .map(|d| {
            let gap = d.gap.map(|(at, length)| Interval::new(d.start + at..d.start + at + length));
            gap.into_iter()
                .filter(|gap| gap.end <= d.start + d.length && gap.end - gap.start < d.length)
                .collect()
        })
        .collect();
    let apart: Vec<Vec<usize>> = draws
        .iter()
        .enumerate()
        .map(|(i, d)| d.apart.into_iter().filter(|&other| other != i && other < draws.len()).collect())
        .collect();
    let mut buffers: Vec<Buffer> = Vec::new();
    for (i, d) in draws.iter().enumerate() {
        let mut b = Buffer::new(d.size, d.start..d.start + d.length).align(d.align);
        b = b.gaps(&gaps[i]).apart_from(&apart[i]);
        (b.fixed, b.hint) = (d.fixed, d.hint);
        b.alias = d.alias.filter(|&input| input < i);
        if let Some(input) = b.alias.filter(|&n| d.size % 2 == 0 && b.gaps.is_empty() && buffers[n].end > 0) {
            // So that the output begins when the input ends.
            (b.start, b.end) = (buffers[input].end - 1, buffers[input].end - 1 + d.length);
        }
        buffers.push(b);
    }
    then(&buffers);
}

fn check<const N: usize>(buffers: &[Buffer]) -> Option<(u64, u64)> {
    let buffers: &[Buffer; N] = buffers.try_into().unwrap();
    let plan = match try_plan(buffers, &RULES) {
        Ok(plan) => plan,
        // The only error that the draw does not rule out.
        Err(allotment::plan::PlanError::FixedOverlap(..)) => return None,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(oracle::paint(buffers, plan.offsets()), Ok(plan.peak()));
    assert_eq!(plan.lower_bound(), load(buffers).bound, "both ways of finding the bound agree");
    for rule in RULES {
        let alone = try_plan(buffers, &[rule]).unwrap();
        assert_eq!(oracle::paint(buffers, alone.offsets()), Ok(alone.peak()), "{rule:?}");
        assert!(plan.peak() <= alone.peak(), "{rule:?} alone is better");
    }
    Some((plan.peak(), plan.lower_bound()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_right(draws in draw(14, 24)) {
        with_buffers(&draws, |buffers| { check::<14>(buffers); });
    }

    /// The bound is at most the optimum, and the plan at least.
    #[test]
    fn the_optimum_lies_between(draws in draw(4, 6)) {
        with_buffers(&draws, |buffers| if let Some((peak, bound)) = check::<4>(buffers) {
            let optimum = oracle::optimum(buffers);
            assert!(bound <= optimum && optimum <= peak, "{bound} {optimum} {peak}");
        });
    }

    /// The library's validator and the painter agree on any offsets.
    #[test]
    fn validators_agree(draws in draw(5, 8), offsets in proptest::collection::vec(0..20u64, 5)) {
        with_buffers(&draws, |buffers| {
            let ours = validate(buffers, &offsets, u64::MAX);
            let painted = oracle::paint(buffers, &offsets);
            assert_eq!(ours.ok(), painted.clone().ok(), "{ours:?} {painted:?}");
        });
    }

    /// The reported bytes are needed at the worst step, and no more at any other.
    #[test]
    fn the_worst_moment(draws in draw(12, 24)) {
        with_buffers(&draws, |buffers| {
            let worst = load(buffers);
            let most = (0..30).map(|step| load_at(buffers, step)).max().unwrap();
            assert_eq!((worst.bytes, load_at(buffers, worst.step)), (most, most));
        });
    }
}
