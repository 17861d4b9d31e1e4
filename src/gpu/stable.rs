//! Host memory that stays where it is, for copies and registrations that outlast a borrow.

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Values whose address does not change when their owner is moved.
///
/// # Safety
///
/// [`StableSlice::as_slice`] must return the same memory as long as the owner exists, wherever it is moved, and nothing
/// may change that memory.
pub unsafe trait StableSlice<T>: 'static {
    /// Returns the values.
    fn as_slice(&self) -> &[T];
}

/// Values in a fixed place that their owner alone can access.
///
/// # Safety
///
/// The contract of [`StableSlice`]: `as_mut_slice` must always return the same memory. In addition, nothing but the owner
/// may read the values.
pub unsafe trait StableSliceMut<T>: StableSlice<T> {
    /// Returns the values for changes.
    fn as_mut_slice(&mut self) -> &mut [T];
}

macro_rules! stable {
    ($($type:ty),*) => {$(
        // SAFETY: the values are behind a pointer that a move does not change, and they are owned or shared for
        // reading.
        unsafe impl<T: 'static> StableSlice<T> for $type {
            fn as_slice(&self) -> &[T] {
                self
            }
        }
    )*};
}

stable!(Vec<T>, Box<[T]>, Arc<[T]>, Arc<Vec<T>>, &'static [T]);

// SAFETY: the vector alone has access to its values.
unsafe impl<T: 'static> StableSliceMut<T> for Vec<T> {
    fn as_mut_slice(&mut self) -> &mut [T] {
        self
    }
}

// SAFETY: the box alone has access to its values.
unsafe impl<T: 'static> StableSliceMut<T> for Box<[T]> {
    fn as_mut_slice(&mut self) -> &mut [T] {
        self
    }
}

// SAFETY: the reference is the only one to these values, and a move of it moves none of them.
unsafe impl<T: 'static> StableSlice<T> for &'static mut [T] {
    fn as_slice(&self) -> &[T] {
        self
    }
}

// SAFETY: as above.
unsafe impl<T: 'static> StableSliceMut<T> for &'static mut [T] {
    fn as_mut_slice(&mut self) -> &mut [T] {
        self
    }
}
