//! Streams of a device and events in them.

use super::error::{NOT_READY, check};
use super::library::{self, call, code_of};
use super::{Context, Error, relaxed::Relaxed};
use crate::lock::Mutex;
use crate::pool::{self, SourceError};
use crate::units::debug;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUevent, CUstream};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock, Weak};

/// A queue of work on a device. Clones refer to the same queue, and so does every stream made from the same driver handle while one of
/// them exists. The last of them destroys a queue from [`Stream::new`], once its work is done.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
    /// The program's handles are clones of this; `None` in a handle that a pool keeps.
    _handle: Option<Arc<()>>,
}

struct Shared {
    context: Context,
    raw: CUstream,
    id: u64,
    owner: Owner,
    /// The driver's number of the queue; 0 if the driver has none.
    driver_id: u64,
    /// Has one clone for each of the program's handles.
    handles: Arc<()>,
    /// The same queue for cudarc, once the program has requested it.
    cudarc: OnceLock<Arc<CudaStream>>,
}

enum Owner {
    /// Dropping this value destroys the queue.
    Ours,
    /// The context's default stream, which nothing destroys.
    None,
    /// A stream of cudarc, kept alive by this reference.
    Cudarc(Arc<CudaStream>),
    /// A stream that the program destroys.
    Foreign,
}

// SAFETY: the driver allows any stream to be used from any thread, and the pointer is a handle that only the driver
// reads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The next number of a stream. Default streams have the numbers of their devices instead. The driver's handles cannot be the numbers,
/// because the driver may reuse them.
static NEXT: AtomicU64 = AtomicU64::new(1 << 32);

/// The existing streams, by the handles of their contexts and their own handles.
static KNOWN: Mutex<Option<Streams>> = Mutex::new(None);
type Streams = HashMap<(usize, usize), Weak<Shared>>;

/// Driver handles that stand for default streams.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The types of functions that cudarc declares only for some versions of CUDA.
type CaptureInfo =
    unsafe extern "C" fn(CUstream, *mut u32, *mut u64, *mut c_void, *mut c_void, *mut usize) -> u32;
type GetId = unsafe extern "C" fn(CUstream, *mut u64) -> u32;

/// The capture states of a stream, as plain numbers like the driver's results.
const NOT_CAPTURING: u32 = 0;
const CAPTURING: u32 = 1;

/// Returns the driver's number of a queue, which the driver never reuses; `None` while the queue is being captured, because the query
/// would spoil the capture, and 0 with drivers older than CUDA 12.
fn driver_id(raw: CUstream) -> Option<u64> {
    (!is_captured(raw).unwrap_or(false)).then(|| known_id(raw))
}

/// Returns whether a queue is being captured. A default stream needs a current context for this.
fn is_captured(raw: CUstream) -> Result<bool, SourceError> {
    let mut status = NOT_CAPTURING;
    // SAFETY: the handle is alive, the output is the number that the function writes.
    unsafe { call!(cuStreamIsCapturing(raw, (&raw mut status).cast()))? };
    Ok(status != NOT_CAPTURING)
}

/// Returns the driver's number of a queue that is not being captured.
fn known_id(raw: CUstream) -> u64 {
    static FOUND: OnceLock<Option<GetId>> = OnceLock::new();
    let Some(get) = FOUND.get_or_init(|| library::find("cuStreamGetId")) else { return 0 };
    let mut id = 0;
    // SAFETY: the function has this type and writes the type of the output, and the handle is alive.
    let code = unsafe { get(raw, &mut id) };
    if check("cuStreamGetId", code).is_ok() { id } else { 0 }
}

impl Stream {
    /// Returns the stream with this handle: the existing one, or a new one.
    fn from_handle(context: &Context, raw: CUstream, owner: Owner) -> Self {
        let key = (context.raw() as usize, raw as usize);
        // Dropped after the lock is released, since dropping a stream takes the lock.
        let _stale;
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_default();
        // The driver may have reused the handle of a stream that the program destroyed.
        let now = if matches!(owner, Owner::Foreign) { driver_id(raw) } else { Some(0) };
        match known.get(&key).and_then(Weak::upgrade) {
            Some(shared)
                if !shared.context.is_lost()
                    && (!matches!(shared.owner, Owner::Foreign)
                        || now.is_none_or(|now| shared.driver_id == now)) =>
            {
                return Self { _handle: Some(shared.handles.clone()), shared };
            }
            other => _stale = other,
        }
        let id = if raw.is_null() {
            context.device().ordinal as u64
        } else {
            NEXT.fetch_add(1, Ordering::Relaxed)
        };
        let (context, handles, cudarc) = (context.clone(), Arc::new(()), OnceLock::new());
        let _handle = Some(handles.clone());
        let driver_id = now.unwrap_or(0);
        let shared = Arc::new(Shared { context, raw, id, owner, driver_id, handles, cudarc });
        known.insert(key, Arc::downgrade(&shared));
        Self { shared, _handle }
    }

    /// Makes a new queue, which is not synchronized with the default stream. For the host's context, returns [`Stream::host`].
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn new(context: &Context) -> Result<Self, Error> {
        if context.is_host() {
            return Ok(Self::default_of(context));
        }
        let _bound = context.enter()?;
        let mut raw = ptr::null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the output has the type that the function writes, and the flag exists.
        unsafe { call!(cuStreamCreate(&mut raw, NON_BLOCKING))? };
        Ok(Self::from_handle(context, raw, Owner::Ours))
    }

    /// Returns the context's default stream.
    pub fn default_of(context: &Context) -> Self {
        Self::from_handle(context, ptr::null_mut(), Owner::None)
    }

    /// Returns the stream of the host: the CPU performs work on it at once, without a driver. Pools and buffers of
    /// [`HostMemory`](super::HostMemory) use it like a device's stream, so the same program runs with both.
    ///
    /// A wait for another stream blocks the caller. A device cannot work in this stream's order: fills and kernels on a device fail with
    /// [`SourceErrorKind::Unsupported`](crate::pool::SourceErrorKind::Unsupported). Copies between host and device run in the order of
    /// the device's stream.
    ///
    /// ```
    /// use allotment::gpu::{Buffer, HostMemory, Pool, Stream};
    /// use allotment::pool::PoolOptions;
    ///
    /// let stream = Stream::host();
    /// let pool = Pool::new(HostMemory::new(1 << 30), PoolOptions::new())?;
    /// let mut values: Buffer<f32> = Buffer::from_slice(&pool, &[1.0, 2.0, 3.0], &stream)?;
    /// values.slice_mut(1..)?.fill(0.5)?;
    /// assert_eq!(values.to_vec()?, [1.0, 0.5, 0.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn host() -> Self {
        Self::default_of(&Context::host())
    }

    /// Returns whether this is the stream of the host.
    pub(super) fn is_host(&self) -> bool {
        self.shared.context.is_host()
    }

    /// Returns the stream for a queue that cudarc made on the device of `context`. O(1).
    ///
    /// # Errors
    ///
    /// [`Error::OtherContext`] if the queue belongs to another context, and [`Error::PerThreadStream`] if it is the
    /// calling thread's default stream.
    pub fn from_cudarc(context: &Context, stream: Arc<CudaStream>) -> Result<Self, Error> {
        if stream.context().cu_ctx() != context.raw() {
            return Err(Error::OtherContext);
        }
        match stream.cu_stream() as usize {
            0 | LEGACY => Ok(Self::default_of(context)),
            PER_THREAD => Err(Error::PerThreadStream),
            _ => Ok(Self::from_handle(context, stream.cu_stream(), Owner::Cudarc(stream))),
        }
    }

    /// Returns the stream for a handle from another library. The handles 0 and 1 are the default stream.
    ///
    /// # Errors
    ///
    /// [`Error::PerThreadStream`] for the handle 2, which means a different queue on every thread.
    ///
    /// # Safety
    ///
    /// The handle must belong to a queue of this context, and the queue must exist for as long as any clone of the stream, including
    /// those in pools and buffers.
    pub unsafe fn from_raw(context: &Context, raw: CUstream) -> Result<Self, Error> {
        match raw as usize {
            0 | LEGACY => Ok(Self::default_of(context)),
            PER_THREAD => Err(Error::PerThreadStream),
            _ => Ok(Self::from_handle(context, raw, Owner::Foreign)),
        }
    }

    /// Returns the same queue for cudarc, for kernel launches and cudarc's own copies. Drop it before the last clone of this stream;
    /// otherwise the queue is never destroyed.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn to_cudarc(&self) -> Result<Arc<CudaStream>, Error> {
        self.cudarc().cloned()
    }

    /// Returns the same queue for cudarc, borrowed.
    pub(super) fn cudarc(&self) -> Result<&Arc<CudaStream>, Error> {
        let Shared { context, raw, owner, cudarc, .. } = &*self.shared;
        if let Owner::Cudarc(stream) = owner {
            return Ok(stream);
        }
        if let Some(stream) = cudarc.get() {
            return Ok(stream);
        }
        // SAFETY: the queue belongs to this context, and is not destroyed while the result exists. The wrapper does not own it, and all
        // submissions to a queue have one order.
        let wrapped = unsafe { context.to_cudarc()?.wrap_borrowed_stream(*raw) };
        Ok(cudarc.get_or_init(|| wrapped))
    }

    /// Returns the context of the stream.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Returns the driver's handle, which is valid while a clone of this stream exists.
    pub fn raw(&self) -> CUstream {
        self.shared.raw
    }
}

debug!([] Stream, |self| id: self.shared.id);

impl Drop for Shared {
    fn drop(&mut self) {
        let key = (self.context.raw() as usize, self.raw as usize);
        let mut known = KNOWN.lock();
        let map = known.get_or_insert_default();
        // Another thread may have made a stream from the same handle in the meantime.
        if map.get(&key).is_some_and(|stream| stream.strong_count() == 0) {
            map.remove(&key);
        }
        drop(known);
        let is_lent = self.cudarc.get().is_some_and(|stream| Arc::strong_count(stream) > 1);
        if let (Owner::Ours, false, false) = (&self.owner, is_lent, self.context.is_lost()) {
            // A drop cannot report an error.
            let Ok(_bound) = self.context.enter() else { return };
            // SAFETY: `Stream::new` made the queue, and nothing uses it now.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.raw)) };
        }
    }
}

impl pool::Stream for Stream {
    type Event = Event;

    fn id(&self) -> u64 {
        self.shared.id
    }

    fn record(&self) -> Result<Event, SourceError> {
        let context = &self.shared.context;
        if context.is_host() {
            return Ok(Event { raw: ptr::null_mut(), context: context.clone() });
        }
        let event = Event { raw: context.take_event()?, context: context.clone() };
        let _bound = context.enter()?;
        // SAFETY: both handles are alive, and of one context.
        unsafe { call!(cuEventRecord(event.raw, self.shared.raw))? };
        Ok(event)
    }

    fn wait(&self, event: &Event) -> Result<(), SourceError> {
        if event.context.is_host() {
            return Ok(());
        }
        if self.is_host() {
            return pool::Event::synchronize(event);
        }
        let _bound = self.shared.context.enter()?;
        // SAFETY: both handles are alive; they may be of different devices. 0 is the only flag.
        unsafe { call!(cuStreamWaitEvent(self.shared.raw, event.raw, 0)) }
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        if self.is_host() {
            return Ok(());
        }
        let _bound = self.shared.context.enter_relaxed()?;
        // SAFETY: the handle is alive.
        unsafe { call!(cuStreamSynchronize(self.shared.raw)) }
    }

    fn capture(&self) -> Result<Option<u64>, SourceError> {
        static FOUND: OnceLock<Option<CaptureInfo>> = OnceLock::new();
        self.shared.context.check()?;
        if self.is_host() {
            return Ok(None);
        }
        let unsupported = SourceError::unsupported("cuStreamGetCaptureInfo");
        let info = FOUND.get_or_init(|| library::find("cuStreamGetCaptureInfo_v2")).ok_or(unsupported)?;
        // Only the default stream's handle needs a context.
        let _bound = self.shared.raw.is_null().then(|| self.shared.context.enter()).transpose()?;
        let (mut status, mut id) = (NOT_CAPTURING, 0);
        let none = ptr::null_mut;
        // SAFETY: the function has this type and writes the types of the outputs, the handle is alive, and the last three arguments may
        // be null.
        let code = unsafe { info(self.shared.raw, &mut status, &mut id, none(), none(), ptr::null_mut()) };
        check("cuStreamGetCaptureInfo", code)?;
        Ok((status == CAPTURING).then_some(id))
    }

    fn is_capturing(&self) -> Result<bool, SourceError> {
        if self.is_host() {
            return Ok(false);
        }
        let _bound = self.shared.context.enter()?;
        is_captured(self.shared.raw)
    }

    fn retain(&self) -> Self {
        Self { shared: self.shared.clone(), _handle: None }
    }

    fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared.handles) == 1
            && match &self.shared.owner {
                Owner::Ours => self.shared.cudarc.get().is_none_or(|stream| Arc::strong_count(stream) == 1),
                Owner::Cudarc(stream) => Arc::strong_count(stream) == 1,
                Owner::None | Owner::Foreign => false,
            }
    }
}

/// A mark in a stream, after all work submitted before it.
pub struct Event {
    raw: CUevent,
    context: Context,
}

// SAFETY: the driver allows any thread to use any event; the pointer is a handle that only the driver reads.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

debug!([] Event, |self|);

impl pool::Event for Event {
    fn is_done(&self) -> Result<bool, SourceError> {
        self.context.check()?;
        if self.context.is_host() {
            return Ok(true);
        }
        let _relaxed = Relaxed::new();
        // SAFETY: the handle is alive. A query needs no current context.
        let code = unsafe { code_of!(cuEventQuery(self.raw)) };
        match code {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        if self.context.is_host() {
            return Ok(());
        }
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: the handle is alive.
        unsafe { call!(cuEventSynchronize(self.raw)) }
    }
}

impl Drop for Event {
    /// Recycles the event: submitted waits no longer need it.
    fn drop(&mut self) {
        if !self.raw.is_null() {
            self.context.put_event(self.raw);
        }
    }
}
