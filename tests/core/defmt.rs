//! With the feature `defmt`, every public value type can be logged.

use allotment::meta::Block;
use allotment::{FreeError, OutOfMemory, Region, RegionError, Stats};

/// Compiles only for types that can be logged.
fn loggable<T: defmt::Format>() -> &'static str {
    std::any::type_name::<T>()
}

#[test]
fn value_types_can_be_logged() {
    let names = [
        loggable::<Stats>(),
        loggable::<OutOfMemory>(),
        loggable::<FreeError>(),
        loggable::<RegionError>(),
        loggable::<Region>(),
        loggable::<Block>(),
        loggable::<Block<u32>>(),
    ];
    assert!(names.iter().all(|name| name.starts_with("allotment::")));
}
