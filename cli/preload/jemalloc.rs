//! Records programs that are linked with jemalloc, which calls hooks at its requests (`experimental.hooks`, from 5.2 on).
//!
//! The tool looks up jemalloc's function `mallctl` in the program's symbols, and says in `ALLOTMENT_RECORD_JEMALLOC` which program it is in
//! and where. A block that moves is a new one here, whose old one is freed afterwards.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::{self, with_exposed_provenance};

use allotment_event::Action;

use crate::hooks::{write_allocation, write_free};
use crate::modules::Module;
use crate::real::real;
use crate::recorder::{hold, recorded};
use crate::stacks::Stack;
use crate::{sample, starts, sys};

type Control = unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *const c_void, usize) -> c_int;

/// jemalloc's `hooks_t`.
#[repr(C)]
struct Hooks {
    allocate: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize, *const usize),
    free: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *const usize),
    resize: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize, usize, usize, *const usize),
    extra: *mut c_void,
}

// The functions that were called, as jemalloc numbers them in each hook.
const MALLOC: c_int = 0;
const POSIX_MEMALIGN: c_int = 1;
const ALIGNED_ALLOC: c_int = 2;
const CALLOC: c_int = 3;
const MEMALIGN: c_int = 4;
const VALLOC: c_int = 5;
const MALLOCX: c_int = 6;
const RESIZED_BY_XALLOCX: c_int = 2;

/// Returns size and alignment of a request.
///
/// # Safety
///
/// The arguments must be those of that function.
unsafe fn request(function: c_int, arguments: *const usize) -> (usize, usize) {
    // SAFETY: the caller guarantees three words.
    let [first, second, third] = unsafe { arguments.cast::<[usize; 3]>().read() };
    // Flags have the logarithm of the alignment in their low bits.
    let flags = |flags: usize| if flags & 63 == 0 { 0 } else { 1 << (flags & 63) };
    match function {
        MALLOC | VALLOC => (first, 0),
        POSIX_MEMALIGN => (third, second),
        ALIGNED_ALLOC | MEMALIGN => (second, first),
        CALLOC => (first.saturating_mul(second), 0),
        MALLOCX => (first, flags(second)),
        // `realloc` and `rallocx`, whose flags do not tell an alignment of the whole block's life.
        _ => (second, 0),
    }
}

unsafe extern "C" fn allocated(
    _: *mut c_void,
    function: c_int,
    block: *mut c_void,
    _: usize,
    arguments: *const usize,
) {
    // SAFETY: jemalloc passes the arguments of the function.
    let (size, align) = unsafe { request(function, arguments) };
    if sample::passes(size) || !sample::chooses(size) {
        return;
    }
    let align = if align.is_power_of_two() { align } else { 0 };
    recorded(|| (), || write_allocation(block, size, align));
}

unsafe extern "C" fn freed(_: *mut c_void, _: c_int, block: *mut c_void, _: *const usize) {
    // jemalloc frees the block once this returns, so no other thread has it yet.
    if block.is_null() || sample::is_unknown(block) {
        return;
    }
    recorded(|| (), || write_free(block));
}

unsafe extern "C" fn resized(
    _: *mut c_void,
    function: c_int,
    block: *mut c_void,
    _: usize,
    now: usize,
    _: usize,
    arguments: *const usize,
) {
    // SAFETY: jemalloc passes the arguments of the function, of which the size is the second.
    let asked = unsafe { arguments.add(1).read() };
    // `xallocx` may grow a block by less than was asked for.
    let size = if function == RESIZED_BY_XALLOCX { now } else { asked };
    let chosen = !sample::passes(size) && sample::chooses(size);
    if !chosen && sample::is_unknown(block) {
        return;
    }
    recorded(
        || (),
        || {
            let (id, size) = (block.addr() as u64, size as u64);
            let mut stack = Stack::new();
            if chosen {
                stack.capture();
            }
            let mut held = hold();
            match (held.forget(block), chosen) {
                (true, true) => held.write(Action::Reallocate { id, to: id, size }, &stack),
                (true, false) => held.write(Action::Free { id }, &stack),
                (false, true) => held.write(Action::Allocate { id, size, align: 0 }, &stack),
                (false, false) => {}
            }
            if chosen {
                held.keep(block);
            }
        },
    );
}

/// Returns the address of `mallctl` in this program, if the tool found it there.
fn control() -> Option<Control> {
    let mut path = [0_u8; 4096];
    // SAFETY: names and values are strings, and the link has that much room.
    let (offset, length) = unsafe {
        let value = sys::secure_getenv(c"ALLOTMENT_RECORD_JEMALLOC".as_ptr());
        if value.is_null() {
            return None;
        }
        let mut rest = ptr::null_mut();
        let offset = sys::strtoull(value, &raw mut rest, 16);
        let length = sys::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len());
        let length = usize::try_from(length).ok()?;
        // The variable is also in the environment of other programs that this one starts.
        if CStr::from_ptr(rest).to_bytes().strip_prefix(b":") != Some(&path[..length]) {
            return None;
        }
        (offset as usize, length)
    };
    // SAFETY: asks for a number: where the program begins to run.
    let program = Module::of(unsafe { sys::getauxval(sys::AT_ENTRY) })?;
    let address = program.bias.wrapping_add(offset);
    let inside = length > 0 && (program.start..program.end).contains(&address);
    // SAFETY: the tool found a function of this name in the program's file, which has this type in every release of jemalloc.
    inside.then(|| unsafe { transmute::<*const c_void, Control>(with_exposed_provenance(address)) })
}

/// Has jemalloc call the hooks from now on: at the start of the program, when all that it is linked with is in place.
extern "C" fn install() {
    // A library that is loaded later is that of a tool that attached.
    let own = Module::of(install as *const () as usize);
    if !own.is_some_and(|own| starts::is_preloaded(own.path())) {
        return;
    }
    let Some(control) = control() else { return };
    // Starts the recording.
    if real().is_none() {
        return;
    }
    let hooks = Hooks { allocate: allocated, free: freed, resize: resized, extra: ptr::null_mut() };
    let (mut handle, mut size) = (ptr::null_mut::<c_void>(), size_of::<*mut c_void>());
    // SAFETY: the places are those of local variables; jemalloc copies the hooks.
    let wrong = unsafe {
        control(
            c"experimental.hooks.install".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut size,
            (&raw const hooks).cast(),
            size_of::<Hooks>(),
        )
    };
    if wrong != 0 {
        let text = b"allotment: warning: this jemalloc calls no hooks, as it does from 5.2 on: only what the program asks the C library \
                     for is recorded\n";
        // SAFETY: writes bytes of this library.
        unsafe { sys::write(2, text.as_ptr().cast(), text.len()) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install;
