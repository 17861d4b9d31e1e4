//! The calls that each thread with caches or lists makes when it ends.
//!
//! A thread-local value with a destructor does not work for a global allocator on Unix. Where the C library has no
//! `__cxa_thread_atexit_impl` (musl, for one), the standard library keeps a list of destructors on the heap. If allocating that list is
//! the first use of a thread's cache, registering one more destructor finds the list in use, and the standard library ends the program. A
//! pthread key needs no list.

#[cfg(unix)]
mod imp {
    use crate::os::stay::stay_loaded;
    use core::ffi::c_void;
    use core::mem;
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// A call that threads make when they end. Holds its pthread key plus one; 0 before the first use.
    pub(in crate::os) struct AtEnd(AtomicUsize);

    unsafe extern "C" fn at_end(value: *mut c_void) {
        // SAFETY: pthread calls this only with a value that is not null, which `register` has set.
        let call: fn() = unsafe { mem::transmute(value) };
        call();
    }

    impl AtEnd {
        pub(in crate::os) const fn new(_of_caches: bool) -> Self {
            Self(AtomicUsize::new(0))
        }

        /// Returns the key that all threads share; `None` if the system has no more keys, or might unload this code before a thread ends.
        fn key(&self) -> Option<libc::pthread_key_t> {
            let known = self.0.load(Ordering::Acquire);
            if known != 0 {
                return Some((known - 1) as libc::pthread_key_t);
            }
            let mut new = 0;
            // SAFETY: the function may be called at the end of any thread.
            if !stay_loaded() || unsafe { libc::pthread_key_create(&mut new, Some(at_end)) } != 0 {
                return None;
            }
            match self.0.compare_exchange(0, new as usize + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Some(new),
                Err(_) => {
                    // SAFETY: no thread has used the new key.
                    unsafe { libc::pthread_key_delete(new) };
                    self.key()
                }
            }
        }

        /// Makes this thread call `call` when it ends. Returns whether it will.
        pub(in crate::os) fn register(&self, call: fn()) -> bool {
            // SAFETY: the key is valid.
            self.key()
                .is_some_and(|key| unsafe { libc::pthread_setspecific(key, call as *const c_void) } == 0)
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use core::cell::Cell;

    /// A call that threads make when they end: of the caches, or of the growing heap.
    pub(in crate::os) struct AtEnd(bool);

    /// The call of a thread.
    struct Guard(Cell<Option<fn()>>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|call| call());
        }
    }

    // Two: where Rust keeps variables in keys of the system (Windows with MinGW), a thread forgets them from the newest to the oldest, and
    // each guard must be newer than the variable that its call looks at.
    thread_local! {
        static CACHES: Guard = const { Guard(Cell::new(None)) };
        static GROWING: Guard = const { Guard(Cell::new(None)) };
    }

    impl AtEnd {
        pub(in crate::os) const fn new(of_caches: bool) -> Self {
            Self(of_caches)
        }

        /// Makes this thread call `call` when it ends. Returns whether it will.
        pub(in crate::os) fn register(&self, call: fn()) -> bool {
            let guard = if self.0 { &CACHES } else { &GROWING };
            guard.try_with(|guard| guard.0.set(Some(call))).is_ok()
        }
    }
}

pub(super) use imp::AtEnd;
