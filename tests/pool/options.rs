//! Options that cannot work are refused before anything is reserved.

use super::MIB;
use allotment::pool::{
    Adaptive, Age, Captures, Checks, DevicePool, Growth, Limit, PoolError, PoolOptions, Reuse,
};
use allotment::sim::DeviceMemory;

#[test]
fn options_that_cannot_work_are_named() {
    let wrong = [
        ("limit", PoolOptions::new().limit(Limit::Fraction(0.0))),
        ("limit", PoolOptions::new().limit(Limit::Fraction(1.01))),
        ("limit", PoolOptions::new().limit(Limit::Fraction(f64::NAN))),
        ("limit", PoolOptions::new().limit(Limit::Bytes(0))),
        ("small", PoolOptions::new().small(2 * MIB, MIB)),
        ("growth", PoolOptions::new().growth(Growth::Fixed(0))),
        ("growth", PoolOptions::new().growth(Growth::Geometric { first: MIB, percent: 99, most: 2 * MIB })),
        ("growth", PoolOptions::new().growth(Growth::Geometric { first: MIB, percent: 200, most: 1 })),
        ("exact_above", PoolOptions::new().exact_above(0, 3)),
        ("granule", PoolOptions::new().granule(128)),
        ("granule", PoolOptions::new().granule(768)),
        ("granule", PoolOptions::new().granule(1024)), // more than the source aligns to
        ("adaptive", PoolOptions::new().adaptive(Adaptive { window: 0, factor: 1.5 })),
        ("adaptive", PoolOptions::new().adaptive(Adaptive { window: 5, factor: 0.9 })),
        ("adaptive", PoolOptions::new().adaptive(Adaptive { window: 5, factor: f64::NAN })),
        ("classes", PoolOptions::new().classes(&[])),
        ("classes", PoolOptions::new().classes(&[512, 512])),
    ];
    for (name, options) in wrong {
        match DevicePool::new(DeviceMemory::<false>::new(MIB), options) {
            Err(PoolError::Option(option)) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Each method sets one option and leaves the others as they are, so that two of them may be called in either order.
#[test]
fn each_option_leaves_the_others() {
    let set: [fn(PoolOptions) -> PoolOptions; 13] = [
        |options| options.limit(Limit::Bytes(MIB)),
        |options| options.first_segment(MIB),
        |options| options.small(0, MIB),
        |options| options.growth(Growth::Fixed(MIB)),
        |options| options.exact_above(MIB, MIB),
        |options| options.granule(512),
        |options| options.classes(&[512]),
        |options| options.reuse(Reuse::Aggressive),
        |options| options.lean(true),
        |options| options.trim_after(Age::Steps(1)),
        |options| options.adaptive(Adaptive { window: 5, factor: 2.0 }),
        |options| options.captures(Captures::Declared),
        |options| options.checks(Checks { fill: Some(1), ..Checks::default() }),
    ];
    for (n, first) in set.iter().enumerate() {
        assert_ne!(first(PoolOptions::new()), PoolOptions::new(), "{n}");
        for (m, second) in set.iter().enumerate().skip(n + 1) {
            assert_eq!(first(second(PoolOptions::new())), second(first(PoolOptions::new())), "{n} and {m}");
        }
    }
}

#[cfg(feature = "serde")]
#[test]
fn options_are_written_and_read() {
    let follow = Adaptive { window: 9, factor: 1.5 };
    let options = PoolOptions::new().limit(Limit::Fraction(0.25)).granule(512).first_segment(MIB);
    let options = options.adaptive(follow);
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<PoolOptions>(&text).unwrap(), options);
    let part: PoolOptions = serde_json::from_str(r#"{"reuse": "Aggressive", "small_limit": 0}"#).unwrap();
    assert_eq!(part, PoolOptions::new().reuse(Reuse::Aggressive).small(0, 2 * MIB));
}
