//! Observers: what they receive, what they keep of it, and that they change nothing.

mod fronts;
mod leaks;
mod profile;
mod tags;
#[cfg(feature = "std")]
mod threads;
mod timed;
mod trace;

use allotment::observe::event::{Action, Record, Records};
use std::alloc::Layout;
use std::collections::BTreeMap;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Checks every record of a lossless trace: blocks are freed once, and an address is allocated only once until
/// then. Returns the blocks that are live at the end: size by address.
fn replay(bytes: &[u8]) -> BTreeMap<u64, u64> {
    let mut live = BTreeMap::new();
    for record in Records::new(bytes).unwrap().1 {
        let Record::Event(event) = record.unwrap() else { continue };
        match event.action {
            Action::Allocate { id, size, .. } => {
                assert_eq!(live.insert(id, size), None, "{id:#x} is handed out twice");
            }
            Action::Reallocate { id, to, size } => {
                assert!(live.remove(&id).is_some(), "{id:#x} is resized, but not live");
                assert_eq!(live.insert(to, size), None, "{to:#x} is handed out twice");
            }
            Action::Free { id } => assert!(live.remove(&id).is_some(), "{id:#x} is freed, but not live"),
            Action::Fail { .. } => {}
        }
    }
    live
}
