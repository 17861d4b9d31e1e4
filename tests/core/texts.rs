//! What errors say, and what values show of themselves.

use allotment::lock::Unsync;
use allotment::misuse::Kind;
use allotment::observe::Counters;
use allotment::{FreeError, Heap, RegionError, TinyHeap, Tlsf};
use std::collections::BTreeSet;
use std::fmt::{Debug, Display};

/// Checks that all values have texts, each another one.
fn all_differ<T: Display + Debug>(values: &[T]) -> Vec<String> {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    for (value, text) in values.iter().zip(&texts) {
        assert!(text.len() > 10 && !text.ends_with('.'), "{value:?}: {text}");
    }
    assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), texts.len(), "{texts:?}");
    texts
}

#[test]
fn every_error_says_something_of_its_own() {
    let free = [
        FreeError::Foreign,
        FreeError::Misaligned,
        FreeError::AlreadyFree,
        FreeError::NotABlock,
        FreeError::Overrun,
    ];
    all_differ(&free);
    let texts = all_differ(&[
        RegionError::TooLarge { max: 4321 },
        RegionError::TooMany { max: 77 },
        RegionError::TooSmall,
        RegionError::Overlap,
        RegionError::Unknown,
        RegionError::InUse,
        RegionError::NoNodes,
        RegionError::Unsupported,
    ]);
    assert!(texts[0].contains("4321 bytes") && texts[1].contains(" 77 "), "{texts:?}");
    let faults = free.map(Kind::InvalidFree).into_iter().chain([Kind::BrokenList, Kind::WrittenAfterFree]);
    all_differ(&faults.collect::<Vec<_>>());
}

#[test]
fn heaps_show_their_figures() {
    let heap = Heap::<Tlsf, Unsync>::empty();
    assert_eq!(format!("{heap:?}"), format!("Heap({:?})", heap.stats()));
    let tiny = TinyHeap::<1024, Unsync, Counters>::new();
    assert_eq!(format!("{tiny:?}"), format!("TinyHeap({:?})", tiny.stats()));
}
