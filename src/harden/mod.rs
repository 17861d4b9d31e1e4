//! Hardening levels, which decide how much a heap checks.
//!
//! Most heaps trust their callers: a block that is freed twice is allocated twice, and the program corrupts itself. The level decides how
//! much of such misuse a heap detects, in release builds as well. It is part of the heap's type:
//!
//! | level | type | costs |
//! | --- | --- | --- |
//! | `Off` | the placement's parameter `CHECKED`, as in `Tlsf<u32, 4, 8, false>`, and the default of firmware | nothing |
//! | `Basic` | every other heap | a few instructions for an operation |
//! | `Full` | [`Full`] around the placement, as in `Heap<Full<Tiered>>` | 8 bytes for a block, 1/32 of the memory, and the time to fill freed blocks |
//!
//! `Basic` detects the misuse that the heap's bookkeeping shows without a search. In release builds that is:
//!
//! | misuse | detected |
//! | --- | --- |
//! | double free of a block that is still free and between blocks in use | always |
//! | double free of a block that `Tiered` keeps | always, until it leaves the list |
//! | double free of a block that the lists of `os::Growing` or the caches of `os::Cached` keep, in any thread | always, until it leaves them |
//! | double free after the block was merged with the one before or after it | not by placements with boundary bits |
//! | free of an address in no region, or inside a granule | by all but `Bump`; `Tiered` checks only the alignment of blocks of up to 256 bytes and of blocks that it keeps, when they leave their list |
//! | free inside a block, or with another size | only if it leads to one of the other rows; by `os::Growing` if the address is less aligned than all blocks of the size |
//! | overwritten links of a free block | by `os::Growing` and `os::Cached`, in the first two words of a block, when it leaves its list; elsewhere when a block leaves the middle of a list; in a quick list, when they lead to an odd address; else the processor may stop the program |
//! | overwritten lengths of a free block | when a neighbour is freed |
//! | writes past a live block into another | never |
//!
//! [`FirstFit`](crate::FirstFit) at `Basic` detects all of these: bits beside the memory record the start and end of every live block,
//! and free blocks are never read or written.
//!
//! [`Buddy`](crate::Buddy), [`Slab`](crate::Slab) and side tables know where blocks begin, and detect most of the rest. `Buddy` detects
//! every double free, merged or not, until the block's place is allocated again, frees inside blocks, and frees with another size, except
//! those of a minimum block. Builds with debug assertions check each free as [`Memory::try_deallocate`](crate::Memory::try_deallocate)
//! does, which also detects addresses inside the pages of `Tiered` and `os::Growing`, and frees with another size there. No level can
//! hang.
//!
//! At `Basic` and `Full`, a search in the tries of [`BestFit`](crate::BestFit) takes at most as many steps as a length has bits: damage
//! that would make it longer ends the program.
//!
//! `Full` detects with any placement:
//!
//! * every free of an address that is not the start of a live block: double frees, even of merged blocks, addresses inside blocks,
//!   foreign and misaligned addresses;
//! * every free with a size or alignment other than the block's;
//! * every write to any of the 8 bytes after a block, when the block is freed or resized;
//! * every write to the first 256 or the last 16 bytes of a freed block, until as many further blocks are freed as the quarantine holds
//!   (16 by default);
//! * overwritten links and lengths of free blocks, before they are used: the links of small blocks in quick lists are encoded with a key
//!   of the heap, and elsewhere links must point back, as at level `Basic`;
//! * every attempt of damaged bookkeeping to allocate memory that is in use.
//!
//! `Full` does not detect writes far beyond a block, reads of freed blocks, a double free of an address that has been allocated again
//! with the same layout, or a late write that leaves the bookkeeping valid. The caches of
//! [`os::Cached`](https://docs.rs/allotment/latest/allotment/os/struct.Cached.html) keep no blocks in front of such a heap, so it sees
//! every free.
//!
//! On Linux, use [`os::Hardened`](https://docs.rs/allotment/latest/allotment/os/struct.Hardened.html) in place of
//! [`os::Growing`](https://docs.rs/allotment/latest/allotment/os/struct.Growing.html). It detects the same misuse, except a wrong size
//! within a block's class.
//!
//! With the feature `sanitize`, on x86-64 Linux, `Full` marks the canaries and the blocks in quarantine for AddressSanitizer and
//! valgrind. They then report each access to these at once, including reads, with the place in the program:
//! `RUSTFLAGS=-Zsanitizer=address cargo +nightly test`, or `valgrind PROGRAM`. valgrind also reports the use of uninitialised bytes of a
//! new block.
//!
//! On detection, fallible methods return a [`FreeError`](crate::FreeError); everything else calls the hook in
//! [`misuse`](crate::error::misuse), which by default ends the program with a one-line message.
//!
//! ```
//! use allotment::{FreeError, Heap, Tiered, harden::Full, heap};
//! use core::alloc::Layout;
//!
//! static HEAP: Heap<Full<Tiered>> = heap!(64 * 1024);
//!
//! let layout = Layout::new::<[u8; 40]>();
//! let block = HEAP.try_allocate(layout)?;
//! // SAFETY: the block is live the first time; later frees are refused.
//! unsafe {
//!     HEAP.try_deallocate(block, layout)?;
//!     assert_eq!(HEAP.try_deallocate(block, layout), Err(FreeError::AlreadyFree));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod full;
mod map;
mod poison;

pub use full::Full;
