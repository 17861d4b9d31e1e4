//! The subjects that are compared, and the machines that they run on.

use crate::emulator::{Counting, MPS2_AN385, VIRT};

/// An allocator that the firmware in `boards/measure` can be built with; the name is that of its feature.
#[derive(Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name and Cargo feature.
    pub name: &'static str,
    /// A short description.
    pub what: &'static str,
    /// The crate, if it is another one's.
    pub package: Option<&'static str>,
    /// True if it resizes blocks without moving them.
    pub resizes: bool,
    /// The other crates' allocators that work as it does, by name, which it is compared with.
    pub peers: &'static [&'static str],
}

/// The zero of all differences in size.
pub const ZERO: &str = "bump";

const fn zero(name: &'static str, what: &'static str) -> Subject {
    Subject { name, what, package: None, resizes: false, peers: &[] }
}

const fn ours(name: &'static str, what: &'static str, peers: &'static [&'static str]) -> Subject {
    Subject { name, what, package: None, resizes: true, peers }
}

const fn peer(name: &'static str, package: &'static str, resizes: bool, what: &'static str) -> Subject {
    Subject { name, what, package: Some(package), resizes, peers: &[] }
}

/// Other crates' segregated fits, whose requests take constant time.
const TLSF: [&str; 3] = ["rlsf", "embedded-alloc", "talc"];

/// All of them, the zero first.
pub const SUBJECTS: [Subject; 20] = [
    zero(ZERO, "a bump pointer of the firmware's own: the zero of the added sizes"),
    ours("tiny", "`TinyHeap`: two classes per power of two, no statistics, its memory included", &TLSF),
    ours("tiny-bump", "`TinyBump`, which never frees", &[]),
    ours("tlsf16", "`Heap<Tlsf16>`: 16-bit words, one region, 8 classes per power of two, statistics", &TLSF),
    ours("heap", "`Heap` without any choice: `MicroTlsf`, four regions, statistics", &TLSF),
    ours("heap-kept", "the same in `Kept`, which keeps a block longer than all that are requested", &[]),
    ours("heap-basic", "the same with the checks of level `Basic`: `MicroTlsf<4, true>`", &[]),
    ours("heap-full", "the same at level `Full`: `harden::Full<MicroTlsf>`", &[]),
    ours("tlsf", "`Heap<Tlsf>`: 32-bit words, four regions, 8 classes per power of two, statistics", &TLSF),
    ours("first-fit", "`Heap<FirstFit>`, the same", &["linked-list"]),
    ours("best-fit", "`Heap<BestFit>`, the same", &["linked-list"]),
    ours("buddy", "`Heap<Buddy>`, the same", &["buddy-system"]),
    ours("slab", "`Heap<Slab>`, the same, with its default classes over buddies", &["buddy-system", "talc"]),
    ours("allotment-bump", "`Heap<Bump>`, the same", &[]),
    Subject {
        resizes: false,
        ..ours("fixed-pool", "`FixedPool` of 512 blocks of 128 bytes: requests for more fail", &[])
    },
    peer("linked-list", "linked_list_allocator", false, "its heap"),
    peer("embedded-alloc", "embedded-alloc", false, "its TLSF heap (rlsf's with a table of 32 × 32)"),
    peer("rlsf", "rlsf", true, "its TLSF with 8 classes per power of two, for 64 KiB"),
    peer("talc", "talc", true, "`TalcLock` with a manual source"),
    peer("buddy-system", "buddy_system_allocator", false, "its heap with as many orders as 64 KiB need"),
];

/// A kind of target, and the emulator that runs it.
#[derive(Debug, PartialEq, Eq)]
pub struct Machine {
    /// Rust's name.
    pub target: &'static str,
    /// The class of machines that it represents.
    pub core: &'static str,
    /// None if programs are only linked.
    pub emulator: Option<Counting>,
}

/// All of them, the most important one first.
pub const MACHINES: [Machine; 4] = [
    Machine { target: "thumbv7m-none-eabi", core: "Cortex-M3", emulator: Some(MPS2_AN385) },
    Machine {
        target: "thumbv6m-none-eabi",
        core: "Cortex-M0's code, on a Cortex-M3",
        emulator: Some(MPS2_AN385),
    },
    Machine { target: "riscv32imac-unknown-none-elf", core: "RV32IMAC", emulator: Some(VIRT) },
    Machine { target: "wasm32-unknown-unknown", core: "WebAssembly, only linked", emulator: None },
];

/// An optimisation level: Cargo's profile and what it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The profile in `boards/measure/Cargo.toml`.
    pub profile: &'static str,
    /// `opt-level`.
    pub level: &'static str,
}

/// For size, as the boards' firmware.
pub const SMALL: Level = Level { profile: "release", level: "s" };
/// For speed.
pub const FAST: Level = Level { profile: "fast", level: "3" };
