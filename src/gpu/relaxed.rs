//! Permission for calls that a graph capture would forbid.

use super::library::call;
use core::marker::PhantomData;

/// While this exists, the calling thread may allocate, wait and query even during a capture by this or another thread. Without it, such a
/// call fails and spoils the capture, even a capture of an unrelated stream. Calls on captured streams and events stay forbidden.
pub(super) struct Relaxed(u32, PhantomData<*const ()>);

impl Relaxed {
    /// Returns `None` if the driver refuses; the calls themselves then fail if a capture forbids them.
    pub(super) fn new() -> Option<Self> {
        const RELAXED: u32 = 2;
        let mut mode = RELAXED;
        // SAFETY: the mode is a number that the function reads and writes.
        unsafe { call!(cuThreadExchangeStreamCaptureMode((&raw mut mode).cast())) }.ok()?;
        Some(Self(mode, PhantomData))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above. A drop cannot report an error.
        let _ = unsafe { call!(cuThreadExchangeStreamCaptureMode((&raw mut self.0).cast())) };
    }
}
