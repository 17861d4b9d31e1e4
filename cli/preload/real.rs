//! The functions that the program would have called.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::sys;

type Path = *const c_char;
type List = *const *const c_char;
type Spawn = unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;

/// The real allocator, and what unloads libraries and starts programs.
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

static TABLE: Table = Table { state: AtomicU8::new(UNKNOWN), real: UnsafeCell::new(None) };

/// The real functions; `None` while they are being looked for, which may itself allocate: [`early`] serves then.
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
            posix_spawn: wanted(c"posix_spawn"),
            posix_spawnp: wanted(c"posix_spawnp"),
        }
    };
    // SAFETY: this thread alone moved the state to LOOKING.
    unsafe { *TABLE.real.get() = Some(found) };
    TABLE.state.store(KNOWN, Ordering::Release);
    crate::recorder::start();
    Some(())
}

/// Looks up the next function of this name; `None` if there is none.
///
/// # Safety
///
/// `F` must be the function's type, as a pointer.
unsafe fn wanted<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    // SAFETY: the name ends with a zero byte.
    let function = unsafe { sys::dlsym(sys::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: the caller guarantees that `F` is the function's type; the sizes are equal.
    (!function.is_null()).then(|| unsafe { transmute_copy(&function) })
}

/// Looks up the next function of this name, without which the program cannot run.
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

/// Memory for those who allocate while the real functions are being looked for; never given back.
pub mod early {
    use super::{AtomicUsize, Ordering, UnsafeCell, c_void, ptr};

    const SIZE: usize = 64 << 10;
    /// Before each block stands its size.
    const HEAD: usize = 16;

    #[repr(align(4096))]
    struct Memory(UnsafeCell<[u8; SIZE]>);

    // SAFETY: parts of it are handed out once each.
    unsafe impl Sync for Memory {}

    static MEMORY: Memory = Memory(UnsafeCell::new([0; SIZE]));
    static USED: AtomicUsize = AtomicUsize::new(0);

    /// A block of zeros; null if there is no more.
    pub fn allocate(size: usize, align: usize) -> *mut c_void {
        let align = align.max(16);
        let mut start = 0;
        let place = |used: usize| {
            start = used.checked_add(HEAD)?.checked_next_multiple_of(align)?;
            start.checked_add(size.max(1)).filter(|&end| end <= SIZE)
        };
        // Alignments beyond the memory's own are not to be had.
        if align > 4096 || USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).is_err() {
            return ptr::null_mut();
        }
        // SAFETY: `HEAD + size` bytes up to the new mark are this caller's; the head is aligned to 16.
        unsafe {
            let block = MEMORY.0.get().cast::<u8>().add(start);
            block.sub(HEAD).cast::<usize>().write(size);
            block.cast()
        }
    }

    /// The addresses of the memory that was handed out.
    pub fn used() -> core::ops::Range<usize> {
        let from = MEMORY.0.get().addr();
        from..from + USED.load(Ordering::Relaxed)
    }

    /// The size of a block from here; `None` of any other.
    pub fn size_of(block: *mut c_void) -> Option<usize> {
        let from = MEMORY.0.get().addr();
        if !(from..from + SIZE).contains(&block.addr()) {
            return None;
        }
        // SAFETY: blocks from here have a head.
        Some(unsafe { block.byte_sub(HEAD).cast::<usize>().read() })
    }
}
