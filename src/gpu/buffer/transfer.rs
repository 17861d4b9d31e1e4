//! Copies that keep the host's side until they are over.

use super::CopyError;
use crate::gpu::stream::{Event, Stream};
use crate::pool::{Event as _, Stream as _};
use core::mem;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Values that stay where they are when their owner is moved.
///
/// # Safety
///
/// [`Fixed::as_slice`] is the same memory as long as the owner is there, wherever it is moved to, and nobody
/// changes it.
pub unsafe trait Fixed<T>: 'static {
    /// The values.
    fn as_slice(&self) -> &[T];
}

/// The same, of values that the owner has alone.
///
/// # Safety
///
/// As [`Fixed`], and nobody else reads them.
pub unsafe trait FixedMut<T>: Fixed<T> {
    /// The values.
    fn as_mut_slice(&mut self) -> &mut [T];
}

macro_rules! fixed {
    ($($type:ty),*) => {$(
        // SAFETY: the values are behind a pointer that moving does not change, and owned or shared for reading.
        unsafe impl<T: 'static> Fixed<T> for $type {
            fn as_slice(&self) -> &[T] {
                self
            }
        }
    )*};
}

fixed!(Vec<T>, Box<[T]>, Arc<[T]>, Arc<Vec<T>>, &'static [T]);

// SAFETY: the vector is the only one that has its values.
unsafe impl<T: 'static> FixedMut<T> for Vec<T> {
    fn as_mut_slice(&mut self) -> &mut [T] {
        self
    }
}

// SAFETY: the box is the only one that has its values.
unsafe impl<T: 'static> FixedMut<T> for Box<[T]> {
    fn as_mut_slice(&mut self) -> &mut [T] {
        self
    }
}

/// A copy that was submitted, with the host's side of it. Dropping it waits; forgetting it keeps the memory for good.
#[must_use = "dropping it waits for the copy"]
pub struct Transfer<O> {
    stream: Stream,
    /// Where the copy ends; without one the whole stream is waited for.
    event: Option<Event>,
    owner: Option<O>,
}

impl<O> Transfer<O> {
    pub(super) fn new(stream: &Stream, owner: O) -> Self {
        Self { stream: stream.clone(), event: stream.record().ok(), owner: Some(owner) }
    }

    /// Whether the copy is over. Does not wait.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn is_done(&self) -> Result<bool, CopyError> {
        match &self.event {
            Some(event) => Ok(event.is_done()?),
            None => Ok(false),
        }
    }

    fn finish(&mut self) -> Result<(), CopyError> {
        match &self.event {
            Some(event) => event.synchronize()?,
            None => self.stream.synchronize()?,
        }
        Ok(())
    }

    /// Waits, and gives the host's side back.
    ///
    /// # Errors
    ///
    /// What the driver says; the memory is kept for good then, since it may still be used.
    pub fn wait(mut self) -> Result<O, CopyError> {
        let finished = self.finish();
        let owner = self.owner.take().expect("it is taken here and in `drop` only");
        if let Err(error) = finished {
            mem::forget(owner);
            return Err(error);
        }
        Ok(owner)
    }
}

impl<O> Drop for Transfer<O> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            if self.finish().is_err() {
                // It may still be used.
                mem::forget(owner);
            }
        }
    }
}
