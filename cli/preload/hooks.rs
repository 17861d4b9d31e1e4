//! The functions that the program calls instead of its allocator's.
//!
//! A function that the real allocator does not have behaves as if there were no memory.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr::{self, with_exposed_provenance};
use core::sync::atomic::{AtomicPtr, Ordering};

use allotment_event::Action;

use crate::real::{ATTACHED, Real, known, real, wanted};
use crate::recorder::{Times, Wanted, begin, confining, end, hold, recorded, unloaded};
use crate::stacks::Stack;
use crate::{early, sample, starts, sys};

/// Starts recording in a running process. The tool calls this in the process, and then has the program call the functions of this
/// library; it may do so again after [`allotment_detach`]. Returns 0, 1 if the recording could not begin, 2 if the last one was of a
/// sample (threads still have a distance to their next sample, so this must be one as well), or 3 if a thread is still in the last one.
///
/// # Safety
///
/// The name must be a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn allotment_attach(name: *const c_char, times: u8, stacks: bool, mean: u64) -> c_int {
    ATTACHED.store(true, Ordering::Relaxed);
    let wanted = Wanted { name, times: Times::of(times), stacks, mean };
    match mean {
        0 if sample::is_on() => 2,
        // Blocks from before are missing, which the header says.
        _ if real().is_none() => 1,
        _ => begin(&wanted, 1).map_or(3, |began| c_int::from(!began)),
    }
}

/// Ends the recording that [`allotment_attach`] began. Returns 0, or 1 if this thread or another is in the middle of an event.
#[unsafe(no_mangle)]
extern "C" fn allotment_detach() -> c_int {
    c_int::from(!end())
}

/// Passes an allocation on and records it. `align` 0 is what the allocator gives anyway.
#[inline(always)]
fn allocated(size: usize, align: usize, allocate: impl Fn(&Real) -> *mut c_void) -> *mut c_void {
    if sample::passes(size) {
        // SAFETY: threads have a distance to their next sample only once the functions are known.
        return allocate(unsafe { known() });
    }
    written(size, align, allocate)
}

/// Writes down that a request got this block, or null.
pub fn write_allocation(block: *mut c_void, size: usize, align: usize) {
    let (size, align) = (size as u64, align as u64);
    let action = match block.is_null() {
        true => Action::Fail { size, align },
        false => Action::Allocate { id: block.addr() as u64, size, align },
    };
    let mut stack = Stack::new();
    stack.capture();
    let mut held = hold();
    held.write(action, &stack);
    held.keep(block);
}

/// Writes down that a block is freed, if its allocation was.
pub fn write_free(block: *mut c_void) {
    let mut held = hold();
    if held.forget(block) {
        held.write(Action::Free { id: block.addr() as u64 }, &Stack::new());
    }
}

#[inline(never)]
fn written(size: usize, align: usize, allocate: impl Fn(&Real) -> *mut c_void) -> *mut c_void {
    let Some(real) = real() else { return early::allocate(size, align) };
    if !sample::chooses(size) {
        return allocate(real);
    }
    recorded(
        || allocate(real),
        || {
            let block = allocate(real);
            write_allocation(block, size, align);
            block
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: every size is valid for this function.
    allocated(size, 0, |real| unsafe { (real.malloc)(size) })
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let bytes = count.saturating_mul(size);
    // SAFETY: every size is valid for this function. Memory that is allocated early is zero.
    allocated(bytes, 0, |real| unsafe { (real.calloc)(count, size) })
}

/// # Safety
///
/// The block is null, or live and from this allocator.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    if sample::is_unknown(block) {
        // SAFETY: recording has begun, so the functions are known; the caller keeps the contract of the C function.
        return unsafe { (known().free)(block) };
    }
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { free_known(block) };
}

/// # Safety
///
/// As for [`free`].
#[inline(never)]
unsafe fn free_known(block: *mut c_void) {
    if block.is_null() || early::size_of(block).is_some() {
        return;
    }
    // A block that is not from early memory comes from real functions, which are known then.
    let Some(real) = real() else { return };
    // Once the block is free another thread may get it, so it is written down before.
    // SAFETY: the caller keeps the contract of the C function, which is called with the same arguments.
    let free = || unsafe { (real.free)(block) };
    recorded(free, || {
        write_free(block);
        free();
    });
}

/// # Safety
///
/// The block is null, or live and from this allocator.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if sample::is_unknown(block) && sample::passes(size) {
        // SAFETY: recording has begun, so the functions are known; the caller keeps the contract of the C function.
        return unsafe { (known().realloc)(block, size) };
    }
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { reallocate_known(block, size) }
}

/// # Safety
///
/// As for [`realloc`].
#[inline(never)]
unsafe fn reallocate_known(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    if let Some(old) = early::size_of(block) {
        let new = malloc(size);
        if !new.is_null() {
            // SAFETY: both blocks are live and have that many bytes.
            unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast::<u8>(), old.min(size)) };
        }
        return new;
    }
    let Some(real) = real() else { return ptr::null_mut() };
    // SAFETY: the caller keeps the contract of the C function, which is called with the same arguments.
    let realloc = || unsafe { (real.realloc)(block, size) };
    // A block that changes its size is chosen anew.
    let chosen = !sample::passes(size) && sample::chooses(size);
    if !chosen && sample::is_unknown(block) {
        return realloc();
    }
    recorded(realloc, || {
        let id = block.addr() as u64;
        let mut stack = Stack::new();
        if chosen {
            stack.capture();
        }
        // Between the two sides another thread may get the old block; it cannot say so before this one has.
        let mut held = hold();
        let known = held.forget(block);
        let new = realloc();
        let (to, size) = (new.addr() as u64, size as u64);
        // The GNU C library frees the block if there is nothing to keep.
        let is_gone = !new.is_null() || size == 0;
        match (is_gone, known, chosen) {
            (true, true, true) if !new.is_null() => held.write(Action::Reallocate { id, to, size }, &stack),
            (true, true, _) => held.write(Action::Free { id }, &Stack::new()),
            (true, false, true) if !new.is_null() => {
                held.write(Action::Allocate { id: to, size, align: 0 }, &stack);
            }
            (false, _, true) => held.write(Action::Fail { size, align: 0 }, &stack),
            _ => {}
        }
        if is_gone && chosen {
            held.keep(new);
        } else if !is_gone && known {
            held.keep(block);
        }
        new
    })
}

/// # Safety
///
/// The block is null, or live and from this allocator.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller keeps the contract of the C function, which is called with the same arguments.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => {
            // SAFETY: the location is this thread's own.
            unsafe { *sys::__errno_location() = sys::ENOMEM };
            ptr::null_mut()
        }
    }
}

/// An alignment as the trace has it: 0 if it is none.
fn power(align: usize) -> usize {
    if align.is_power_of_two() { align } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    allocated(size, power(align), |real| match real.memalign {
        // SAFETY: every size and alignment is valid for this function.
        Some(memalign) => unsafe { memalign(align, size) },
        None => ptr::null_mut(),
    })
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    allocated(size, power(align), |real| match real.aligned_alloc {
        // SAFETY: every size and alignment is valid for this function.
        Some(aligned_alloc) => unsafe { aligned_alloc(align, size) },
        None => ptr::null_mut(),
    })
}

/// # Safety
///
/// `place` is valid for a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let result = core::cell::Cell::new(sys::ENOMEM);
    let block = allocated(size, power(align), |real| {
        let mut block = ptr::null_mut();
        if let Some(posix_memalign) = real.posix_memalign {
            // SAFETY: the place is ours.
            result.set(unsafe { posix_memalign(&raw mut block, align, size) });
        }
        block
    });
    if !block.is_null() {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { *place = block };
        return 0;
    }
    // Some return null and success for a size of zero.
    if result.get() == 0 {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { *place = block };
    }
    result.get()
}

/// Bytes of a page.
fn page() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { sys::sysconf(sys::SC_PAGESIZE) }).unwrap_or(4096)
}

#[unsafe(no_mangle)]
extern "C" fn valloc(size: usize) -> *mut c_void {
    allocated(size, page(), |real| match real.valloc {
        // SAFETY: every size is valid for this function.
        Some(valloc) => unsafe { valloc(size) },
        None => ptr::null_mut(),
    })
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = page();
    let rounded = size.checked_next_multiple_of(page).unwrap_or(usize::MAX);
    allocated(rounded, page, |real| match real.pvalloc {
        // SAFETY: every size is valid for this function.
        Some(pvalloc) => unsafe { pvalloc(size) },
        None => ptr::null_mut(),
    })
}

/// # Safety
///
/// The block is null, or live and from this allocator.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    if let Some(size) = early::size_of(block) {
        return size;
    }
    match real().and_then(|real| real.usable) {
        // SAFETY: the caller keeps the contract of the C function, which is called with the same arguments.
        Some(usable) => unsafe { usable(block) },
        None => 0,
    }
}

/// Unloads a library, whose addresses may mean another one afterwards.
///
/// # Safety
///
/// The handle is one of the dynamic linker's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let Some(dlclose) = real().and_then(|real| real.dlclose) else { return -1 };
    // SAFETY: the caller keeps the contract of the C function, which is called with the same argument.
    let result = unsafe { dlclose(handle) };
    unloaded();
    result
}

/// Returns the next function of this name, which `known` keeps.
fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let mut function = known.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: an address is no type that could be wrong.
        function = unsafe { wanted(name) }.unwrap_or(ptr::null_mut());
        known.store(function, Ordering::Relaxed);
    }
    function
}

/// Calls `limit`, which limits the program's system calls. Its file is opened before, even if it has not allocated yet.
fn limited<T: PartialOrd + Default>(limit: impl FnOnce() -> T) -> T {
    let _ = real();
    confining(limit)
}

/// # Safety
///
/// The arguments are those of the C function, which takes up to four more numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    type Prctl = unsafe extern "C" fn(c_int, c_long, c_long, c_long, c_long) -> c_int;
    let function = next(c"prctl", &NEXT);
    if function.is_null() {
        return -1;
    }
    // SAFETY: C libraries pass on what is in the registers, as this does: the caller keeps the contract of what it asks for.
    let call = || unsafe { transmute::<*mut c_void, Prctl>(function)(option, a, b, c, d) };
    if option == sys::PR_SET_SECCOMP { limited(call) } else { call() }
}

/// # Safety
///
/// The arguments are those of the C function, which takes up to six more numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    type Syscall = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
    let function = next(c"syscall", &NEXT);
    if function.is_null() {
        return -1;
    }
    // SAFETY: as in `prctl`.
    let call = || unsafe { transmute::<*mut c_void, Syscall>(function)(number, a, b, c, d, e, f) };
    let starting = match number {
        sys::SYS_EXECVE => Some((a, c)),
        sys::SYS_EXECVEAT => Some((b, d)),
        _ => None,
    };
    if let Some((path, environment)) = starting {
        let (path, environment) = (path as usize, environment as usize);
        // SAFETY: the caller passes what the system call takes: a path and an environment.
        let noted = real().is_some()
            && unsafe {
                starts::notes_start(with_exposed_provenance(path), with_exposed_provenance(environment))
            };
        let result = call();
        if noted {
            starts::did_not_start();
        }
        return result;
    }
    // The operations 0 and 1 limit the calls, others ask what there is.
    if number == sys::SYS_SECCOMP && (a == 0 || a == 1) { limited(call) } else { call() }
}

// Calls that start other programs are passed on unchanged; the library only notes which of these will not be recorded. Functions of C
// libraries call each other past this library, so each is here.

/// Defines functions that start a program: the path and the environment among their arguments, and whether a result means that they
/// did. Without an environment, it is the process's.
macro_rules! starting {
    ($($name:ident($($argument:ident: $type:ty),*) of $path:expr, $environment:expr, $started:expr;)*) => {$(
        /// # Safety
        ///
        /// The arguments are those of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller keeps the contract of the C function, which is called with the same arguments.
            unsafe {
                let Some($name) = real().and_then(|real| real.$name) else {
                    *sys::__errno_location() = sys::ENOSYS;
                    return -1;
                };
                let noted = starts::notes_start($path, $environment);
                let result = $name($($argument),*);
                let started: fn(c_int) -> bool = $started;
                if noted && !started(result) {
                    starts::did_not_start();
                }
                result
            }
        }
    )*};
}

pub type Path = *const c_char;
pub type List = *const *const c_char;

/// What starts for a command; nothing for none, which asks whether there is a shell.
fn shell(command: Path) -> Path {
    if command.is_null() { command } else { c"/bin/sh".as_ptr() }
}

/// # Safety
///
/// The arguments are those of the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: Path, mode: Path) -> *mut c_void {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    type Popen = unsafe extern "C" fn(Path, Path) -> *mut c_void;
    let function = next(c"popen", &NEXT);
    if function.is_null() || real().is_none() {
        return ptr::null_mut();
    }
    // SAFETY: the caller keeps the contract of the C function, which is called with the same arguments.
    unsafe {
        let noted = starts::notes_start(shell(command), sys::environ);
        let file = transmute::<*mut c_void, Popen>(function)(command, mode);
        if noted && file.is_null() {
            starts::did_not_start();
        }
        file
    }
}

starting! {
    execve(path: Path, arguments: List, environment: List) of path, environment, |_| false;
    execv(path: Path, arguments: List) of path, sys::environ, |_| false;
    execvp(path: Path, arguments: List) of path, sys::environ, |_| false;
    execvpe(path: Path, arguments: List, environment: List) of path, environment, |_| false;
    fexecve(file: c_int, arguments: List, environment: List) of arguments.read(), environment, |_| false;
    execveat(folder: c_int, path: Path, arguments: List, environment: List, flags: c_int) of path, environment, |_| false;
    system(command: Path) of shell(command), sys::environ, |result| result != -1;
    posix_spawn(process: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List)
        of path, environment, |result| result == 0;
    posix_spawnp(process: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List)
        of path, environment, |result| result == 0;
}
