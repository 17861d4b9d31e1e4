//! Options that cannot work are refused before anything is reserved.

use super::MIB;
use allotment::pool::{Adaptive, DevicePool, Growth, Limit, PoolError, PoolOptions};
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

#[cfg(feature = "serde")]
#[test]
fn options_are_written_and_read() {
    let follow = Adaptive { window: 9, factor: 1.5 };
    let options = PoolOptions::new().limit(Limit::Fraction(0.25)).granule(512).first_segment(MIB);
    let options = options.adaptive(follow);
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<PoolOptions>(&text).unwrap(), options);
    let part: PoolOptions = serde_json::from_str(r#"{"reuse": "Aggressive", "small_limit": 0}"#).unwrap();
    assert_eq!(part, PoolOptions::new().reuse(allotment::pool::Reuse::Aggressive).small(0, 2 * MIB));
}
