//! [`Sealable`]: no allocation after start-up, and none in interrupt handlers.
//!
//! A program that allocates only while it starts cannot run out of memory a week later. [`Sealable::seal`] enforces this: each later
//! request fails, with an error that says why.
//!
//! ```
//! use allotment::out_of_memory::Cause;
//! use allotment::{Heap, Memory, Sealable, heap};
//! use core::alloc::Layout;
//!
//! static HEAP: Sealable<Heap> = Sealable::new(heap!(32 * 1024));
//!
//! let buffer = HEAP.try_allocate(Layout::new::<[u8; 100]>())?;
//! HEAP.seal();
//! let error = HEAP.try_allocate(Layout::new::<[u8; 200]>()).unwrap_err();
//! assert_eq!((error.requested, error.align, error.cause()), (200, 1, Cause::Sealed));
//! // Frees still work.
//! unsafe { HEAP.deallocate(buffer, Layout::new::<[u8; 100]>()) };
//! # Ok::<(), allotment::OutOfMemory>(())
//! ```
//!
//! As a global allocator, it passes that error to the [hook](crate::error::out_of_memory::set_hook), which can log it.
//!
//! # Interrupt handlers
//!
//! The second parameter detects running interrupt handlers: `()`, the default, never does. `CortexM` asks the processor, with one
//! instruction. For other processors the program implements [`Interrupts`]; for RISC-V, for example, with a flag that its handler sets:
//!
//! ```
//! use allotment::lock::Spin;
//! use allotment::out_of_memory::Cause;
//! use allotment::seal::Interrupts;
//! use allotment::{Heap, Memory, Sealable, Tlsf, heap};
//! use core::alloc::Layout;
//! use core::sync::atomic::{AtomicBool, Ordering};
//!
//! static HANDLING: AtomicBool = AtomicBool::new(false);
//!
//! struct Flag;
//! impl Interrupts for Flag {
//!     fn running() -> bool {
//!         HANDLING.load(Ordering::Relaxed)
//!     }
//! }
//!
//! // No handler takes the lock to allocate, so that it may be one that does not mask interrupts.
//! static HEAP: Sealable<Heap<Tlsf, Spin>, Flag> = Sealable::new(heap!(32 * 1024));
//!
//! fn handler() {
//!     HANDLING.store(true, Ordering::Relaxed);
//!     let error = HEAP.try_allocate(Layout::new::<u64>()).unwrap_err();
//!     assert_eq!(error.cause(), Cause::Interrupt);
//!     HANDLING.store(false, Ordering::Relaxed);
//! }
//! # handler();
//! # assert!(HEAP.try_allocate(Layout::new::<u64>()).is_ok());
//! ```

use crate::error::misuse::without_unwinding;
use crate::error::out_of_memory::{Cause, OutOfMemory};
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, is_panicking, pass_on};
use crate::units::debug;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

/// Detects whether an interrupt handler is running; see the [module](self).
pub trait Interrupts {
    /// Returns whether an interrupt handler is running on this core. Called for each request, and must not allocate. If it panics, the
    /// program ends.
    fn running() -> bool;
}

/// Lets handlers allocate, without detecting them.
impl Interrupts for () {
    #[inline(always)]
    fn running() -> bool {
        false
    }
}

/// Detects whether a Cortex-M core is handling an exception, by its register IPSR.
#[cfg(all(target_arch = "arm", target_os = "none"))]
pub struct CortexM;

#[cfg(all(target_arch = "arm", target_os = "none"))]
impl Interrupts for CortexM {
    #[inline(always)]
    fn running() -> bool {
        let exception: u32;
        // SAFETY: the instruction only reads a register.
        unsafe {
            core::arch::asm!("mrs {}, ipsr", out(reg) exception, options(nomem, nostack, preserves_flags));
        }
        exception != 0
    }
}

/// A memory that refuses all requests once it is sealed, and those of interrupt handlers if `I` detects them; see the [module](self).
///
/// Frees always work, and so does shrinking a block in place. A request costs one more load and branch, and the check of `I`; a free
/// costs nothing more. On a host, a panicking thread still gets memory, without which it could not report its panic.
pub struct Sealable<M, I = ()> {
    memory: M,
    sealed: AtomicBool,
    interrupts: PhantomData<fn() -> I>,
}

impl<M, I> Sealable<M, I> {
    /// Creates a front of `memory` that is not sealed.
    pub const fn new(memory: M) -> Self {
        Self { memory, sealed: AtomicBool::new(false), interrupts: PhantomData }
    }

    /// Seals the memory: requests that begin afterwards fail.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Unseals the memory, for tests and for updates of a running program: requests are allowed again.
    pub fn unseal(&self) {
        self.sealed.store(false, Ordering::Release);
    }

    /// Returns whether the memory is sealed.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M, I: Interrupts> Sealable<M, I> {
    /// Returns the rule that forbids a request now, if any.
    #[inline(always)]
    fn rule(&self) -> Option<Cause> {
        if without_unwinding(I::running) {
            Some(Cause::Interrupt)
        } else if self.is_sealed() && !is_panicking() {
            Some(Cause::Sealed)
        } else {
            None
        }
    }
}

// SAFETY: blocks come from the inner memory, which keeps the contract.
unsafe impl<M: Memory, I: Interrupts> Memory for Sealable<M, I> {
    allocate!(self.memory; |self, layout, request| if self.rule().is_none() { request(layout) } else { None });

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        (size <= layout.size() || self.rule().is_none())
            && unsafe { self.memory.try_resize(block, layout, size) }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        if self.rule().is_none() {
            // SAFETY: the caller's contract.
            return unsafe { self.memory.change(block, old, new, done) };
        }
        // SAFETY: the caller's contract.
        let shorter = new.align() == old.align()
            && new.size() <= old.size()
            && unsafe { self.memory.try_resize(block, old, new.size()) };
        if !shorter {
            return None;
        }
        done(block);
        Some(block)
    }

    fn allocate_many(&self, layout: Layout, blocks: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        if self.rule().is_some() { 0 } else { self.memory.allocate_many(layout, blocks) }
    }

    /// Returns the largest request that is sure to succeed now, or 0 while every request is refused.
    fn largest_free(&self) -> usize {
        if self.rule().is_some() { 0 } else { self.memory.largest_free() }
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        match self.rule() {
            // The handler may have interrupted the holder of the memory's lock.
            rule @ Some(Cause::Interrupt) => OutOfMemory { rule, ..OutOfMemory::new(layout, 0, 0) },
            rule @ Some(_) => OutOfMemory { largest_free: 0, rule, ..self.memory.out_of_memory(layout) },
            None => self.memory.out_of_memory(layout),
        }
    }

    pass_on!(
        |self| self.memory;
        deallocate, try_deallocate, deallocate_many, check, statistics, region, add_reserve, remembers, locks
    );
}

global_alloc!([M: Memory, I: Interrupts] Sealable<M, I>);
allocator!([M: Memory, I: Interrupts] Sealable<M, I>);

debug!([M, I] Sealable<M, I>, |self| sealed: self.is_sealed());
