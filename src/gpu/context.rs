//! Contexts: devices in use.

use super::{Device, Error, copies::Copies, device, error::failed, library::call, relaxed::Relaxed};
use crate::lock::Mutex;
use crate::pool::{Capacity, CopyStats, Direction, MemoryKind, SourceError, SourceErrorKind};
use crate::units::debug;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUpointer_attribute};
use std::sync::{Arc, OnceLock};

/// The primary context of a device, which cudarc and the CUDA runtime use as well. Clones refer to the same
/// context.
///
/// The driver releases it once the last clone and all streams, events and sources made from it are dropped.
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    device: Device,
    raw_device: CUdevice,
    raw: CUcontext,
    /// Whether the context was reset, which invalidates its handles.
    is_lost: AtomicBool,
    /// Events to record again, since making an event costs more than recording it.
    events: Mutex<Vec<EventHandle>>,
    copies: Copies,
}

/// Keeps a context current for the calling thread; dropping this makes the previous context current again.
#[must_use]
pub(super) struct Bound {
    before: Option<CUcontext>,
    _relaxed: Option<Relaxed>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the previous context was current when this value was made. A drop cannot report an error.
            let _ = unsafe { call!(cuCtxSetCurrent(before)) };
        }
    }
}

/// An unused event.
struct EventHandle(CUevent);

// SAFETY: the driver allows any handle to be used from any thread.
unsafe impl Send for EventHandle {}
// SAFETY: as above; the pointers are handles that only the driver reads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Context {
    /// Starts using a device. The calling thread's current context does not change.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if there is no device with this number, or the error of
    /// [`is_available`](super::is_available). Never panics.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        let raw_device = device::raw(ordinal)?;
        let device = Device::get(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the output has the type that the function writes, and the device is one of the driver's.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut raw, raw_device))? };
        Ok(Self::of(device, raw_device, raw))
    }

    /// Returns the host's context, which has no device and needs no driver, for programs that also run on machines without a device:
    /// its streams are [`Stream::host`](super::Stream::host), and [`Staging`](super::Staging) and
    /// [`MemoryManager`](super::manager::MemoryManager) use ordinary memory. A device's sources cannot reserve memory with it.
    ///
    /// ```
    /// use allotment::gpu::Context;
    /// use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager};
    ///
    /// let context = Context::new(0).unwrap_or_else(|_| Context::host());
    /// let manager = MemoryManager::new(&[context], ManagerOptions::default())?;
    /// assert_eq!(manager.allocate::<f32>(100, None, Access::Random)?.to_vec()?, [0.0; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn host() -> Self {
        static HOST: OnceLock<Context> = OnceLock::new();
        HOST.get_or_init(|| Self::of(Device::host(), -1, ptr::null_mut())).clone()
    }

    fn of(device: Device, raw_device: CUdevice, raw: CUcontext) -> Self {
        let (is_lost, events, copies) = (AtomicBool::new(false), Mutex::default(), Copies::default());
        Self(Arc::new(Shared { device, raw_device, raw, is_lost, events, copies }))
    }

    /// Returns whether this is the context of the host.
    pub(super) fn is_host(&self) -> bool {
        self.0.raw.is_null()
    }

    /// Returns the description of the device. For the host, this describes a device without memory, whose number no device has.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the driver's handle, which is valid for as long as this context exists.
    pub fn raw(&self) -> CUcontext {
        self.0.raw
    }

    pub(super) fn copies(&self) -> &Copies {
        &self.0.copies
    }

    pub(super) fn ordinal(&self) -> i32 {
        self.0.raw_device
    }

    /// Returns this context for cudarc, to launch kernels.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn to_cudarc(&self) -> Result<Arc<CudaContext>, Error> {
        let _bound = self.enter()?;
        CudaContext::new(self.device().ordinal)
            .map_err(|error| failed("cuDevicePrimaryCtxRetain", error.0 as u32).into())
    }

    /// Makes the context current for the calling thread while it runs `work`, for the program's own driver calls. Afterwards, the
    /// previous context is current again, even if `work` panics. O(1); at most three cheap driver calls besides those of `work`.
    ///
    /// Every operation of this module does this by itself. A thread that works with one context saves most of these calls if it runs all
    /// its work inside one `bind`.
    ///
    /// # Errors
    ///
    /// The error of the driver; in that case, `work` does not run.
    pub fn bind<R>(&self, work: impl FnOnce() -> R) -> Result<R, SourceError> {
        let _bound = self.enter()?;
        Ok(work())
    }

    /// Destroys everything in the context, for the whole process: memory, streams, events and kernels, including those of other
    /// libraries. This is the last resort after an error that makes the device unusable ([`SourceErrorKind::Lost`]), before the program
    /// starts afresh.
    ///
    /// From then on, everything made from this context and its clones returns such an error, and can only be dropped, which does nothing.
    /// For further work, make a new context, of this device or another one, and new pools from the options of the old ones
    /// ([`Pool::options`](crate::pool::RawPool::options)).
    ///
    /// ```compile_fail,E0133
    /// # use allotment::gpu::{Buffer, Context};
    /// fn freed_under_a_reference(context: &Context, pinned: &mut Buffer<u8>) {
    ///     let bytes = pinned.as_mut_slice().unwrap();
    ///     context.reset().unwrap(); // needs `unsafe`
    ///     bytes[0] = 1;
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the driver.
    ///
    /// # Safety
    ///
    /// No reference to memory of the context may exist, such as one from [`Buffer::as_slice`](super::Buffer::as_slice), and no other
    /// thread may use the context or its memory during the call. Afterwards, nothing may use objects that other libraries made in the
    /// context, nor its memory through a stream of another device.
    pub unsafe fn reset(&self) -> Result<(), SourceError> {
        self.check()?;
        self.0.refuse_host()?;
        self.0.is_lost.store(true, Ordering::Release);
        // SAFETY: the device is one of the driver's; since the context is lost, we never use destroyed objects again, and the caller
        // promises this for references and for objects of other libraries.
        unsafe { call!(cuDevicePrimaryCtxReset_v2(self.0.raw_device)) }
    }

    /// Fails if the context was reset.
    pub(super) fn check(&self) -> Result<(), SourceError> {
        if self.is_lost() {
            return Err(SourceError::new(SourceErrorKind::Lost, "the context was reset"));
        }
        Ok(())
    }

    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }

    /// Makes the context current until the result is dropped.
    pub(super) fn enter(&self) -> Result<Bound, SourceError> {
        self.check()?;
        self.0.enter()
    }

    /// Makes the context current until the result is dropped. Until then, the thread may also make calls that a capture forbids.
    pub(super) fn enter_relaxed(&self) -> Result<Bound, SourceError> {
        let mut bound = self.enter()?;
        bound._relaxed = Relaxed::new();
        Ok(bound)
    }

    /// Returns the context of a device: a clone of this one if the device is the same.
    pub(super) fn of_device(&self, ordinal: usize) -> Result<Self, SourceError> {
        if self.device().ordinal == ordinal {
            return Ok(self.clone());
        }
        Self::new(ordinal).map_err(|error| error.of_driver("a context of the other device"))
    }

    /// Returns whether this device can reach the memory of another one directly.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn can_access(&self, other: &Self) -> Result<bool, SourceError> {
        let mut can = 0;
        // SAFETY: the output has the type that the function writes, and both devices are the driver's.
        unsafe { call!(cuDeviceCanAccessPeer(&mut can, self.0.raw_device, other.0.raw_device))? };
        Ok(can != 0)
    }

    /// Fails if this device cannot access the other one's memory.
    pub(super) fn check_access(&self, other: &Self) -> Result<(), Error> {
        match self.can_access(other)? {
            true => Ok(()),
            false => Err(Error::Unsupported("access to the memory of this peer")),
        }
    }

    /// Lets kernels of this device use another device's memory from [`DeviceMemory`](super::DeviceMemory), and makes copies between the
    /// two direct. For memory of [`Virtual`](super::Virtual) and [`AsyncMemory`](super::AsyncMemory), use
    /// [`Virtual::with_peers`](super::Virtual::with_peers) and [`AsyncMemory::allow`](super::AsyncMemory::allow) instead. Copies between
    /// buffers need none of these.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if this device cannot reach the other one's memory, or the error of the driver.
    pub fn enable_peer(&self, other: &Self) -> Result<(), Error> {
        self.check_access(other)?;
        let _bound = self.enter()?;
        const ALREADY_ENABLED: i64 = 704;
        // SAFETY: the other context is alive, and 0 is the only flag.
        match unsafe { call!(cuCtxEnablePeerAccess(other.0.raw, 0)) } {
            Err(error) if error.code != ALREADY_ENABLED => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the kind of memory at an address, which may belong to another library; [`MemoryKind::Host`] if the driver does not know
    /// the address. Registered memory counts as pinned, and read-mostly memory as managed. At most two driver calls.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn kind_of(&self, address: usize) -> Result<MemoryKind, SourceError> {
        if self.is_host() {
            return Ok(MemoryKind::Host);
        }
        let _bound = self.enter_relaxed()?;
        const HOST: u32 = 1;
        const UNKNOWN: i64 = 1;
        let (mut kind, mut is_managed) = (0_u32, 0_u32);
        let ask = |which, answer: &mut u32| {
            // SAFETY: the answers have at most 32 bits. Any address is allowed.
            unsafe { call!(cuPointerGetAttribute(ptr::from_mut(answer).cast(), which, address as u64)) }
        };
        match ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &mut kind) {
            Err(error) if error.code == UNKNOWN => return Ok(MemoryKind::Host),
            answered => answered?,
        }
        ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, &mut is_managed)?;
        Ok(match kind {
            _ if is_managed != 0 => MemoryKind::Managed,
            HOST => MemoryKind::Pinned,
            _ => MemoryKind::Device,
        })
    }

    /// Returns the device's total and free memory; other processes may use some of it. A driver call.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn capacity(&self) -> Result<Capacity, SourceError> {
        let _bound = self.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the outputs have the type that the function writes.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok(Capacity { total, free })
    }

    /// Blocks until all work on the device is done.
    ///
    /// # Errors
    ///
    /// The error of the driver, or of the work itself.
    pub fn synchronize(&self) -> Result<(), SourceError> {
        if self.is_host() {
            return Ok(());
        }
        let _bound = self.enter_relaxed()?;
        // SAFETY: a context is current.
        unsafe { call!(cuCtxSynchronize()) }
    }

    /// Returns statistics of the copies and fills that buffers, [`Staging`](super::Staging), batches and the
    /// compaction of pools have submitted to streams of this context. A copy between two devices counts in the
    /// context of the destination's stream, and managed memory counts as a device's. Copies by other libraries are
    /// not included. Does not wait. O(1), and O(copies under way) if [`Context::time_copies`] is or was on.
    pub fn copy_stats(&self) -> [CopyStats; 6] {
        self.copies().stats(|| self.enter_relaxed())
    }

    /// Turns the timing of copies on or off. It is off by default.
    ///
    /// When on, two events on the stream enclose each copy or fill. The measured time runs from the end of the preceding work in that
    /// stream to the end of the copy, by the device's clock (with a resolution of about half a microsecond). It excludes time in the
    /// queue and in the host's calls, but includes waiting for a copy engine that other streams keep busy. A copy's time counts once
    /// [`Context::copy_stats`] or a later copy finds it done. At most 256 copies are timed at once, and copies in a graph capture are
    /// never timed.
    pub fn time_copies(&self, on: bool) {
        self.copies().is_timed.store(on, Ordering::Relaxed);
    }

    /// Counts bytes that a pool's compaction moved, on the device or the host.
    pub(super) fn count_moved(&self, direction: Direction, bytes: usize) {
        self.copies().counters.count(direction, bytes);
    }

    /// Returns an event without timing, reused or new.
    pub(super) fn take_event(&self) -> Result<CUevent, SourceError> {
        self.check()?;
        let used = self.0.events.lock().pop();
        if let Some(EventHandle(event)) = used {
            return Ok(event);
        }
        let _bound = self.enter_relaxed()?;
        let mut event = ptr::null_mut();
        const DISABLE_TIMING: u32 = 2;
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuEventCreate(&mut event, DISABLE_TIMING))? };
        Ok(event)
    }

    pub(super) fn put_event(&self, event: CUevent) {
        self.0.events.lock().push(EventHandle(event));
    }
}

debug!([] Context, |self| device: self.device());

impl PartialEq for Context {
    /// Returns whether both are of the same device, without a reset between them.
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw && self.is_lost() == other.is_lost()
    }
}

impl Eq for Context {}

impl Shared {
    /// Fails if this is the context of the host, for which there must be no driver call.
    fn refuse_host(&self) -> Result<(), SourceError> {
        let refused = SourceError::unsupported("work of a device on the host's stream");
        if self.raw.is_null() { Err(refused) } else { Ok(()) }
    }

    /// Makes the context current until the result is dropped, unless it is the host's.
    fn enter(&self) -> Result<Bound, SourceError> {
        self.refuse_host()?;
        let mut current = ptr::null_mut();
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuCtxGetCurrent(&mut current))? };
        if current == self.raw {
            return Ok(Bound { before: None, _relaxed: None });
        }
        // SAFETY: the context is retained for as long as this value exists.
        unsafe { call!(cuCtxSetCurrent(self.raw))? };
        Ok(Bound { before: Some(current), _relaxed: None })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // A reset destroyed the context's events.
        if !*self.is_lost.get_mut() {
            let bound = self.enter();
            let events = self.events.get_mut();
            for EventHandle(event) in events.drain(..) {
                // SAFETY: nothing else uses the event. A drop cannot report an error.
                let _ = unsafe { call!(cuEventDestroy_v2(event)) };
            }
            self.copies.clear();
            drop(bound);
        }
        // SAFETY: `Context::new` retained it once, and nothing made from it is left.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.raw_device)) };
        let (mut current, mut flags, mut is_active) = (ptr::null_mut(), 0, 0);
        // SAFETY: the outputs have the types that the functions write.
        let found = unsafe {
            call!(cuCtxGetCurrent(&mut current))
                .and_then(|()| call!(cuDevicePrimaryCtxGetState(self.raw_device, &mut flags, &mut is_active)))
        };
        if found.is_ok() && current == self.raw && is_active == 0 {
            // The context has ended, so it must not stay current.
            // SAFETY: null leaves the thread without a context.
            let _ = unsafe { call!(cuCtxSetCurrent(ptr::null_mut())) };
        }
    }
}
