//! Queues of a device's work, and marks in them.

use super::context::Context;
use super::error::{Error, call};
use crate::pool::{self, SourceError, StreamId};
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream, CUstreamCaptureStatus};
use std::sync::Arc;

/// A queue of work on a device. Clones are the same queue, which goes with the last of them, once its work is done.
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
    /// The context's default stream.
    Nobody,
    /// It lives as long as this does.
    Cudarc { _stream: Arc<CudaStream> },
}

// SAFETY: the driver lets any thread use any stream; the pointer is a handle that only the driver reads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Numbers of streams that are not default streams, whose numbers are those of their devices. The driver's handles
/// would not do: it may use one again.
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

    /// A new queue, which is in no order with the default stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self, Error> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the place is one of this type, and the flag exists.
        unsafe { call!(cuStreamCreate(&mut raw, NON_BLOCKING))? };
        Ok(Self::from_raw(context, raw, Owner::Ours))
    }

    /// The context's default stream.
    pub fn default_of(context: &Context) -> Self {
        Self::from_raw(context, ptr::null_mut(), Owner::Nobody)
    }

    /// A queue that cudarc made, on the device of `context`. It counts as another one each time it is taken, which
    /// only costs an event where a clone would cost none.
    ///
    /// # Errors
    ///
    /// [`Error::OtherContext`] if it is not.
    pub fn from_cudarc(context: &Context, stream: Arc<CudaStream>) -> Result<Self, Error> {
        if stream.context().cu_ctx() != context.raw() {
            return Err(Error::OtherContext);
        }
        let raw = stream.cu_stream();
        Ok(Self::from_raw(context, raw, Owner::Cudarc { _stream: stream }))
    }

    /// The context that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The driver's handle, valid as long as a clone of this is there.
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
            // SAFETY: made by `Stream::new`, and nobody has it any more. An error cannot be helped here.
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
        // SAFETY: the handle is alive, the place is one of this type.
        unsafe { call!(cuStreamIsCapturing(self.0.raw, &mut status))? };
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// A mark in a stream, after all that was submitted before it.
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
    /// A wait that was submitted does not need the event any more, so it can be recorded again.
    fn drop(&mut self) {
        self.context.put_event(self.raw);
    }
}
