//! Hardening levels: how much a heap checks.
//!
//! Most heaps trust their callers: a block that is freed twice is allocated twice, and the program corrupts itself. The level
//! decides how much of that a heap detects, in release builds as well. It is part of the heap's type:
//!
//! | level | type | costs |
//! | --- | --- | --- |
//! | `Off` | the placement's parameter `CHECKED`, as in `Tlsf<u32, 4, 8, false>`, and the default of firmware | nothing |
//! | `Basic` | every other heap | a few instructions for an operation |
//! | `Full` | [`Full`] around the placement, as in `Heap<Full<Tiered>>` | 8 bytes for a block, 1/32 of the memory, and the time to fill freed blocks |
//!
//! `Basic` detects what the heap's bookkeeping shows anyway, without a search. In release builds that is:
//!
//! | misuse | detected |
//! | --- | --- |
//! | double free of a block that is still free, its neighbours in use | always |
//! | double free of a block that `Tiered` keeps | always, until it leaves the list |
//! | double free of a block that the lists of `os::Growing` or the caches of `os::Cached` keep, in any thread | always, until it leaves them |
//! | double free after the block was merged with the one before or after it | not by placements with boundary bits |
//! | free of an address in no region, or inside a granule | by all but `Bump`; for up to 256 bytes, and for blocks that it keeps, `Tiered` looks at the alignment only, when the block leaves its list |
//! | free inside a block, or with another size | only what leads to one of the other rows; by `os::Growing` if the address is less aligned than all blocks of the size |
//! | links of a free block that were overwritten | by `os::Growing` and `os::Cached`, in the first two words of a block, when it leaves its list; elsewhere when a block is taken from the middle of a list; in a quick list, when they lead to an odd address; else the processor may stop the program |
//! | lengths of a free block that were overwritten | when a neighbour is freed |
//! | writes beyond a live block into another | never |
//!
//! [`FirstFit`](crate::FirstFit) at `Basic` detects all of these: bits beside the memory hold every live block's start and end, and it never reads or writes
//! a free block.
//!
//! [`Buddy`](crate::Buddy), [`Slab`](crate::Slab) and side tables know where blocks begin, and detect most of the rest: `Buddy` every double
//! free, merged or not, until the block's place is allocated again, frees inside blocks, and other sizes, except those of a minimum block.
//! Builds with debug assertions check each free as [`Memory::try_deallocate`](crate::Memory::try_deallocate) does, which finds
//! addresses inside the pages of `Tiered` and `os::Growing`, and other sizes there. No level hangs.
//!
//! A search in the tries of [`BestFit`](crate::BestFit) takes at most as many steps as a length has bits, at `Basic` and `Full`: damage that
//! makes it longer ends the program.
//!
//! `Full` detects with any placement:
//!
//! * every free of something that is not the start of a live block: double frees, also of blocks that were merged, addresses
//!   inside blocks, foreign and misaligned addresses;
//! * every free with another size or alignment than the block was allocated with;
//! * every write to any of the 8 bytes after a block, when the block is freed or resized;
//! * every write to the first 256 or the last 16 bytes of a freed block, until as many further blocks were freed as the quarantine holds
//!   (16 unless the type says otherwise);
//! * links and lengths of free blocks that were overwritten, before they are followed: the links of small blocks in quick lists are encoded
//!   with a key of the heap, and elsewhere links must point back, as at level `Basic`;
//! * every attempt to allocate memory that is in use, as damaged bookkeeping would.
//!
//! `Full` does not detect writes far beyond a block, reads of freed blocks, a double free of an address that was allocated
//! again with the same layout, or a late write that leaves the bookkeeping valid. The caches of
//! [`os::Cached`](https://docs.rs/allotment/latest/allotment/os/struct.Cached.html) keep no blocks in front of such a heap, so
//! it sees every free.
//!
//! A program on Linux whose heap is [`os::Growing`](https://docs.rs/allotment/latest/allotment/os/struct.Growing.html) takes
//! [`os::Hardened`](https://docs.rs/allotment/latest/allotment/os/struct.Hardened.html) instead, which finds the same but the size of a block within its class.
//!
//! With the feature `sanitize`, on x86-64 Linux, `Full` tells AddressSanitizer and valgrind what it knows: the canaries and the blocks in
//! quarantine. They then report each access to those at once, reads too, with the place in the program:
//! `RUSTFLAGS=-Zsanitizer=address cargo +nightly test`, or `valgrind PROGRAM`. valgrind also reports the use of bytes of a new block
//! that were not written.
//!
//! What happens then: fallible methods return a [`FreeError`](crate::FreeError); everything else calls the hook in
//! [`misuse`](crate::error::misuse), which by default ends the program with one line.
//!
//! ```
//! use allotment::{FreeError, Heap, Tiered, harden::Full, heap};
//! use core::alloc::Layout;
//!
//! static HEAP: Heap<Full<Tiered>> = heap!(64 * 1024);
//!
//! let layout = Layout::new::<[u8; 40]>();
//! let block = HEAP.try_allocate(layout)?;
//! // SAFETY: the block is live the first time; after that every free is refused.
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
