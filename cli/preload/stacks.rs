//! The stack of a call: who asked for memory.
//!
//! A walk asks a table for the rule at each address (`cfi`), which takes a few nanoseconds a frame. Rules that are not there are looked
//! up in the unwinding tables of the program and its libraries, once each. Nothing of this takes the recorder's lock, except to name a
//! module: finding one waits for the dynamic linker, which may be allocating on another thread.

use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::cfi::{Base, Rule, Saved, rule};
use crate::modules::Module;

/// The most frames of a stack.
const MOST: usize = 128;

/// The most bytes of a frame.
const MOST_BYTES: usize = 16 << 20;

/// The function to call for each module that is found, a [`Named`]; null if no stacks are recorded.
static NAMED: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// A function that records a module, unless it is recorded already.
pub type Named = fn(&Module);

/// Where this library lies, whose frames are left out.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Rules by addresses: what is left of the address in the upper half, the packed rule in the lower.
static RULES: [AtomicU64; 1 << INDEX] = [const { AtomicU64::new(0) }; 1 << INDEX];
const INDEX: u32 = 15;
/// Bits of an address of a program.
const ADDRESS: u32 = 47;
const _: () = assert!(ADDRESS - INDEX == 32 && Rule::BITS < 32);

/// Return addresses, the innermost first; each less one, so that it lies in the call.
pub struct Stack {
    frames: [MaybeUninit<usize>; MOST],
    count: usize,
    /// A number for the whole.
    pub hash: u64,
}

/// The registers of a walk.
#[derive(Clone, Copy)]
struct Place {
    code: usize,
    stack: usize,
    frame: usize,
}

impl Stack {
    /// Creates a stack without frames.
    pub const fn new() -> Self {
        Self { frames: [MaybeUninit::uninit(); MOST], count: 0, hash: 0 }
    }

    /// Returns the frames.
    pub fn frames(&self) -> &[usize] {
        // SAFETY: so many were written.
        unsafe { slice::from_raw_parts(self.frames.as_ptr().cast(), self.count) }
    }

    /// Captures the stack of the caller's caller outside of this library, if stacks are recorded.
    #[inline]
    pub fn capture(&mut self) {
        if !NAMED.load(Ordering::Relaxed).is_null() {
            self.walk();
        }
    }

    #[inline(never)]
    fn walk(&mut self) {
        let (code, stack, frame): (usize, usize, usize);
        // SAFETY: reads three registers.
        unsafe {
            core::arch::asm!(
                "lea {code}, [rip]",
                "mov {stack}, rsp",
                "mov {frame}, rbp",
                code = out(reg) code,
                stack = out(reg) stack,
                frame = out(reg) frame,
                options(nomem, nostack, preserves_flags),
            );
        }
        let mut at = Place { code, stack, frame };
        let own = OWN[0].load(Ordering::Relaxed)..OWN[1].load(Ordering::Relaxed);
        // SAFETY: the registers are those of this function, and the tables say how to find its callers.
        while let Some(next) = unsafe { step(at) } {
            at = next;
            if self.count == 0 && own.contains(&at.code) {
                continue;
            }
            self.frames[self.count].write(at.code);
            self.hash = (self.hash ^ at.code as u64).wrapping_mul(0xF135_7AEA_2E62_A9C5).rotate_left(23);
            self.count += 1;
            if self.count == MOST {
                return;
            }
        }
    }
}

/// Returns the registers of the caller, or of what a signal interrupted; `None` at the end.
///
/// # Safety
///
/// The registers must be those of running code whose module has tables that are right.
unsafe fn step(at: Place) -> Option<Place> {
    let word = |address: usize| {
        // SAFETY: the address is inside of the frames of running code.
        unsafe { ptr::with_exposed_provenance::<usize>(address).read() }
    };
    let inside =
        |address: usize| address > at.stack && address - at.stack <= MOST_BYTES && address.is_multiple_of(8);
    let (end, frame) = match rule_of(at.code) {
        Rule::Frame(base, end, saved) => {
            let offset = end as isize as usize;
            let end = match base {
                Base::Stack => at.stack.wrapping_add(offset),
                Base::Frame => at.frame.wrapping_add(offset),
                Base::Stored if inside(at.frame) => word(at.frame.wrapping_add(offset)),
                Base::Stored => return None,
            };
            if !inside(end) {
                return None;
            }
            let frame = match saved {
                Saved::Kept => at.frame,
                Saved::FromEnd(offset) => word(end.wrapping_add(offset as isize as usize)),
                Saved::FromFrame(offset) => word(at.frame.wrapping_add(offset as isize as usize)),
            };
            (end, frame)
        }
        Rule::Signal => {
            // The stack pointer is at a `ucontext_t`, whose registers are in the order of the system.
            let (code, stack, frame) = (word(at.stack + 168), word(at.stack + 160), word(at.stack + 120));
            return (code > 4096).then_some(Place { code, stack, frame });
        }
        // Code without tables, such as that of a compiler in the program: it may keep a frame pointer.
        Rule::Unknown if at.frame >= at.stack && inside(at.frame + 8) && at.frame - at.stack < 1 << 20 => {
            (at.frame + 16, word(at.frame))
        }
        Rule::Unknown | Rule::Outermost => return None,
    };
    let code = word(end - 8);
    (code > 4096).then_some(Place { code: code - 1, stack: end, frame })
}

/// Returns the rule at an address.
#[inline]
fn rule_of(address: usize) -> Rule {
    let mixed = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) & ((1 << ADDRESS) - 1);
    let entry = &RULES[(mixed >> 32) as usize & ((1 << INDEX) - 1)];
    let known = entry.load(Ordering::Relaxed);
    if (known ^ mixed << 32) >> 32 == 0 && known as u32 != 0 {
        return Rule::unpacked(known as u32);
    }
    look_up(address, entry, mixed)
}

#[cold]
#[inline(never)]
fn look_up(address: usize, entry: &AtomicU64, mixed: u64) -> Rule {
    if address >> ADDRESS != 0 {
        return Rule::Unknown;
    }
    let Some(module) = Module::of(address) else { return Rule::Unknown };
    // SAFETY: a walk began, so this is the function that `start` was given.
    let named = unsafe { transmute::<*mut (), Named>(NAMED.load(Ordering::Relaxed)) };
    named(&module);
    // SAFETY: the header is that of a module that is loaded.
    let found = unsafe { rule(module.header, address as u64) };
    if let Some(packed) = found.packed() {
        entry.store(mixed << 32 | u64::from(packed), Ordering::Relaxed);
    }
    found
}

/// Forgets all rules: a module is gone, and another one may take its place.
pub fn forget() {
    for entry in &RULES {
        entry.store(0, Ordering::Relaxed);
    }
}

/// Records stacks from now on; calls `named` for each module that is found.
pub fn start(named: Named) {
    if let Some(own) = Module::of(start as *const () as usize) {
        OWN[0].store(own.start, Ordering::Relaxed);
        OWN[1].store(own.end, Ordering::Relaxed);
        NAMED.store(named as *mut (), Ordering::Relaxed);
    }
}
