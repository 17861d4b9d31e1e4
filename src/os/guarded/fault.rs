//! Reports of faults in the pool and of invalid frees.

use super::pool::{BYTES, Pool, Slot, Trace};
use crate::error::report;
use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The pool that was created last.
static POOLS: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

/// Earlier handlers of [`SIGNALS`].
static mut BEFORE: [mem::MaybeUninit<libc::sigaction>; 2] = [const { mem::MaybeUninit::uninit() }; 2];

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Reports faults in a pool from now on.
///
/// # Safety
///
/// The pool must live forever, and its state must be initialised.
pub(super) unsafe fn watch(pool: *mut Pool) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let mut last = POOLS.load(Ordering::Acquire);
    loop {
        // SAFETY: nothing else uses the pool yet.
        unsafe { (*pool).next = last };
        match POOLS.compare_exchange(last, pool, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(other) => last = other,
        }
    }
    if BEGUN.swap(true, Ordering::AcqRel) {
        return;
    }
    for (n, signal) in SIGNALS.into_iter().enumerate() {
        // SAFETY: the action is valid, and only this call writes to the place.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, (&raw mut BEFORE[n]).cast());
        }
    }
}

/// Reports a fault in a pool. Then restores the earlier signal action and lets the access fault again, which ends the program or runs its
/// own handler.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes the signal's information; pools live forever.
    unsafe {
        let address = (*info).si_addr().addr();
        let mut pool = POOLS.load(Ordering::Acquire);
        while let Some(one) = pool.as_ref() {
            if address.wrapping_sub(one.region().start.addr().get()) < BYTES {
                match one.nearest(address) {
                    Some(slot) => print_fault(address, slot),
                    None => {
                        print_raw(format_args!("allotment: access to {address:#x} beside all sampled blocks"))
                    }
                }
                break;
            }
            pool = one.next;
        }
        if let Some(n) = SIGNALS.iter().position(|&known| known == signal) {
            libc::sigaction(signal, (&raw const BEFORE[n]).cast(), ptr::null_mut());
        }
    }
}

/// Writes a line to standard error without the standard library's lock, which the thread may hold.
fn print_raw(text: fmt::Arguments<'_>) {
    // SAFETY: the bytes are initialised. A failed write cannot be reported.
    report::line(text, |line| _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) });
}

fn print_fault(address: usize, slot: &Slot) {
    let (start, end, size) = (slot.start, slot.start + slot.size, slot.size);
    let what = if slot.live { "access outside of a block" } else { "use after free" };
    let (far, place) = match address {
        _ if address < start => (start - address, "before"),
        _ if address >= end => (address - end, "behind"),
        _ => (address - start, "into"),
    };
    print_raw(format_args!(
        "allotment: {what} at {address:#x}, {far} bytes {place} the block of {size} bytes at {start:#x}"
    ));
    print_stack("the access", &Trace::here());
    print_block(slot);
}

/// Prints who allocated a block, and who freed it.
pub(super) fn print_block(slot: &Slot) {
    print_stack("allocated", &slot.allocated);
    if !slot.live {
        print_stack("freed", &slot.freed);
    }
}

/// Prints a stack, each address with its file and its offset there, which `addr2line -e FILE OFFSET` turns into a line.
fn print_stack(what: &str, trace: &Trace) {
    print_raw(format_args!("  {what}, by thread {}:", trace.thread));
    for (n, &address) in trace.frames().iter().enumerate() {
        let mut place = mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: the place is valid for a write, and initialised if the address is known. Names end with a zero byte.
        unsafe {
            let known = libc::dladdr(ptr::without_provenance(address), place.as_mut_ptr()) != 0;
            let place = known.then(|| place.assume_init());
            match place.filter(|place| !place.dli_fname.is_null()) {
                Some(place) => {
                    let file = CStr::from_ptr(place.dli_fname).to_str().unwrap_or("?");
                    let offset = address.wrapping_sub(place.dli_fbase.addr());
                    print_raw(format_args!("    #{n} {address:#x} {file} {offset:#x}"));
                }
                None => print_raw(format_args!("    #{n} {address:#x}")),
            }
        }
    }
    if trace.frames().is_empty() {
        print_raw(format_args!("    (the feature `backtrace` records stacks)"));
    }
}
