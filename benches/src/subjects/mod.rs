//! The allocators under test: one trait, and one line per allocator.

#[cfg(feature = "peers")]
pub mod lists;
pub mod null;
pub mod own;
#[cfg(feature = "peers")]
pub mod peers;
pub mod registered;
#[cfg(feature = "peers")]
pub mod rlsf;
#[cfg(feature = "peers")]
pub mod talc;
#[cfg(feature = "peers")]
pub mod wrapped;

use std::alloc::Layout;
use std::thread;

use allotment::lock::{Spin, Unsync};
use allotment::os::Cached;
use allotment::placement::QuickLists;
use allotment::{Heap, Tiered, Tlsf};

use crate::arena::Range;

/// An allocator, as used by all measures.
///
/// # Safety
///
/// Unless [`Subject::MEMORY`] is false, live blocks must not overlap, must lie in the arena if there is one, and
/// must have the requested size and alignment.
pub unsafe trait Subject: Sized + 'static {
    /// Whether it is confined to the arena.
    const CONFINED: bool = true;
    /// Whether blocks are memory; otherwise their addresses are mere names.
    const MEMORY: bool = true;
    /// Whether every value needs a new thread; see [`isolated`].
    const OWN_THREAD: bool = false;

    /// Makes an allocator over `arena`; `None` if the arena is too small. It stays in the box, since some
    /// allocators must not move.
    ///
    /// # Safety
    ///
    /// The arena must be valid, and nothing else may use it while the allocator exists.
    unsafe fn new(arena: Range) -> Option<Box<Self>>;

    /// Returns the bytes of state outside the arena, which the density measures charge: the allocator's own size.
    fn state() -> usize {
        size_of::<Self>()
    }

    /// Allocates a block; null if there is no room.
    ///
    /// # Safety
    ///
    /// The layout's size must not be zero.
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8;

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The block must be live and allocated with `layout`.
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout);

    /// Resizes a block in place or by moving it. If that is impossible, returns null and leaves the block
    /// unchanged.
    ///
    /// # Safety
    ///
    /// The block must be live and allocated with `layout`, and the new size must not be zero.
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract; both blocks are live, so they do not overlap.
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

/// Every operation of every allocator is measured behind one call that is not inlined, as with a global allocator.
/// The calls of the null subject are subtracted.
pub mod call {
    use super::{Layout, Subject};

    /// Calls [`Subject::alloc`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Subject::alloc`]: the layout's size must not be zero.
    #[inline(never)]
    pub unsafe fn alloc<S: Subject>(subject: &mut S, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { subject.alloc(layout) }
    }

    /// Calls [`Subject::dealloc`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Subject::dealloc`]: the block must be live and allocated with `layout`.
    #[inline(never)]
    pub unsafe fn dealloc<S: Subject>(subject: &mut S, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { subject.dealloc(block, layout) }
    }

    /// Calls [`Subject::realloc`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Subject::realloc`]: the block must be live and allocated with `layout`, and the new size
    /// must not be zero.
    #[inline(never)]
    pub unsafe fn realloc<S: Subject>(
        subject: &mut S,
        block: *mut u8,
        layout: Layout,
        size: usize,
    ) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { subject.realloc(block, layout, size) }
    }
}

/// Runs `f`, in a separate thread if the subject needs one. When this returns, that thread has ended, destructors
/// included.
pub fn isolated<S: Subject, T: Send>(f: impl FnOnce() -> T + Send) -> T {
    if !S::OWN_THREAD {
        return f();
    }
    thread::scope(|scope| scope.spawn(f).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Code that is compiled once per subject.
pub trait Visitor {
    /// The result.
    type Out;
    /// Runs with one subject.
    fn visit<S: Subject>(self) -> Self::Out;
}

/// The form in which an allocator is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As registered by programs: with its usual lock, statistics, regions and other defaults.
    Registered,
    /// The same without a lock.
    Bare,
    /// One of ours without lock and statistics, and with a single region.
    Stripped,
}

/// The description of a subject for the tables.
pub struct Entry {
    /// Its name in tables and files.
    pub id: &'static str,
    /// Whether it belongs to allotment.
    pub own: bool,
    /// The form in which it is measured.
    pub form: Form,
    /// Whether it is confined to an arena.
    pub confined: bool,
    /// Whether its blocks are memory.
    pub memory: bool,
    /// Whether every value needs a new thread.
    pub own_thread: bool,
    /// A description with its parameters.
    pub about: &'static str,
}

macro_rules! subjects {
    ($($(#[$attribute:meta])* $id:literal: $type:ty, $own:ident, $form:ident, $about:literal;)*) => {
        /// All subjects, in the order of the tables.
        pub const ENTRIES: &[Entry] = &[$($(#[$attribute])* Entry {
            id: $id,
            own: subjects!(@own $own),
            form: Form::$form,
            confined: <$type as Subject>::CONFINED,
            memory: <$type as Subject>::MEMORY,
            own_thread: <$type as Subject>::OWN_THREAD,
            about: $about,
        }),*];

        /// Runs `visitor` with the subject `id`; `None` if there is no such subject.
        pub fn with<V: Visitor>(id: &str, visitor: V) -> Option<V::Out> {
            match id {
                NULL => Some(visitor.visit::<null::Null>()),
                LOADING => Some(visitor.visit::<null::Loading>()),
                $($(#[$attribute])* $id => Some(visitor.visit::<$type>()),)*
                _ => None,
            }
        }
    };
    (@own ours) => { true };
    (@own peer) => { false };
}

/// The subject that does nothing and reads nothing; not in [`ENTRIES`].
pub const NULL: &str = "null";

/// The subject that does nothing with its arguments, whose cost is subtracted; not in [`ENTRIES`].
pub const LOADING: &str = "null, arguments loaded";

/// The bytes of the [`allotment::TinyHeap`] that replays traces, which is the maximum.
pub const TINY: usize = 512 << 10;

/// The subject that ratios refer to: talc 5 in the same form.
pub fn base(form: Form) -> &'static str {
    match form {
        Form::Registered => "talc-5",
        Form::Bare | Form::Stripped => "talc-5, no lock",
    }
}

// A new subject takes one line: name, type, origin, form, description.
subjects! {
    "Heap": Heap, ours, Registered, "Heap, as heap! makes it: Tiered, several regions, Counters, the default lock";
    "Heap<Tlsf>": Heap<Tlsf>, ours, Registered, "Heap<Tlsf>: several regions, Counters, the default lock";
    "Heap<FirstFit>": Heap<allotment::FirstFit>, ours, Registered, "Heap<FirstFit>: several regions, Counters, the default lock";
    "Heap<BestFit>": Heap<allotment::BestFit>, ours, Registered, "Heap<BestFit>, the same";
    "Heap<Buddy>": Heap<allotment::Buddy>, ours, Registered, "Heap<Buddy>, the same";
    "Heap<Slab>": Heap<allotment::Slab>, ours, Registered, "Heap<Slab>, the same, with its default classes over buddies";
    "Heap<QuickLists>": Heap<QuickLists<Tlsf>>, ours, Registered, "Heap<QuickLists<Tlsf>>, merging deferred: several regions, Counters, the default lock";
    "Heap, spin": Heap<Tiered, Spin>, ours, Registered, "Heap behind lock::Spin instead of the default lock";
    "Cached": Cached, ours, Registered, "os::Cached over such a Heap, 512 KiB per thread";
    "TinyHeap": own::Tiny<TINY>, ours, Registered, "TinyHeap<524288>, whatever the arena: the default lock, no statistics";
    #[cfg(feature = "peers")]
    "talc-5": peers::Talc, peer, Registered, "talc 5: TalcLock<spinning_top::RawSpinlock, Manual>, one claimed arena";
    #[cfg(feature = "peers")]
    "rlsf": peers::GlobalRlsf, peer, Registered, "rlsf::GlobalTlsf, 64 x 64 lists, a mutex of pthread; maps its memory itself";
    #[cfg(feature = "peers")]
    "dlmalloc": dlmalloc::GlobalDlmalloc, peer, Registered, "dlmalloc::GlobalDlmalloc (Rust), a mutex of pthread; maps its memory itself";
    #[cfg(feature = "peers")]
    "good-memory": peers::GoodMemory, peer, Registered, "good_memory_allocator::SpinLockedAllocator";
    #[cfg(feature = "peers")]
    "linked-list": linked_list_allocator::LockedHeap, peer, Registered, "linked_list_allocator::LockedHeap, O(n)";
    #[cfg(feature = "peers")]
    "buddy-system": peers::BuddySystem, peer, Registered, "buddy_system_allocator::LockedHeap<32>";
    #[cfg(feature = "peers")]
    "embedded-tlsf": embedded_alloc::TlsfHeap, peer, Registered, "embedded-alloc's TLSF (rlsf, 64 x 64 lists), the critical section of std";
    #[cfg(feature = "peers")]
    "embedded-llff": embedded_alloc::LlffHeap, peer, Registered, "embedded-alloc's linked list, the critical section of std";
    #[cfg(feature = "peers")]
    "system": std::alloc::System, peer, Registered, "the system's malloc, no arena limit";
    #[cfg(feature = "mimalloc")]
    "mimalloc": mimalloc::MiMalloc, peer, Registered, "mimalloc, no arena limit";
    #[cfg(feature = "snmalloc")]
    "snmalloc": snmalloc_rs::SnMalloc, peer, Registered, "snmalloc-rs, no arena limit";
    #[cfg(feature = "jemalloc")]
    "jemalloc": tikv_jemallocator::Jemalloc, peer, Registered, "jemalloc (tikv-jemallocator), no arena limit";
    "Heap, no lock": own::Bare<Tiered>, ours, Bare, "Heap<Tiered, Unsync>: several regions, Counters";
    "Heap<Tlsf>, no lock": own::Bare<Tlsf>, ours, Bare, "Heap<Tlsf, Unsync>: several regions, Counters";
    "Heap<QuickLists>, no lock": own::Bare<QuickLists<Tlsf>>, ours, Bare, "Heap<QuickLists<Tlsf>, Unsync>: several regions, Counters";
    "TinyHeap, no lock": own::Tiny<TINY, Unsync>, ours, Bare, "TinyHeap<524288, Unsync>, whatever the arena";
    "Heap, stripped": own::Stripped<own::one_region::Tiered>, ours, Stripped, "Tiered<Tlsf<u32, 1, 16>>: no lock, no statistics, one region";
    "Heap<Tlsf>, stripped": own::Stripped<own::one_region::Tlsf8>, ours, Stripped, "Tlsf<u32, 1>, the same way";
    "Heap<Tlsf16>, stripped": own::Stripped<own::one_region::TlsfCompact>, ours, Stripped, "Tlsf<u16, 1, 8>, the same way: arenas up to 512 KiB";
    #[cfg(feature = "peers")]
    "talc-5, no lock": talc::Five, peer, Bare, "talc 5 as a plain value, default binning, one claimed arena";
    #[cfg(feature = "peers")]
    "talc-4, no lock": talc::Four, peer, Bare, "talc 4 as a plain value, one claimed arena";
    #[cfg(feature = "peers")]
    "rlsf, no lock": rlsf::Large, peer, Bare, "rlsf::Tlsf as a plain value, 24 x 16 lists";
    #[cfg(feature = "peers")]
    "rlsf-small, no lock": rlsf::Small, peer, Bare, "rlsf::Tlsf as a plain value, 12 x 16 lists: arenas up to 128 KiB";
    #[cfg(feature = "peers")]
    "dlmalloc, no lock": wrapped::Dlmalloc, peer, Bare, "dlmalloc (Rust) as a plain value, its system allocator hands out the arena";
    #[cfg(feature = "peers")]
    "good-memory, no lock": lists::GoodMemory, peer, Bare, "good_memory_allocator as a plain value, default bins";
    #[cfg(feature = "peers")]
    "linked-list, no lock": lists::LinkedList, peer, Bare, "linked_list_allocator as a plain value, O(n)";
    #[cfg(feature = "peers")]
    "buddy-system, no lock": lists::BuddySystem, peer, Bare, "buddy_system_allocator as a plain value, 32 orders";
    #[cfg(feature = "peers")]
    "offset-allocator": wrapped::Offsets, peer, Bare, "offset-allocator on byte offsets, no memory behind it";
}

/// Returns whether a subject is allotment's, also if it is not in [`ENTRIES`] because one measure alone has it.
pub fn is_own(id: &str) -> bool {
    let named = || ["allotment", "Heap", "Cached"].iter().any(|name| id.starts_with(name));
    entry(id).map_or_else(named, |entry| entry.own)
}

/// Returns the entry of a subject.
pub fn entry(id: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.id == id)
}
