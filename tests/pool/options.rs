//! Options that cannot work are refused before anything is reserved.

use super::MIB;
use allotment::pool::{DevicePool, PoolError, PoolOptions, Reuse};
use allotment::sim::DeviceMemory;

#[test]
fn options_that_cannot_work_are_named() {
    let wrong = [
        ("limit_fraction", PoolOptions::new().limit_fraction(0.0)),
        ("limit_fraction", PoolOptions::new().limit_fraction(1.01)),
        ("limit_fraction", PoolOptions::new().limit_fraction(f64::NAN)),
        ("limit", PoolOptions::new().limit(0)),
        ("small", PoolOptions::new().small(2 * MIB, MIB)),
        ("segments", PoolOptions::new().segments(0)),
        ("geometric_segments", PoolOptions::new().geometric_segments(MIB, 99, 2 * MIB)),
        ("geometric_segments", PoolOptions::new().geometric_segments(MIB, 200, 1)),
        ("exact_above", PoolOptions::new().exact_above(0, 3)),
        ("granule", PoolOptions::new().granule(128)),
        ("granule", PoolOptions::new().granule(768)),
        ("granule", PoolOptions::new().granule(1024)), // more than the source aligns to
        ("adaptive", PoolOptions::new().adaptive(0, 1.5)),
        ("adaptive", PoolOptions::new().adaptive(5, 0.9)),
        ("adaptive", PoolOptions::new().adaptive(5, f64::NAN)),
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

/// Each bound of an option: the last value that works, and the next one, which does not.
#[test]
fn options_work_up_to_their_bounds() {
    let new = PoolOptions::new;
    let above_one = f64::from_bits(1f64.to_bits() + 1);
    let below_one = f64::from_bits(1f64.to_bits() - 1);
    let geometric = |first, percent, most| new().geometric_segments(first, percent, most);
    let follow = |window, factor| new().adaptive(window, factor);
    let works = [
        new().limit(usize::MAX),
        new().limit_fraction(f64::MIN_POSITIVE),
        new().limit_fraction(1.0),
        new().limit(1),
        new().small(0, 0),
        new().small(1, 4096),
        new().small(4096, 4096),
        new().segments(4096),
        new().fitted_segments(4096),
        geometric(4096, 100, 4096),
        follow(1, 1.0),
        follow(1, f64::MAX),
        new().exact_above(0, 1),
        new().exact_above(usize::MAX, 1 << 63),
        new().granule(0),
        new().granule(256),
        new().granule(512),
        new().classes(&[1]),
        new().classes(&[1, 2]),
    ];
    for options in works {
        assert_eq!(options.check(256), Ok(()), "{options:?}");
    }
    let wrong = [
        ("limit_fraction", new().limit_fraction(-1.0)),
        ("limit_fraction", new().limit_fraction(0.0)),
        ("limit_fraction", new().limit_fraction(above_one)),
        ("limit", new().limit(0)),
        ("small", new().small(4097, 4096)),
        ("small", new().small(1, 4095)),
        ("small", new().small(1, 0)),
        ("segments", new().segments(4095)),
        ("fitted_segments", new().fitted_segments(4095)),
        ("geometric_segments", geometric(4095, 100, 4096)),
        ("geometric_segments", geometric(4096, 99, 4096)),
        ("geometric_segments", geometric(4097, 100, 4096)),
        ("adaptive", follow(0, 1.0)),
        ("adaptive", follow(1, below_one)),
        ("adaptive", follow(1, f64::INFINITY)),
        ("exact_above", new().exact_above(0, 0)),
        ("exact_above", new().exact_above(0, 3)),
        ("granule", new().granule(128)),
        ("granule", new().granule(257)),
        ("classes", new().classes(&[])),
        ("classes", new().classes(&[0])),
        ("classes", new().classes(&[0, 1])),
        ("classes", new().classes(&[2, 1])),
    ];
    for (name, options) in wrong {
        assert_eq!(options.check(256), Err(PoolError::Option(name)), "{options:?}");
    }
}

/// Each method sets one option and leaves the others as they are, so that two of them may be called in either order.
#[test]
fn each_option_leaves_the_others() {
    let set: [fn(PoolOptions) -> PoolOptions; 15] = [
        |options| options.limit(MIB),
        |options| options.first_segment(MIB),
        |options| options.small(0, MIB),
        |options| options.segments(MIB),
        |options| options.exact_above(MIB, MIB),
        |options| options.granule(512),
        |options| options.classes(&[512]),
        |options| options.reuse(Reuse::Aggressive),
        |options| options.lean(true),
        |options| options.trim_after_steps(1),
        |options| options.adaptive(5, 2.0),
        |options| options.declared_captures(),
        |options| options.fill(1),
        |options| options.guards(true),
        |options| options.sites(true),
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
    let options = PoolOptions::new().limit_fraction(0.25).granule(512).first_segment(MIB);
    let options = options.adaptive(9, 1.5);
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<PoolOptions>(&text).unwrap(), options);
    let part: PoolOptions = serde_json::from_str(r#"{"reuse": "Aggressive", "small_limit": 0}"#).unwrap();
    assert_eq!(part, PoolOptions::new().reuse(Reuse::Aggressive).small(0, 2 * MIB));
}
