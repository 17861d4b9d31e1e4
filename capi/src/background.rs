//! The option `background`: a thread that returns free memory to the system while the program is idle.

use crate::HEAP;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

/// Seconds between two checks.
const LOOK: u32 = 1;
/// Number of checks with unchanged statistics before a trim.
const REST: u32 = 4;
/// The most bytes of free memory that are not worth a trim.
const LITTLE: usize = 1 << 20;

unsafe extern "C" {
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Starts the thread, and from now on, one in each child of a fork.
pub fn start() {
    // Use the heap now, so that its handlers are registered first: starting a thread allocates.
    HEAP.stats();
    // SAFETY: the function has the type that the C library requires.
    unsafe { pthread_atfork(None, None, Some(spawn)) };
    spawn();
}

/// Starts a detached thread that blocks all signals; if that fails, the program goes on without it.
extern "C" fn spawn() {
    // SAFETY: the calls initialise the attributes and both sets of signals before their use; the thread's function lives as long as the
    // library, which is never unloaded.
    unsafe {
        let (mut all, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigfillset(all.as_mut_ptr());
        if libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) != 0 {
            return;
        }
        let mut attributes = MaybeUninit::uninit();
        if libc::pthread_attr_init(attributes.as_mut_ptr()) == 0 {
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), 128 * 1024);
            let mut thread = MaybeUninit::uninit();
            libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), watch, ptr::null_mut());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut());
    }
}

/// Trims once whenever the heap's shared pages have been unused for some seconds and there is free memory.
extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    let (mut last, mut rest) = (HEAP.stats(), 0);
    loop {
        // SAFETY: it has no preconditions.
        unsafe { libc::sleep(LOOK) };
        let now = HEAP.stats();
        rest = if now == last { rest + 1 } else { 0 };
        if rest == REST && now.dirty > LITTLE {
            HEAP.trim();
        }
        // Changes by the trim itself do not count as use.
        last = if rest == REST { HEAP.stats() } else { now };
    }
}
