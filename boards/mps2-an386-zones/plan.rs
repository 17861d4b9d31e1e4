// Made by `allotment plan` 0.2.0 from buffers: 81920 B, optimal (proved).
// Command: allotment plan buffers.csv -o plan.rs --section 0=.uninit.plan --section 1=.psram.plan --threads 1 --quiet

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// One place: its tier, its offset in the tier's arena, bytes, and the time steps `start..end` at which it is live.
#[allow(dead_code)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub tier: usize,
    pub offset: usize,
    pub size: usize,
    pub start: i64,
    pub end: i64,
}

/// Where each buffer lies.
#[allow(dead_code)]
pub const PLAN: [Placed; 7] = [
    Placed { tier: 1, offset: 0, size: 65536, start: 0, end: 2 }, // IMAGE
    Placed { tier: 1, offset: 65536, size: 16384, start: 1, end: 3 }, // HALF
    Placed { tier: 0, offset: 16384, size: 768, start: 2, end: 3 }, // ROWS
    Placed { tier: 0, offset: 0, size: 16384, start: 2, end: 4 }, // SMOOTH
    Placed { tier: 0, offset: 16384, size: 16384, start: 3, end: 5 }, // EDGES
    Placed { tier: 0, offset: 0, size: 1024, start: 4, end: 6 }, // BINS
    Placed { tier: 1, offset: 0, size: 32768, start: 5, end: 6 }, // CHART
];

/// Indices into [`PLAN`].
#[allow(dead_code)]
pub mod index {
    pub const IMAGE: usize = 0;
    pub const HALF: usize = 1;
    pub const ROWS: usize = 2;
    pub const SMOOTH: usize = 3;
    pub const EDGES: usize = 4;
    pub const BINS: usize = 5;
    pub const CHART: usize = 6;
}

/// The memory of tier 0; what is in it at first is not known.
#[allow(dead_code)]
#[repr(C, align(4))]
pub struct Arena0(UnsafeCell<[MaybeUninit<u8>; 32768]>);

// SAFETY: the memory is reached by `arena` alone, whose callers keep to the plan.
unsafe impl Sync for Arena0 {}

/// The arena of tier 0: 32768 bytes.
#[unsafe(link_section = ".uninit.plan")]
#[allow(dead_code)]
pub static ARENA_0: Arena0 = Arena0(UnsafeCell::new([MaybeUninit::uninit(); 32768]));

/// The memory of tier 1; what is in it at first is not known.
#[allow(dead_code)]
#[repr(C, align(32))]
pub struct Arena1(UnsafeCell<[MaybeUninit<u8>; 81920]>);

// SAFETY: the memory is reached by `arena` alone, whose callers keep to the plan.
unsafe impl Sync for Arena1 {}

/// The arena of tier 1: 81920 bytes.
#[unsafe(link_section = ".psram.plan")]
#[allow(dead_code)]
pub static ARENA_1: Arena1 = Arena1(UnsafeCell::new([MaybeUninit::uninit(); 81920]));

/// Returns the first byte of a tier's arena; null for a tier that is not there.
#[allow(dead_code)]
pub fn arena(tier: usize) -> *mut u8 {
    match tier {
        0 => ARENA_0.0.get().cast(),
        1 => ARENA_1.0.get().cast(),
        _ => core::ptr::null_mut(),
    }
}

/// Returns the first byte of buffer `n` of [`PLAN`], which is the buffer's while it is live.
#[allow(dead_code)]
pub fn address(n: usize) -> *mut u8 {
    arena(PLAN[n].tier).wrapping_add(PLAN[n].offset)
}
