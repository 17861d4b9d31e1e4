//! How much a heap checks: three levels.
//!
//! Most heaps trust their callers: a block that is freed twice is handed out twice, and the program corrupts itself. The level
//! says how much of that a heap notices, in release builds as well. It is part of the heap's type:
//!
//! | level | type | costs |
//! | --- | --- | --- |
//! | `Off` | the placement's parameter `CHECKED`, as in `Tlsf<u32, 4, 8, false>`, and the default of firmware; metadata [`Unchecked`](crate::meta::Unchecked) | nothing |
//! | `Basic` | every other heap | a few instructions for an operation |
//! | `Full` | [`Full`] around the placement, as in `Heap<Full<Tiered>>` | 8 bytes for a block, 1/32 of the memory, and the time to fill freed blocks |
//!
//! `Basic` notices what the heap's bookkeeping shows anyway, and does not look for anything. In release builds that is:
//!
//! | misuse | noticed |
//! | --- | --- |
//! | second free of a block that is still free, its neighbours in use | always |
//! | second free of a block that `Tiered` keeps | always, until the list gives it back |
//! | second free of a block that the lists of `os::Growing` or the caches of `os::Cached` keep, in any thread | always, until it leaves them |
//! | second free after the block was merged with the one in front of it, or behind it | not by placements with boundary bits |
//! | free of an address in no region, or inside a granule | by all but `Bump`; for up to 256 bytes, and for blocks that it keeps, `Tiered` looks at the alignment only, when the block leaves its list |
//! | free inside a block, or with another size | only what leads to one of the other rows |
//! | links of a free block that were overwritten | by `os::Growing` and `os::Cached`, in the first two words of a block, when it leaves its list; elsewhere when a block is taken from the middle of a list; in a quick list, when they lead to an odd address; else the processor may stop the program |
//! | lengths of a free block that were overwritten | when a neighbour is freed |
//! | writes beyond a live block into another | never |
//!
//! [`FirstFit`](crate::FirstFit) at `Basic` notices all of these: it knows every live block's start and end, beside the memory, and reads
//! or writes no free block.
//!
//! [`Buddy`](crate::Buddy), [`Slab`](crate::Slab) and side tables know where blocks begin, and notice most of the rest: `Buddy` every second
//! free, merged or not, until the block's place is handed out again, frees inside blocks, and other sizes, but for those of a minimum block.
//! Builds with debug assertions check each free as [`Memory::try_deallocate`](crate::Memory::try_deallocate) does, which finds
//! addresses inside the pages of `Tiered` and `os::Growing`, and other sizes there. No level hangs.
//!
//! In the tries of free blocks of [`BestFit`](crate::BestFit) a way down has as many steps as a length has bits, at `Basic` and `Full`: damage that
//! makes it longer ends the program.
//!
//! `Full` notices, whatever the placement:
//!
//! * every free of something that is not the start of a live block: double frees, also of blocks that were merged, addresses
//!   inside blocks, foreign and misaligned addresses;
//! * every free with another size or alignment than the block was allocated with;
//! * every write to any of the 8 bytes behind a block, when the block is freed or resized;
//! * every write to the first 256 or the last 16 bytes of a freed block, until as many further blocks were freed as the quarantine holds
//!   (16 unless the type says otherwise);
//! * links and lengths of free blocks that were overwritten, before they are followed: links are encoded with a secret of the
//!   heap and the block's own address, so that one which was copied or made up leads nowhere (quick lists,
//!   [`GoodFit`](crate::GoodFit) and [`Buddy`](crate::Buddy), where the metadata [`InBand`](crate::meta::InBand) is checked and has room for
//!   several regions; elsewhere the links must point back, as at level `Basic`);
//! * every attempt to hand out memory that is in use, which is what damaged bookkeeping leads to.
//!
//! `Full` does not notice writes far beyond a block, reads of freed blocks, a second free of an address that has been handed
//! out again with the same layout, or a late write that leaves the bookkeeping valid. The caches of
//! [`os::Cached`](https://docs.rs/allotment/latest/allotment/os/struct.Cached.html) keep nothing in front of such a heap, so
//! that no free is hidden from it.
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
