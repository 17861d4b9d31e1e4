//! `GlobalAlloc` and the two `Allocator` traits, of the crate `allocator-api2` and of nightly Rust, written once for all fronts.

#[cfg(any(feature = "allocator-api2", feature = "nightly"))]
use super::Memory;
use core::alloc::Layout;
#[cfg(any(feature = "allocator-api2", feature = "nightly"))]
use core::ptr::NonNull;

/// Implements `GlobalAlloc` for a type that is a `Memory`: `global_alloc!([M: Memory] Front<M>);` If a hook or an observer panics, the
/// program ends. A type that calls neither is marked `plainly`. A type that may refuse requests itself names a function after `through`:
/// it returns the memory that is to satisfy a request, or `None`, in which case the request returns null without a report.
macro_rules! global_alloc {
    ([$($parameters:tt)*] $front:ty) => {
        $crate::memory::global_alloc!([$($parameters)*] $front, through $crate::memory::forward::itself);
    };
    ([$($parameters:tt)*] $front:ty, plainly) => {
        $crate::memory::global_alloc!(
            [$($parameters)*] $front, $crate::memory::forward::plainly, $crate::memory::forward::itself
        );
    };
    ([$($parameters:tt)*] $front:ty, through $gate:path) => {
        $crate::memory::global_alloc!([$($parameters)*] $front, $crate::misuse::without_unwinding, $gate);
    };
    ([$($parameters:tt)*] $front:ty, $run:path, $gate:path) => {
        // SAFETY: `Memory` makes the same promises: blocks are disjoint and have the requested size and alignment. Nothing unwinds.
        unsafe impl<$($parameters)*> ::core::alloc::GlobalAlloc for $front {
            #[inline]
            unsafe fn alloc(&self, layout: ::core::alloc::Layout) -> *mut u8 {
                let layout = $crate::memory::forward::raised(layout);
                $run(|| match $gate(self, layout) {
                    Some(memory) => $crate::memory::Memory::allocate_or_report(memory, layout),
                    None => ::core::ptr::null_mut(),
                })
            }

            #[inline]
            unsafe fn dealloc(&self, block: *mut u8, layout: ::core::alloc::Layout) {
                let layout = $crate::memory::forward::raised(layout);
                // SAFETY: the caller passes a live block, which is not null, and its layout.
                $run(|| unsafe {
                    let block = ::core::ptr::NonNull::new_unchecked(block);
                    $crate::memory::Memory::deallocate(self, block, layout);
                })
            }

            unsafe fn alloc_zeroed(&self, layout: ::core::alloc::Layout) -> *mut u8 {
                let layout = $crate::memory::forward::raised(layout);
                $run(|| {
                    let Some(memory) = $gate(self, layout) else { return ::core::ptr::null_mut() };
                    let request = || $crate::memory::Memory::allocate_zeroed(memory, layout);
                    match request() {
                        Some(block) => block.as_ptr(),
                        None => $crate::memory::refused(memory, layout, request),
                    }
                })
            }

            unsafe fn realloc(&self, block: *mut u8, layout: ::core::alloc::Layout, size: usize) -> *mut u8 {
                // SAFETY: the caller passes a live block, which is not null, its layout, and a new size that makes a valid layout.
                unsafe {
                    ::core::hint::assert_unchecked(size <= isize::MAX as usize);
                    let block = ::core::ptr::NonNull::new_unchecked(block);
                    let new = ::core::alloc::Layout::from_size_align_unchecked(size, layout.align());
                    let (layout, new) =
                        ($crate::memory::forward::raised(layout), $crate::memory::forward::raised(new));
                    $run(|| {
                        let Some(memory) = $gate(self, new) else { return ::core::ptr::null_mut() };
                        let request = || $crate::memory::Memory::change(memory, block, layout, new, &mut |_| ());
                        match request() {
                            Some(moved) => moved.as_ptr(),
                            None => $crate::memory::refused(memory, new, request),
                        }
                    })
                }
            }
        }
    };
}
pub(crate) use global_alloc;

/// Implements both `Allocator` traits for a type that is a `Memory`: `allocator!([M: Memory] Front<M>);`
macro_rules! allocator {
    ([$($parameters:tt)*] $front:ty) => {
        #[cfg(feature = "allocator-api2")]
        $crate::memory::allocator!(allocator_api2::alloc, [$($parameters)*] $front);
        #[cfg(feature = "nightly")]
        $crate::memory::allocator!(core::alloc, [$($parameters)*] $front);
    };
    ($module:path, [$($parameters:tt)*] $front:ty) => {
        const _: () = {
            use $module as api;
            use ::core::alloc::Layout;
            use ::core::ptr::NonNull;

            type Result = ::core::result::Result<NonNull<[u8]>, api::AllocError>;

            // SAFETY: no block lies inside the value itself, so blocks stay valid and in place when it is
            // borrowed or moved; blocks have at least the requested size and alignment.
            unsafe impl<$($parameters)*> api::Allocator for $front {
                fn allocate(&self, layout: Layout) -> Result {
                    $crate::memory::forward::some(self, layout, $crate::memory::Memory::allocate)
                        .ok_or(api::AllocError)
                }

                fn allocate_zeroed(&self, layout: Layout) -> Result {
                    $crate::memory::forward::some(self, layout, $crate::memory::Memory::allocate_zeroed)
                        .ok_or(api::AllocError)
                }

                unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
                    if layout.size() != 0 {
                        // SAFETY: the caller passes a live block of this memory and its layout.
                        unsafe { $crate::memory::Memory::deallocate(self, block, layout) }
                    }
                }

                unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result {
                    // SAFETY: the caller keeps the contract of this trait method, which is that of `change`.
                    unsafe { $crate::memory::forward::change(self, block, old, new) }.ok_or(api::AllocError)
                }

                unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result {
                    // SAFETY: the caller keeps the contract of `grow`; the bytes beyond the old size belong to the new block.
                    unsafe {
                        let block = api::Allocator::grow(self, block, old, new)?;
                        block.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size());
                        Ok(block)
                    }
                }

                unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result {
                    // SAFETY: the caller keeps the contract of this trait method, which is that of `change`.
                    unsafe { $crate::memory::forward::change(self, block, old, new) }.ok_or(api::AllocError)
                }
            }
        };
    };
}
pub(crate) use allocator;

/// Returns the layout that a request of Rust's own needs. What a panic raises has 56 bytes, of which LLVM's unwinder (musl, Apple, Android,
/// BSD) takes an alignment of 16 for granted, as C's heaps have it; but Rust asks for 8 (rust-lang/rust#161368).
#[inline(always)]
pub(crate) const fn raised(layout: Layout) -> Layout {
    const IS_LLVM: bool = cfg!(all(target_arch = "x86_64", unix, not(target_env = "gnu")));
    match Layout::from_size_align(56, 16) {
        Ok(raised) if IS_LLVM && layout.size() == 56 && layout.align() < 16 => raised,
        _ => layout,
    }
}

/// Runs `f`.
#[inline(always)]
pub(crate) fn plainly<T>(f: impl FnOnce() -> T) -> T {
    f()
}

/// Returns the memory itself for every request.
#[inline(always)]
pub(crate) fn itself<M>(memory: &M, _: Layout) -> Option<&M> {
    Some(memory)
}

/// Returns the address of a block of size zero: aligned, not null, and in no region.
#[cfg(any(feature = "allocator-api2", feature = "nightly"))]
fn dangling(layout: Layout) -> NonNull<u8> {
    // An alignment is never zero.
    NonNull::new(core::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

/// Calls `request` to allocate a block, unless its size is zero.
#[cfg(any(feature = "allocator-api2", feature = "nightly"))]
pub(crate) fn some<M: Memory>(
    memory: &M,
    layout: Layout,
    request: impl FnOnce(&M, Layout) -> Option<NonNull<u8>>,
) -> Option<NonNull<[u8]>> {
    let start = if layout.size() == 0 { dangling(layout) } else { request(memory, layout)? };
    Some(NonNull::slice_from_raw_parts(start, layout.size()))
}

/// Changes a block of layout `old` to layout `new`, in place if possible. Either size may be zero. Returns `None`,
/// with the block unchanged, if there is no room.
///
/// # Safety
///
/// `block` must be live, come from `memory` and have layout `old`. If a block is returned, the old one must not be
/// used any more.
#[cfg(any(feature = "allocator-api2", feature = "nightly"))]
pub(crate) unsafe fn change<M: Memory>(
    memory: &M,
    block: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Option<NonNull<[u8]>> {
    let start = match (old.size(), new.size()) {
        (0, 0) => dangling(new),
        (0, _) => memory.allocate(new)?,
        (_, 0) => {
            // SAFETY: the block is live and has layout `old`.
            unsafe { memory.deallocate(block, old) };
            dangling(new)
        }
        // SAFETY: the block is live and has layout `old`.
        _ => unsafe { memory.change(block, old, new, &mut |_| ()) }?,
    };
    Some(NonNull::slice_from_raw_parts(start, new.size()))
}
