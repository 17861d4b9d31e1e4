//! Contracts that functions keep for all inputs in a range.
//!
//! The model checker Kani proves each contract (`cargo kani`, where it can be set up). A test also tries all inputs of a short range, or
//! the edge cases and a sample of a long one.

#![forbid(unsafe_code)]

/// Turns each function, whose inputs are numbers `in` ranges, into a Kani proof and a test. `unwind` is one more than the largest
/// iteration count of its loops.
macro_rules! contracts {
    ($($(#[doc = $doc:literal])* #[unwind($rounds:literal)] fn $name:ident($($input:ident in $range:expr),+) $body:block)*) => {
        #[cfg(kani)]
        mod proofs {
            use super::*;
            $(
                $(#[doc = $doc])*
                #[kani::proof]
                #[kani::unwind($rounds)]
                fn $name() {
                    $(
                        let $input: usize = kani::any();
                        kani::assume(($range).contains(&$input));
                    )+
                    $body
                }
            )*
        }

        #[cfg(all(test, not(kani)))]
        mod cases {
            use super::*;
            $(
                $(#[doc = $doc])*
                #[test]
                fn $name() {
                    let mut count = 0_u64;
                    $crate::units::contracts::try_all!(count, ($($input in $range),+), $body);
                    println!("{count} inputs");
                    assert!(count > 10);
                }
            )*
        }
    };
}

/// Runs the body with every combination of inputs, and counts them.
#[cfg(all(test, not(kani)))]
macro_rules! try_all {
    ($count:ident, ($input:ident in $range:expr), $body:block) => {
        for $input in $crate::units::contracts::inputs($range) {
            $count += 1;
            $body
        }
    };
    ($count:ident, ($input:ident in $range:expr, $($rest:tt)+), $body:block) => {
        for $input in $crate::units::contracts::inputs($range) {
            $crate::units::contracts::try_all!($count, ($($rest)+), $body);
        }
    };
}

pub(crate) use contracts;
#[cfg(all(test, not(kani)))]
pub(crate) use try_all;

/// Returns all numbers of a short range; for a long range, its ends, all powers of two with their neighbours, and some random numbers.
#[cfg(all(test, not(kani)))]
pub(crate) fn inputs(range: core::ops::RangeInclusive<usize>) -> Vec<usize> {
    let (first, last) = (*range.start(), *range.end());
    if last - first < 300 {
        return range.collect();
    }
    let mut random = fastrand::Rng::with_seed(1);
    let powers = (0..usize::BITS)
        .flat_map(|bit| (0..3).map(move |by| (1_usize << bit).wrapping_add(by).wrapping_sub(1)));
    let others = (0..60).map(|_| random.usize(..) >> random.u32(0..usize::BITS));
    let ends = (first..first + 40).chain(last - 40..=last);
    let mut all: Vec<usize> =
        powers.chain(others).chain(ends).filter(|number| range.contains(number)).collect();
    all.sort_unstable();
    all.dedup();
    // Miri is a thousand times slower.
    all.into_iter().step_by(if cfg!(miri) { 16 } else { 1 }).collect()
}
