//! The allocators under test: one trait, and one line per allocator.

pub mod lists;
pub mod own;
pub mod rlsf;
pub mod system;
pub mod talc;
pub mod wrapped;

use std::alloc::Layout;

use crate::arena::Range;

/// An allocator as all measures see it.
///
/// # Safety
///
/// Unless [`Subject::MEMORY`] is false, blocks that are live at the same time do not overlap, lie in the arena
/// if there is one, and have the size and alignment asked for.
pub unsafe trait Subject: Sized + 'static {
    /// Whether it is confined to the arena.
    const CONFINED: bool = true;
    /// Whether blocks are memory; else their addresses are mere names.
    const MEMORY: bool = true;

    /// An allocator over `arena`; `None` if the arena is too small. It stays in the box, since some
    /// allocators may not move.
    ///
    /// # Safety
    ///
    /// The arena is valid and used by nobody else as long as the allocator is.
    unsafe fn new(arena: Range) -> Option<Box<Self>>;

    /// Bytes of state outside the arena, which the density measures charge: the allocator's own size.
    fn state() -> usize {
        size_of::<Self>()
    }

    /// A block, or null.
    ///
    /// # Safety
    ///
    /// The layout's size is not zero.
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8;

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The block is live and was allocated with `layout`.
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout);

    /// Changes a block's size in place or by moving it; null and nothing done if that is impossible.
    ///
    /// # Safety
    ///
    /// As for [`Subject::dealloc`]; the new size is not zero.
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises; the two blocks are both live, so they do not overlap.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                if Self::MEMORY {
                    new.copy_from_nonoverlapping(block, layout.size().min(size));
                }
                self.dealloc(block, layout);
            }
            new
        }
    }
}

/// Every operation of every allocator is measured behind one call that is not inlined, as those of a global
/// allocator are; the null subject's calls are subtracted.
pub mod call {
    use super::{Layout, Subject};

    /// [`Subject::alloc`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(never)]
    pub unsafe fn alloc<S: Subject>(subject: &mut S, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { subject.alloc(layout) }
    }

    /// [`Subject::dealloc`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(never)]
    pub unsafe fn dealloc<S: Subject>(subject: &mut S, block: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { subject.dealloc(block, layout) }
    }

    /// [`Subject::realloc`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(never)]
    pub unsafe fn realloc<S: Subject>(
        subject: &mut S,
        block: *mut u8,
        layout: Layout,
        size: usize,
    ) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { subject.realloc(block, layout, size) }
    }
}

/// Code that is compiled once for every subject.
pub trait Visitor {
    /// What it finds out.
    type Out;
    /// Runs for one subject.
    fn visit<S: Subject>(self) -> Self::Out;
}

/// What the tables say of a subject.
pub struct Entry {
    /// Its name in tables and files.
    pub id: &'static str,
    /// Whether it is allotment's.
    pub own: bool,
    /// Whether it is confined to an arena.
    pub confined: bool,
    /// Whether its blocks are memory.
    pub memory: bool,
    /// What it is, with its parameters.
    pub about: &'static str,
}

macro_rules! subjects {
    ($($(#[$attribute:meta])* $id:literal: $type:ty, $own:literal, $about:literal;)*) => {
        /// All subjects, in the order of the tables.
        pub const ENTRIES: &[Entry] = &[$($(#[$attribute])* Entry {
            id: $id,
            own: $own,
            confined: <$type as Subject>::CONFINED,
            memory: <$type as Subject>::MEMORY,
            about: $about,
        }),*];

        /// Runs `visitor` for the subject `id`; `None` if there is no such subject.
        pub fn with<V: Visitor>(id: &str, visitor: V) -> Option<V::Out> {
            match id {
                NULL => Some(visitor.visit::<system::Null>()),
                $($(#[$attribute])* $id => Some(visitor.visit::<$type>()),)*
                _ => None,
            }
        }
    };
}

/// The subject that does nothing, whose cost is subtracted; not in [`ENTRIES`].
pub const NULL: &str = "null";

// A new subject is one line: name, type, whether it is ours, what it is.
subjects! {
    "allotment-tiered": own::Own<own::placement::Tiered>, true, "Tiered<Tlsf<InBand<u32, 8, 1>>>";
    "allotment-tlsf": own::Own<own::placement::Tlsf8>, true, "Tlsf<InBand<u32, 8, 1>>";
    "allotment-tlsf-16": own::Own<own::placement::Tlsf16>, true, "Tlsf<InBand<u32, 16, 1>>";
    "allotment-tlsf-compact": own::Own<own::placement::TlsfCompact>, true, "Tlsf<InBand<u16, 8, 1>, rows for 512 KiB, 8>: arenas up to 512 KiB";
    "allotment-first-fit": own::Own<own::placement::FirstFit>, true, "FirstFit<InBand<u32, 8, 1>>";
    "allotment-best-fit": own::Own<own::placement::BestFit>, true, "BestFit<InBand<u32, 8, 1>>";
    "allotment-buddy": own::Own<own::placement::Buddy>, true, "Buddy<InBand<u32, 8, 1>>";
    "allotment-slab": own::Own<own::placement::Slab>, true, "Slab<InBand<u32, 8, 1>>";
    "talc-5": talc::Five, false, "talc 5, default binning, one claimed arena";
    "talc-4": talc::Four, false, "talc 4, one claimed arena";
    "rlsf": rlsf::Large, false, "rlsf::Tlsf, 24 x 16 lists";
    "rlsf-small": rlsf::Small, false, "rlsf::Tlsf, 12 x 16 lists: arenas up to 128 KiB";
    "dlmalloc": wrapped::Dlmalloc, false, "dlmalloc (Rust), its system allocator hands out the arena";
    "good-memory": lists::GoodMemory, false, "good_memory_allocator, default bins";
    "linked-list": lists::LinkedList, false, "linked_list_allocator, O(n)";
    "buddy-system": lists::BuddySystem, false, "buddy_system_allocator, 32 orders";
    "embedded-tlsf": wrapped::EmbeddedTlsf, false, "embedded-alloc's TLSF (rlsf, 64 x 64 lists), critical section of std included";
    "embedded-llff": wrapped::EmbeddedLlff, false, "embedded-alloc's linked list, critical section of std included";
    "offset-allocator": wrapped::Offsets, false, "offset-allocator on byte offsets, no memory behind it";
    "system": system::System, false, "the system's malloc, no arena limit";
    #[cfg(feature = "mimalloc")]
    "mimalloc": system::MiMalloc, false, "mimalloc, no arena limit";
    #[cfg(feature = "snmalloc")]
    "snmalloc": system::SnMalloc, false, "snmalloc-rs, no arena limit";
}

/// The entry of a subject.
pub fn entry(id: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.id == id)
}
