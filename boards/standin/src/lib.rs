#![no_std]
use core::{alloc::*, cell::*, marker::PhantomData, ptr::*};
pub struct Tlsf;
pub struct CompactTlsf;
pub mod lock {
    pub struct CriticalSection;
}
#[derive(Clone, Copy)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Stats {
    pub used: usize,
    pub peak: usize,
    pub free: usize,
    pub largest_free: usize,
}
impl Stats {
    pub fn fragmentation(&self) -> u32 {
        0
    }
}
pub struct Heap<P, L> {
    inner: critical_section::Mutex<RefCell<(linked_list_allocator::Heap, usize)>>,
    arena: UnsafeCell<*mut u8>,
    len: usize,
    _p: PhantomData<fn() -> (P, L)>,
}
unsafe impl<P, L> Sync for Heap<P, L> {}
impl<P, L> Heap<P, L> {
    pub const fn new(arena: *mut u8, len: usize) -> Self {
        Self {
            inner: critical_section::Mutex::new(RefCell::new((
                linked_list_allocator::Heap::empty(),
                0,
            ))),
            arena: UnsafeCell::new(arena),
            len,
            _p: PhantomData,
        }
    }
    fn with<R>(&self, f: impl FnOnce(&mut (linked_list_allocator::Heap, usize)) -> R) -> R {
        critical_section::with(|cs| {
            let mut h = self.inner.borrow_ref_mut(cs);
            if h.0.size() == 0 {
                unsafe { h.0.init(*self.arena.get(), self.len) }
            }
            f(&mut h)
        })
    }
    pub fn stats(&self) -> Stats {
        self.with(|h| Stats {
            used: h.0.used(),
            peak: h.1,
            free: h.0.free(),
            largest_free: h.0.free(),
        })
    }
}
unsafe impl<P, L> GlobalAlloc for Heap<P, L> {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        self.with(|h| {
            let p = h.0.allocate_first_fit(l).map_or(null_mut(), |p| p.as_ptr());
            h.1 = h.1.max(h.0.used());
            p
        })
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        self.with(|h| unsafe { h.0.deallocate(NonNull::new_unchecked(p), l) })
    }
}
#[macro_export]
macro_rules! heap {
    ($n:expr) => {
        $crate::Heap::new(
            {
                #[repr(align(16))]
                struct A([u8; $n]);
                static mut ARENA: A = A([0; $n]);
                &raw mut ARENA as *mut u8
            },
            $n,
        )
    };
}
