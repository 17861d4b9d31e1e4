//! The functions that the program would have called.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute_copy;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::sys;

type Path = *const c_char;
type List = *const *const c_char;
type Spawn = unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;

/// The real functions: the allocator's, and those that unload libraries and start programs.
#[derive(Clone, Copy)]
pub struct Real {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub memalign: Option<unsafe extern "C" fn(usize, usize) -> *mut c_void>,
    pub aligned_alloc: Option<unsafe extern "C" fn(usize, usize) -> *mut c_void>,
    pub posix_memalign: Option<unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int>,
    pub valloc: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    pub pvalloc: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    pub usable: Option<unsafe extern "C" fn(*mut c_void) -> usize>,
    pub dlclose: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    pub execve: Option<unsafe extern "C" fn(Path, List, List) -> c_int>,
    pub execv: Option<unsafe extern "C" fn(Path, List) -> c_int>,
    pub execvp: Option<unsafe extern "C" fn(Path, List) -> c_int>,
    pub execvpe: Option<unsafe extern "C" fn(Path, List, List) -> c_int>,
    pub fexecve: Option<unsafe extern "C" fn(c_int, List, List) -> c_int>,
    pub execveat: Option<unsafe extern "C" fn(c_int, Path, List, List, c_int) -> c_int>,
    pub system: Option<unsafe extern "C" fn(Path) -> c_int>,
    pub posix_spawn: Option<Spawn>,
    pub posix_spawnp: Option<Spawn>,
}

const UNKNOWN: u8 = 0;
const LOOKING: u8 = 1;
const KNOWN: u8 = 2;

struct Table {
    state: AtomicU8,
    real: UnsafeCell<Option<Real>>,
}

// SAFETY: `real` is written by the one thread that moved `state` from UNKNOWN to LOOKING, and read only after that
// thread has moved it to KNOWN.
unsafe impl Sync for Table {}

/// True if the tool loaded this library into a running program: it comes last then, so the first function of a name is the real one.
pub static ATTACHED: AtomicBool = AtomicBool::new(false);

static TABLE: Table = Table { state: AtomicU8::new(UNKNOWN), real: UnsafeCell::new(None) };

/// Returns the real functions; `None` while they are being looked up, which may itself allocate: `early` allocates then.
pub fn real() -> Option<&'static Real> {
    if TABLE.state.load(Ordering::Acquire) != KNOWN {
        look()?;
    }
    // SAFETY: the state is KNOWN, so it is not written any more.
    unsafe { (*TABLE.real.get()).as_ref() }
}

/// Returns the real functions.
///
/// # Safety
///
/// [`real`] must have returned them before.
#[inline(always)]
pub unsafe fn known() -> &'static Real {
    // SAFETY: the state is KNOWN, so it is not written any more.
    unsafe { (*TABLE.real.get()).as_ref().unwrap_unchecked() }
}

#[cold]
fn look() -> Option<()> {
    let first = TABLE.state.compare_exchange(UNKNOWN, LOOKING, Ordering::Acquire, Ordering::Acquire);
    match first {
        Ok(_) => {}
        Err(KNOWN) => return Some(()),
        Err(_) => return None,
    }
    // SAFETY: the names are those of the C library's functions, of these types.
    let found = unsafe {
        Real {
            malloc: needed(c"malloc"),
            calloc: needed(c"calloc"),
            realloc: needed(c"realloc"),
            free: needed(c"free"),
            memalign: wanted(c"memalign"),
            aligned_alloc: wanted(c"aligned_alloc"),
            posix_memalign: wanted(c"posix_memalign"),
            valloc: wanted(c"valloc"),
            pvalloc: wanted(c"pvalloc"),
            usable: wanted(c"malloc_usable_size"),
            dlclose: wanted(c"dlclose"),
            execve: wanted(c"execve"),
            execv: wanted(c"execv"),
            execvp: wanted(c"execvp"),
            execvpe: wanted(c"execvpe"),
            fexecve: wanted(c"fexecve"),
            execveat: wanted(c"execveat"),
            system: wanted(c"system"),
            posix_spawn: wanted(c"posix_spawn"),
            posix_spawnp: wanted(c"posix_spawnp"),
        }
    };
    // SAFETY: this thread alone moved the state to LOOKING.
    unsafe { *TABLE.real.get() = Some(found) };
    TABLE.state.store(KNOWN, Ordering::Release);
    if !ATTACHED.load(Ordering::Relaxed) {
        crate::recorder::start();
    }
    Some(())
}

/// Looks up the real function of this name; `None` if there is none.
///
/// # Safety
///
/// `F` must be the function's type, as a pointer.
pub unsafe fn wanted<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    let place = if ATTACHED.load(Ordering::Relaxed) { sys::RTLD_DEFAULT } else { sys::RTLD_NEXT };
    // SAFETY: the name ends with a zero byte.
    let function = unsafe { sys::dlsym(place, name.as_ptr()) };
    // SAFETY: the caller guarantees that `F` is the function's type; the sizes are equal.
    (!function.is_null()).then(|| unsafe { transmute_copy(&function) })
}

/// Looks up the real function of this name, without which the program cannot run.
///
/// # Safety
///
/// `F` must be the function's type, as a pointer.
unsafe fn needed<F: Copy>(name: &CStr) -> F {
    // SAFETY: the caller guarantees that `F` is the function's type.
    match unsafe { wanted(name) } {
        Some(function) => function,
        None => {
            let text = b"allotment: the program has no allocator to record\n";
            // SAFETY: writing bytes of our own.
            unsafe {
                sys::write(2, text.as_ptr().cast(), text.len());
                sys::abort()
            }
        }
    }
}
