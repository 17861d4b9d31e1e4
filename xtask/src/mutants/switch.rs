//! Which change of the library is on. Only the copy that `cargo xtask mutants` tests has this file.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::Relaxed};

/// The change that constants are computed with; 0 is none.
const BUILT_WITH: u32 = 0;

/// No change is on, and each switch that is passed notes it.
const SURVEY: u32 = u32::MAX;

static ACTIVE: AtomicU32 = AtomicU32::new(BUILT_WITH);

/// The file is mapped for so many, though it may be shorter.
const MOST_CHANGES: usize = 1 << 20;

/// One byte for each change in a file that the processes of a test share.
static PASSED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// Returns whether a change is on. That it is deprecated makes the compiler name the switches that it compiles.
#[deprecated]
#[inline(always)]
pub(crate) const fn on(change: u32) -> bool {
    core::intrinsics::const_eval_select((change,), when_built, when_run)
}

const fn when_built(change: u32) -> bool {
    change == BUILT_WITH
}

#[inline(always)]
fn when_run(change: u32) -> bool {
    let active = ACTIVE.load(Relaxed);
    active == change || (active == SURVEY && note(change))
}

#[cold]
#[inline(never)]
fn note(change: u32) -> bool {
    // SAFETY: the file has a byte for each change.
    unsafe { (*PASSED.load(Relaxed).add(change as usize)).store(1, Relaxed) };
    false
}

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn atoi(text: *const c_char) -> c_int;
    fn open(path: *const c_char, flags: c_int) -> c_int;
    fn mmap(at: *mut c_void, len: usize, access: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
}

/// Runs before anything allocates.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    const READ_WRITE: c_int = 2;
    const PAGES_READ_WRITE: c_int = 1 | 2;
    const SHARED: c_int = 1;
    // SAFETY: the environment is there before constructors run, and no other thread changes it.
    unsafe {
        let change = getenv(c"ALLOTMENT_CHANGE".as_ptr());
        if !change.is_null() {
            ACTIVE.store(atoi(change).cast_unsigned(), Relaxed);
        }
        let survey = getenv(c"ALLOTMENT_SURVEY".as_ptr());
        if !survey.is_null() {
            let file = open(survey, READ_WRITE);
            PASSED.store(mmap(null_mut(), MOST_CHANGES, PAGES_READ_WRITE, SHARED, file, 0).cast(), Relaxed);
            ACTIVE.store(SURVEY, Relaxed);
        }
    }
}
