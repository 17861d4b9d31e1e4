//! No allocation after start-up, and none in interrupt handlers.

use allotment::lock::Spin;
use allotment::out_of_memory::{Cause, set_hook};
use allotment::seal::Interrupts;
use allotment::{Bounded, Buddy, Heap, Memory, Sealable, Tlsf, heap};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Every kind of request for `layout` fails for this `cause`, and so does every growth of `block`, which has layout `old`.
fn refuses<M: Memory + GlobalAlloc>(memory: &M, cause: Cause, block: NonNull<u8>, old: Layout) {
    let layout = bytes(48);
    let error = memory.try_allocate(layout).unwrap_err();
    assert_eq!((error.requested, error.align, error.largest_free), (48, 8, 0));
    assert_eq!((error.rule, error.cause()), (Some(cause), cause));
    assert_eq!(memory.try_allocate_zeroed(layout).unwrap_err().cause(), cause);
    assert!(memory.allocate(layout).is_none() && memory.allocate_zeroed(layout).is_none());
    assert_eq!(memory.allocate_many(layout, &mut [MaybeUninit::uninit(); 4]), 0);
    assert_eq!(memory.largest_free(), 0);
    let longer = bytes(old.size() + 8);
    // SAFETY: the block is live, has layout `old`, and stays as it is, because nothing of this succeeds.
    unsafe {
        assert!(memory.alloc(layout).is_null() && memory.alloc_zeroed(layout).is_null());
        assert!(!memory.try_resize(block, old, longer.size()));
        assert!(memory.change(block, old, longer, &mut |_| panic!("it has no new address")).is_none());
        assert!(memory.realloc(block.as_ptr(), old, longer.size()).is_null());
    }
}

/// A memory of one free region, so that `block` could grow where it is.
fn sealed_and_back<M: Memory + GlobalAlloc>(heap: Sealable<M>, used: impl Fn(&M) -> usize) {
    let old = bytes(800);
    let block = heap.try_allocate(old).unwrap();
    let other = heap.try_allocate(bytes(100)).unwrap();
    assert!(heap.largest_free() > 1000 && !heap.is_sealed());
    heap.seal();
    assert!(heap.is_sealed());
    refuses(&heap, Cause::Sealed, block, old);
    assert_eq!(heap.check(block, old), Ok(()));
    // SAFETY: both blocks are live, and freed once each with the layouts that they have.
    unsafe {
        // Shorter where it is, which needs no memory.
        let mut told = None;
        assert_eq!(heap.change(block, old, bytes(400), &mut |at| told = Some(at)), told);
        let left = told.map_or(old, |at| {
            assert_eq!(at, block);
            bytes(400)
        });
        heap.try_deallocate(other, bytes(100)).unwrap();
        heap.dealloc(block.as_ptr(), left);
    }
    assert_eq!(used(heap.memory()), 0, "frees work");
    assert_eq!(heap.try_allocate(bytes(8)).unwrap_err().cause(), Cause::Sealed);
    heap.unseal();
    let block = heap.try_allocate(bytes(8)).unwrap();
    // SAFETY: the block is live.
    unsafe { heap.deallocate(block, bytes(8)) };
    assert_ne!(heap.try_allocate(bytes(1 << 20)).unwrap_err().cause(), Cause::Sealed);
}

#[test]
fn a_sealed_memory_only_frees() {
    sealed_and_back(Sealable::new(heap!(16 * 1024) as Heap<Tlsf, Spin>), Heap::used);
    sealed_and_back(Sealable::new(heap!(16 * 1024) as Heap<Buddy, Spin>), Heap::used);
    let bounded = Bounded::new(heap!(16 * 1024) as Heap<Tlsf, Spin>, 8000);
    sealed_and_back(Sealable::new(bounded), |bounded: &Bounded<Heap<Tlsf, Spin>, Spin>| bounded.used());
}

/// A block that would have to move to become shorter stays.
#[test]
fn a_sealed_memory_moves_nothing() {
    let heap: Sealable<Heap<Tlsf, Spin>> = Sealable::new(heap!(16 * 1024));
    let (old, new) = (bytes(64), Layout::from_size_align(32, 64).unwrap());
    let block = heap.try_allocate(old).unwrap();
    heap.seal();
    // SAFETY: the block is live and has layout `old`.
    unsafe {
        assert!(heap.change(block, old, new, &mut |_| ()).is_none());
        heap.deallocate(block, old);
    }
}

/// A quota in front of a seal, and behind one: the error names the rule that refuses.
#[test]
fn rules_are_told_apart() {
    let front = Bounded::<_, Spin>::new(Sealable::<Heap<Tlsf, Spin>>::new(heap!(16 * 1024)), 1000);
    assert_eq!(front.try_allocate(bytes(1001)).unwrap_err().cause(), Cause::Quota);
    front.memory().seal();
    assert_eq!(front.try_allocate(bytes(1001)).unwrap_err().cause(), Cause::Quota);
    assert_eq!(front.try_allocate(bytes(1000)).unwrap_err().cause(), Cause::Sealed);
    assert_eq!(front.used(), 0);
    let behind = Sealable::<_>::new(Bounded::<_, Spin>::new(heap!(16 * 1024) as Heap<Tlsf, Spin>, 1000));
    assert_eq!(behind.try_allocate(bytes(1001)).unwrap_err().cause(), Cause::Quota);
    behind.seal();
    assert_eq!(behind.try_allocate(bytes(1001)).unwrap_err().cause(), Cause::Sealed);
}

thread_local! {
    /// Whether the thread is in a handler.
    static HANDLING: Cell<bool> = const { Cell::new(false) };
}

struct Handler;

impl Interrupts for Handler {
    fn running() -> bool {
        HANDLING.get()
    }
}

/// A handler is refused even while its victim holds the lock: the memory is not looked at. Its frees work.
#[test]
fn handlers_are_refused() {
    static HEAP: Sealable<Heap<Tlsf, Spin>, Handler> = Sealable::new(heap!(16 * 1024));
    let old = bytes(100);
    let block = HEAP.try_allocate(old).unwrap();
    HANDLING.set(true);
    {
        let locked = |_: &mut Tlsf| refuses(&HEAP, Cause::Interrupt, block, old);
        // SAFETY: `locked` changes nothing of the placement.
        unsafe { HEAP.memory().with_placement(locked) };
    }
    HEAP.seal();
    assert_eq!(HEAP.try_allocate(bytes(8)).unwrap_err().cause(), Cause::Interrupt);
    // SAFETY: the block is live.
    unsafe { HEAP.deallocate(block, old) };
    HANDLING.set(false);
    assert_eq!(HEAP.try_allocate(bytes(8)).unwrap_err().cause(), Cause::Sealed);
    assert_eq!(HEAP.memory().used(), 0);
}

/// The hook of a global allocator hears why. There is one hook for all tests, so it looks for this one's size.
#[test]
fn the_hook_hears_of_the_seal() {
    static HEARD: Mutex<Option<(usize, Cause)>> = Mutex::new(None);
    set_hook(|error| {
        if error.requested == 51_966 {
            *HEARD.lock().unwrap() = Some((error.align, error.cause()));
        }
    });
    let heap: Sealable<Heap<Tlsf, Spin>> = Sealable::new(heap!(128 * 1024));
    heap.seal();
    // SAFETY: the layout is not empty.
    assert!(unsafe { heap.alloc(Layout::from_size_align(51_966, 16).unwrap()) }.is_null());
    assert_eq!(*HEARD.lock().unwrap(), Some((16, Cause::Sealed)));
}

/// A thread that panics has to report that, so it gets memory.
#[test]
#[cfg(any(feature = "std", feature = "host"))]
fn a_panic_can_be_reported() {
    static HEAP: Sealable<Heap<Tlsf, Spin>> = Sealable::new(heap!(16 * 1024));
    struct OnDrop;
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let block = HEAP.try_allocate(bytes(8)).expect("the thread is panicking");
            // SAFETY: the block is live.
            unsafe { HEAP.deallocate(block, bytes(8)) };
        }
    }
    HEAP.seal();
    let panic = std::panic::catch_unwind(|| {
        let _on_drop = OnDrop;
        std::panic::resume_unwind(Box::new(5));
    });
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&5));
    assert!(HEAP.allocate(bytes(8)).is_none());
}
