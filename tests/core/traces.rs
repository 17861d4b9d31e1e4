//! Real programs: recorded traces are replayed on every placement, and every byte is checked.

use crate::shadow::trace::{self, Event, Trace};
use crate::shadow::{Case, Shadow};
use std::alloc::Layout;
use std::sync::LazyLock;

static TRACES: LazyLock<Vec<Trace>> =
    LazyLock::new(|| trace::paths().iter().map(|path| trace::read(path)).collect());

/// Replays a trace, and returns the number of failed requests.
fn replay(case: &'static Case, trace: &Trace, arena: usize) -> usize {
    let mut shadow = Shadow::new(case, &[(arena, 0)]);
    let mut blocks = vec![None; trace.ids];
    let mut failed = 0;
    for event in &trace.events {
        match *event {
            Event::Allocate { id, size, align } => {
                let layout = Layout::from_size_align(size, if align == 0 { 8 } else { align }).unwrap();
                blocks[id] = shadow.allocate(layout);
                failed += usize::from(blocks[id].is_none());
            }
            Event::Reallocate { id, size } => {
                if let Some(block) = blocks[id] {
                    match shadow.reallocate(block, size) {
                        Some(moved) => blocks[id] = Some(moved),
                        None => failed += 1,
                    }
                }
            }
            Event::Free { id } => {
                if let Some(block) = blocks[id].take() {
                    shadow.free(block);
                }
            }
        }
    }
    shadow.finish();
    failed
}

fn run(case: &'static Case) {
    assert!(TRACES.len() >= 5, "the recorded traces are there");
    for trace in TRACES.iter() {
        let wanted = (trace.peak as f64 * case.slack) as usize + 64 * 1024;
        let wanted = if case.reuses { wanted } else { (trace.total + 16 * trace.events.len()).min(64 << 20) };
        let arena = wanted.min(case.limit);
        let failed = replay(case, trace, arena);
        if case.reuses && case.general && arena == wanted {
            assert_eq!(failed, 0, "{} in {arena} bytes", trace.name);
        }
    }
}

for_each_placement!(run);
