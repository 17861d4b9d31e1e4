//! Calls that a capture of a graph would forbid.

use super::error::call;
use core::marker::PhantomData;
use cudarc::driver::sys::CUstreamCaptureMode;

/// While this exists, the calling thread may allocate, wait and query although a stream is being captured, by this
/// or another thread. Without it such a call fails and spoils the capture, even one of a stream that has nothing to
/// do with the call. Calls on captured streams and events stay forbidden.
pub(super) struct Relaxed(CUstreamCaptureMode, PhantomData<*const ()>);

impl Relaxed {
    /// `None` if the driver refuses; the calls themselves then tell whether they work.
    pub(super) fn new() -> Option<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuThreadExchangeStreamCaptureMode(&mut mode)) }.ok()?;
        Some(Self(mode, PhantomData))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above. A drop cannot report an error.
        let _ = unsafe { call!(cuThreadExchangeStreamCaptureMode(&mut self.0)) };
    }
}
