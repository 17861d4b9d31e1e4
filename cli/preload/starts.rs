//! Notes which of the programs that this one starts will not be recorded.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::head::head;
use crate::sys;

/// Returns the value of a variable in an environment; `name` ends with `=`.
///
/// # Safety
///
/// The environment must be null, or pointers to strings up to a null.
unsafe fn variable(mut environment: *const *const c_char, name: &[u8]) -> Option<&CStr> {
    // SAFETY: the caller guarantees strings up to a null.
    unsafe {
        while !environment.is_null() && !(*environment).is_null() {
            let entry = CStr::from_ptr(*environment);
            if entry.to_bytes().starts_with(name) {
                return Some(CStr::from_ptr((*environment).add(name.len())));
            }
            environment = environment.add(1);
        }
    }
    None
}

/// This library in the environment's list: its path, which the tool puts first. Null before recording began.
static LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Notes that the program `path` is about to start with this environment, if it is not recorded then. Returns whether it noted that.
///
/// # Safety
///
/// The path must be a string, and the environment null or pointers to strings up to a null.
pub unsafe fn notes_start(path: *const c_char, environment: *const *const c_char) -> bool {
    let library = LIBRARY.load(Ordering::Acquire);
    let (Some(head), false) = (head(), library.is_null() || path.is_null()) else { return false };
    // SAFETY: the caller guarantees the strings; the library's name is one that stays.
    let (library, path) = unsafe { (CStr::from_ptr(library).to_bytes(), CStr::from_ptr(path).to_bytes()) };
    let is_ours = |list: &CStr| list.to_bytes().split(|byte| b" :".contains(byte)).any(|one| one == library);
    // SAFETY: the caller guarantees the environment.
    let recorded = unsafe {
        variable(environment, b"LD_PRELOAD=").is_some_and(is_ours)
            && variable(environment, b"ALLOTMENT_RECORD=").is_some()
    };
    if recorded {
        return false;
    }
    if head.unrecorded.fetch_add(1, Ordering::Relaxed) == 0 {
        let count = path.len().min(1023);
        // SAFETY: the head has that much room, and only the first to count writes there.
        unsafe {
            let place = head.first_unrecorded.get().cast::<u8>();
            place.copy_from_nonoverlapping(path.as_ptr(), count);
            place.add(count).write(0);
        }
    }
    true
}

/// Takes back what [`notes_start`] noted: the program could not be started.
pub fn did_not_start() {
    if let Some(head) = head() {
        head.unrecorded.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the environment loads a library of this path first.
pub fn is_preloaded(path: &str) -> bool {
    // SAFETY: the program has not started to change its environment.
    let list = unsafe { variable(sys::environ, b"LD_PRELOAD=") };
    list.is_some_and(|list| {
        list.to_bytes().split(|byte| b" :".contains(byte)).next() == Some(path.as_bytes())
    })
}

/// Remembers this library's path, by which [`notes_start`] knows an environment that loads it.
pub fn watch() {
    // SAFETY: the program has not started to change its environment; `strndup` copies the string's beginning.
    let library = unsafe {
        variable(sys::environ.cast(), b"LD_PRELOAD=").map(|list| {
            let end = list.to_bytes().iter().position(|byte| b" :".contains(byte));
            sys::strndup(list.as_ptr(), end.unwrap_or(list.to_bytes().len()))
        })
    };
    LIBRARY.store(library.unwrap_or(ptr::null_mut()), Ordering::Release);
}
