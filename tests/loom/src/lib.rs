//! `core` with loom's atomics, and the part of `rustix` that the lock uses: what is compiled against them runs in loom's models.

pub mod thread;

pub use core::*;

/// As `core::hint`; a thread that spins lets others run.
pub mod hint {
    pub use core::hint::*;

    /// Lets another thread run.
    pub fn spin_loop() {
        loom::thread::yield_now();
    }
}

/// As `core::sync`.
pub mod sync {
    /// As `core::sync::atomic`.
    pub mod atomic {
        pub use loom::sync::atomic::{Ordering, fence};
        use std::mem::ManuallyDrop;
        use std::sync::OnceLock;

        /// Makes an atomic type whose `new` is `const`, as the real one's is and loom's is not: loom's value is made when it is first used.
        macro_rules! atomics {
            ($($name:ident $(<$parameter:ident>)?: $value:ty;)*) => {$(
                /// loom's atomic of this name.
                pub struct $name $(<$parameter>)? {
                    first: $value,
                    // Constant functions may drop what holds it, and there is nothing to drop.
                    atomic: ManuallyDrop<OnceLock<loom::sync::atomic::$name $(<$parameter>)?>>,
                }

                // SAFETY: the value is only copied.
                unsafe impl $(<$parameter>)? Send for $name $(<$parameter>)? {}
                // SAFETY: as above; the rest is loom's.
                unsafe impl $(<$parameter>)? Sync for $name $(<$parameter>)? {}

                impl $(<$parameter>)? $name $(<$parameter>)? {
                    /// As in `core`.
                    pub const fn new(first: $value) -> Self {
                        Self { first, atomic: ManuallyDrop::new(OnceLock::new()) }
                    }

                    fn loom(&self) -> &loom::sync::atomic::$name $(<$parameter>)? {
                        self.atomic.get_or_init(|| loom::sync::atomic::$name::new(self.first))
                    }

                    /// As in `core`.
                    pub fn load(&self, order: Ordering) -> $value {
                        self.loom().load(order)
                    }

                    /// As in `core`.
                    pub fn store(&self, value: $value, order: Ordering) {
                        self.loom().store(value, order)
                    }

                    /// As in `core`.
                    pub fn swap(&self, value: $value, order: Ordering) -> $value {
                        self.loom().swap(value, order)
                    }

                    /// As in `core`.
                    ///
                    /// # Errors
                    ///
                    /// The value, if it is not `old`.
                    pub fn compare_exchange(
                        &self,
                        old: $value,
                        new: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        self.loom().compare_exchange(old, new, success, failure)
                    }
                }
            )*};
        }

        atomics! {
            AtomicBool: bool;
            AtomicU32: u32;
            AtomicUsize: usize;
            AtomicPtr<T>: *mut T;
        }

        /// Adds what only integers have.
        macro_rules! integers {
            ($($name:ident: $value:ty, $($method:ident)*;)*) => {$(
                impl $name {$(
                    /// As in `core`.
                    pub fn $method(&self, value: $value, order: Ordering) -> $value {
                        self.loom().$method(value, order)
                    }
                )*}
            )*};
        }

        integers! {
            AtomicU32: u32, fetch_add fetch_sub fetch_and fetch_or;
            AtomicUsize: usize, fetch_add fetch_sub;
        }
    }
}
