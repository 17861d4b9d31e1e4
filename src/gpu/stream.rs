//! Streams of a device and events in them.

use super::context::Context;
use super::error::{Error, call};
use crate::pool::{self, SourceError, StreamId};
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream, CUstreamCaptureStatus};
use std::sync::Arc;

/// A queue of work on a device. Clones refer to the same queue, which is destroyed with the last of them, once its
/// work is done.
#[derive(Clone)]
pub struct Stream(Arc<Shared>);

struct Shared {
    context: Context,
    raw: CUstream,
    id: StreamId,
    owner: Owner,
}

enum Owner {
    /// The queue is destroyed with this value.
    Ours,
    /// The context's default stream, which is not destroyed.
    Nobody,
    /// A stream of cudarc, kept alive by this reference.
    Cudarc { _stream: Arc<CudaStream> },
}

// SAFETY: the driver allows any stream to be used from any thread, and the pointer is a handle that only the driver
// reads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The next number of a stream. Default streams have the numbers of their devices instead. The driver's handles
/// cannot serve as numbers, because it may use them again.
static NEXT: AtomicU64 = AtomicU64::new(1 << 32);

impl Stream {
    fn from_raw(context: &Context, raw: CUstream, owner: Owner) -> Self {
        let id = if raw.is_null() {
            StreamId(context.device().ordinal as u64)
        } else {
            StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
        };
        Self(Arc::new(Shared { context: context.clone(), raw, id, owner }))
    }

    /// Makes a new queue, which is not ordered with the default stream.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn new(context: &Context) -> Result<Self, Error> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the output has the type that the function writes, and the flag exists.
        unsafe { call!(cuStreamCreate(&mut raw, NON_BLOCKING))? };
        Ok(Self::from_raw(context, raw, Owner::Ours))
    }

    /// Returns the context's default stream.
    pub fn default_of(context: &Context) -> Self {
        Self::from_raw(context, ptr::null_mut(), Owner::Nobody)
    }

    /// Makes a stream of a queue that cudarc made on the device of `context`. Each call returns a stream with a new
    /// identity; compared to a clone, this only costs some extra events.
    ///
    /// # Errors
    ///
    /// [`Error::OtherContext`] if the queue belongs to another context.
    pub fn from_cudarc(context: &Context, stream: Arc<CudaStream>) -> Result<Self, Error> {
        if stream.context().cu_ctx() != context.raw() {
            return Err(Error::OtherContext);
        }
        let raw = stream.cu_stream();
        Ok(Self::from_raw(context, raw, Owner::Cudarc { _stream: stream }))
    }

    /// Returns the context of the stream.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the driver's handle, which is valid while a clone of this exists.
    pub fn raw(&self) -> CUstream {
        self.0.raw
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.0.id.0).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Owner::Ours = self.owner {
            // SAFETY: `Stream::new` made the queue, and nothing uses it any more. A drop cannot report an error.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.raw)) };
        }
    }
}

impl pool::Stream for Stream {
    type Event = Event;

    fn id(&self) -> StreamId {
        self.0.id
    }

    fn record(&self) -> Result<Event, SourceError> {
        let context = &self.0.context;
        let event = Event { raw: context.take_event()?, context: context.clone() };
        context.bind()?;
        // SAFETY: both handles are alive, and of one context.
        unsafe { call!(cuEventRecord(event.raw, self.0.raw))? };
        Ok(event)
    }

    fn wait(&self, event: &Event) -> Result<(), SourceError> {
        self.0.context.bind()?;
        // SAFETY: both handles are alive; they may be of different devices. 0 is the only flag.
        unsafe { call!(cuStreamWaitEvent(self.0.raw, event.raw, 0)) }
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        self.0.context.bind()?;
        // SAFETY: the handle is alive.
        unsafe { call!(cuStreamSynchronize(self.0.raw)) }
    }

    fn is_capturing(&self) -> Result<bool, SourceError> {
        self.0.context.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the handle is alive, the output has the type that the function writes.
        unsafe { call!(cuStreamIsCapturing(self.0.raw, &mut status))? };
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// A mark in a stream, after everything that was submitted before it.
pub struct Event {
    raw: CUevent,
    context: Context,
}

// SAFETY: the driver lets any thread use any event; the pointer is a handle that only the driver reads.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}

impl pool::Event for Event {
    fn is_done(&self) -> Result<bool, SourceError> {
        // SAFETY: the handle is alive. A query needs no current context.
        let code = unsafe { sys::cuEventQuery(self.raw) };
        match code {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => super::error::check("cuEventQuery", code).map(|()| true),
        }
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        // SAFETY: as above.
        unsafe { call!(cuEventSynchronize(self.raw)) }
    }
}

impl Drop for Event {
    /// Recycles the event: a wait that was already submitted no longer needs it.
    fn drop(&mut self) {
        self.context.put_event(self.raw);
    }
}
