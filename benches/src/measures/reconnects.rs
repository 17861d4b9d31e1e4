//! The smallest arena in which a device that reconnects for years never fails.

use std::alloc::{GlobalAlloc, Layout};
use std::any::type_name;
use std::cell::Cell;
use std::ptr::{self, NonNull};

use allotment::lock::Unsync;
use allotment::observe::NoStatistics;
use allotment::placement::{MicroTlsf, Placement};
use allotment::{BestFit, Heap, Kept, Region, TinyHeap};
use anyhow::{Result, ensure};

use super::{Measure, Options, parallel};
use crate::arena::{Arena, Range};
use crate::results::{Results, Row};
use crate::subjects::registered::Registered;
use crate::subjects::{Subject, Visitor, with};
use crate::table::{Better, Table};
use device::{BUFFER, Device, Event};

#[path = "../../../cli/tests/tool/device.rs"]
mod device;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "reconnects",
    about: "smallest arena that never fails over up to 1,000,000 reconnects / peak of live bytes",
    run,
    tables,
};

/// The metric.
pub const METRIC: &str = "smallest arena / peak live, reconnects";

/// The resolution of the search in bytes.
const STEP: usize = 128;

/// The largest arena that is tried: what a `TinyHeap` of these tables has.
const LIMIT: usize = 128 << 10;

/// The seeds of the devices: those that nothing was chosen by.
const DEVICES: [u64; 3] = [101, 102, 103];

/// Connections of each. The last of them takes minutes for each subject, and is for the first device alone,
/// and not for a user's library.
const CONNECTIONS: [usize; 4] = [1000, 10_000, 100_000, 1_000_000];

fn tables(_: &Results) -> Vec<Table> {
    vec![Table {
        title: "Smallest arena of a device that reconnects / peak of live bytes",
        text: format!(
            "The smallest arena that never fails / the peak of live bytes, by device and number of connections: each has some 240 \
             requests and frees, two TLS buffers of {BUFFER} bytes among handshakes, packets, messages that wait and settings that \
             change. About 70 KB are live; pointers have 32 bits; the allocator's own state is charged; found by bisection, to \
             {STEP} bytes. `Heap` is that of microcontrollers, and `Kept` has two blocks for requests of 16,384 to {BUFFER} bytes. \
             Dashes: not measured, or {} KiB are not enough.",
            LIMIT >> 10
        ),
        metric: METRIC,
        better: Better::Lower,
        digits: 3,
        ..Table::default()
    }]
}

/// A heap that keeps two blocks for the buffers of a connection.
type Keeping<P> = Kept<Heap<P, Unsync>, 2, Unsync>;

// SAFETY: `Kept` is a global allocator whose blocks are those of its heap, which uses only the memory that it claimed.
unsafe impl<P: Placement + 'static> Registered for Keeping<P> {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let kept = Box::new(Self::new(Heap::empty(), 16_384, BUFFER));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { kept.memory().claim(Region::new(NonNull::new(arena.start)?, arena.size)) }.ok()?;
        Some(kept)
    }
}

/// A [`TinyHeap`] of the largest size, in which a block that stays takes what the arena lacks. So its size, which is a part of its type,
/// can be any.
struct Tiny(&'static TinyHeap<LIMIT, Unsync, NoStatistics>);

// SAFETY: `TinyHeap` is a global allocator in its own memory, which is the arena's.
unsafe impl Registered for Tiny {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        // SAFETY: all arenas of this measure are mapped with `LIMIT` bytes, and a heap that is all zero is empty.
        let heap: &'static TinyHeap<LIMIT, Unsync, NoStatistics> = unsafe {
            arena.start.write_bytes(0, LIMIT);
            &*arena.start.cast()
        };
        // Two bits for each 8 bytes go with the block.
        let rest = (LIMIT - arena.size) / 66 * 64;
        if rest > 0 {
            // SAFETY: the layout is not empty.
            let block = unsafe { heap.alloc(Layout::from_size_align(rest, 8).ok()?) };
            NonNull::new(block)?;
        }
        Some(Box::new(Self(heap)))
    }

    fn state() -> usize {
        0
    }
}

// SAFETY: the calls are passed on to a global allocator.
unsafe impl GlobalAlloc for Tiny {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.0.alloc(layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// The allocator of a library that the user names, in place of all others; see `benches/README.md`.
#[cfg(archive)]
mod archive {
    use super::{Layout, NonNull, Range, Subject};
    use std::ffi::c_void;

    /// Its name in the table, which is that of the library's file.
    pub const NAME: &str = env!("BENCH_ARCHIVE");

    unsafe extern "C" {
        safe fn allocator_state() -> usize;
        fn allocator_start(memory: *mut c_void, size: usize) -> *mut c_void;
        fn allocator_allocate(heap: *mut c_void, size: usize) -> *mut c_void;
        fn allocator_free(heap: *mut c_void, block: *mut c_void);
    }

    pub struct Archive(NonNull<c_void>);

    // SAFETY: the user vouches for the library, which gets blocks in the arena or in memory of its own.
    unsafe impl Subject for Archive {
        const CONFINED: bool = false;

        unsafe fn new(arena: Range) -> Option<Box<Self>> {
            // SAFETY: the caller gives the arena to this allocator alone.
            NonNull::new(unsafe { allocator_start(arena.start.cast(), arena.size) })
                .map(|heap| Box::new(Self(heap)))
        }

        fn state() -> usize {
            allocator_state()
        }

        unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
            // SAFETY: the heap has started, and the layout is not empty.
            unsafe { allocator_allocate(self.0.as_ptr(), layout.size()).cast() }
        }

        unsafe fn dealloc(&mut self, block: *mut u8, _: Layout) {
            // SAFETY: the caller passes a live block.
            unsafe { allocator_free(self.0.as_ptr(), block.cast()) }
        }
    }
}

/// Everything that is measured here, by its name in the table.
#[cfg(archive)]
const SUBJECTS: [&str; 1] = [archive::NAME];
/// Everything that is measured here, by its name in the table.
#[cfg(not(archive))]
const SUBJECTS: [&str; 8] = [
    KEPT,
    KEPT_BEST,
    "Heap",
    "TinyHeap",
    "talc-5, no lock",
    "rlsf-small, no lock",
    "linked-list, no lock",
    "embedded-tlsf",
];
const KEPT: &str = "Heap in Kept";
const KEPT_BEST: &str = "Heap<BestFit> in Kept";

fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(
        size_of::<usize>() == 4,
        "devices have 32-bit pointers: `cargo xtask bench reconnects` builds the program for them"
    );
    let most = options.pick(CONNECTIONS.len(), 1);
    let searches = DEVICES.map(|seed| {
        let most = if seed == DEVICES[0] && !cfg!(archive) { most } else { most.min(3) };
        Search { seed, connections: &CONNECTIONS[..most] }
    });
    // The longest ones first.
    let jobs: Vec<(Search, &str)> =
        searches.iter().flat_map(|&search| SUBJECTS.map(|subject| (search, subject))).collect();
    let found = parallel(&jobs, |&(search, subject)| match subject {
        KEPT => search.visit::<Keeping<MicroTlsf>>(),
        KEPT_BEST => search.visit::<Keeping<BestFit<u16, 4, 2>>>(),
        "Heap" => search.visit::<Heap<MicroTlsf, Unsync>>(),
        "TinyHeap" => search.visit::<Tiny>(),
        #[cfg(archive)]
        archive::NAME => search.visit::<archive::Archive>(),
        // Without the peers, none is found.
        peer => with(peer, search).unwrap_or(Ok(Vec::new())),
    });
    let mut rows = Vec::new();
    for (&(search, subject), ratios) in jobs.iter().zip(found) {
        for (connections, ratio) in search.connections.iter().zip(ratios?) {
            rows.push(Row::new(format!("device {}, {connections}", search.seed), subject, METRIC, ratio));
        }
    }
    Ok(rows)
}

/// Returns the most bytes that are live in a device's history.
fn peak(seed: u64, connections: usize) -> usize {
    let (mut live, mut peak) = (0, 0);
    let mut device = Device::start(seed, |event| match event {
        Event::Connect => {}
        Event::Allocate { size, .. } => {
            live += size;
            peak = peak.max(live);
        }
        Event::Free { size, .. } => live -= size,
    });
    (0..connections).for_each(|_| device.connect());
    peak
}

/// Looks for the smallest arenas of a device for so many connections, ascending.
#[derive(Clone, Copy)]
struct Search {
    seed: u64,
    connections: &'static [usize],
}

/// Returns whether a device's history fits in a budget: an arena and the allocator's own state.
fn serves<S: Subject>(arena: &Arena, budget: usize, seed: u64, connections: usize) -> bool {
    let size = budget.checked_sub(S::state());
    // SAFETY: the arena is ours, and used by one subject at a time.
    let Some(mut subject) = size.and_then(|size| unsafe { S::new(arena.range(size)) }) else { return false };
    // More blocks than a device ever has.
    let mut blocks = [ptr::null_mut::<u8>(); 256];
    let layout = |size| Layout::from_size_align(size, 4).expect("sizes are small");
    let failed = Cell::new(false);
    let mut device = Device::start(seed, |event| match event {
        Event::Connect => {}
        Event::Allocate { block, size } => {
            // SAFETY: the size is not zero.
            blocks[block] = unsafe { subject.alloc(layout(size)) };
            if blocks[block].is_null() {
                failed.set(true);
            }
        }
        Event::Free { block, size } => {
            if !blocks[block].is_null() {
                // SAFETY: the block is live and has this layout.
                unsafe { subject.dealloc(blocks[block], layout(size)) };
            }
        }
    });
    (0..connections).all(|_| {
        device.connect();
        !failed.get()
    })
}

impl Visitor for Search {
    /// The arenas, divided by the peaks of live bytes, as far as the limit is enough.
    type Out = Result<Vec<f64>>;

    fn visit<S: Subject>(self) -> Self::Out {
        let arena = Arena::new(LIMIT)?;
        let limit = LIMIT / STEP;
        let mut ratios = Vec::new();
        // What is too small for a short history is so for a longer one.
        let mut least = 1;
        for &connections in self.connections {
            let peak = peak(self.seed, connections);
            least = least.max(peak / STEP);
            let fits = |steps: usize| serves::<S>(&arena, steps * STEP, self.seed, connections);
            let (mut below, mut above, mut step) = (least - 1, least, 1);
            while !fits(above) {
                if above == limit {
                    return Ok(ratios);
                }
                (below, step) = (above, step * 2);
                above = (above + step).min(limit);
            }
            while above - below > 1 {
                let middle = below.midpoint(above);
                if fits(middle) { above = middle } else { below = middle }
            }
            least = above;
            ratios.push((least * STEP) as f64 / peak as f64);
            // The last counts take minutes.
            eprintln!(
                "device {}, {connections} connections, {}: {} B",
                self.seed,
                type_name::<S>(),
                least * STEP
            );
        }
        Ok(ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_does_the_same_whatever_the_length_of_pointers() {
        assert_eq!(peak(101, 2000), 73_676);
    }

    #[test]
    fn a_device_runs_on_kept_blocks_in_little_more_than_its_peak() {
        let search = Search { seed: 102, connections: &[300] };
        let [kept, plain] = [search.visit::<Keeping<MicroTlsf>>(), search.visit::<Heap<MicroTlsf, Unsync>>()];
        let (kept, plain) = (kept.unwrap()[0], plain.unwrap()[0]);
        assert!(kept > 1.0 && kept < 1.06 && kept < plain, "{kept}, {plain}");
    }
}
