//! A device in use.

use super::copies::Copies;
use super::device::{self, Device};
use super::error::{Error, call, failed};
use crate::pool::{Capacity, SourceError};
use core::fmt;
use core::ptr;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUcontext, CUdevice, CUevent};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// The primary context of a device, which is what cudarc and the CUDA runtime use as well. Clones are the same one.
///
/// It is released when the last clone is gone, and with it everything that was made from it: streams, events, sources.
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    device: Device,
    raw_device: CUdevice,
    raw: CUcontext,
    /// Events that can be recorded again: making one costs more than recording it.
    events: Mutex<Vec<EventHandle>>,
    copies: Copies,
}

/// An event that nobody uses.
struct EventHandle(CUevent);

// SAFETY: the driver lets any thread use any handle.
unsafe impl Send for EventHandle {}
// SAFETY: as above; the pointers are handles that only the driver reads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Context {
    /// Takes a device into use and makes it the calling thread's.
    ///
    /// # Errors
    ///
    /// As [`is_available`](super::is_available), and [`Error::NoDevice`]. Never panics.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        let raw_device = device::raw(ordinal)?;
        let device = Device::get(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the place is one of this type, and the device is one of the driver's.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut raw, raw_device))? };
        let context = Self(Arc::new(Shared {
            device,
            raw_device,
            raw,
            events: Mutex::default(),
            copies: Copies::default(),
        }));
        context.bind()?;
        Ok(context)
    }

    /// What the device was described as.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The driver's handle, which is valid as long as this context.
    pub fn raw(&self) -> CUcontext {
        self.0.raw
    }

    pub(super) fn copies(&self) -> &Copies {
        &self.0.copies
    }

    pub(super) fn ordinal(&self) -> i32 {
        self.0.raw_device
    }

    /// The same context for cudarc, to launch kernels with.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn to_cudarc(&self) -> Result<Arc<CudaContext>, Error> {
        self.bind()?;
        CudaContext::new(self.device().ordinal)
            .map_err(|error| failed("cuDevicePrimaryCtxRetain", error.0).into())
    }

    /// Makes the context the calling thread's, which every call here does by itself. O(1); a cheap call of the
    /// driver.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn bind(&self) -> Result<(), SourceError> {
        let mut current = ptr::null_mut();
        // SAFETY: the place is one of this type.
        unsafe { call!(cuCtxGetCurrent(&mut current))? };
        if current == self.0.raw {
            return Ok(());
        }
        // SAFETY: the context is retained as long as this value is there.
        unsafe { call!(cuCtxSetCurrent(self.0.raw)) }
    }

    /// The device's memory, of which others may use some too. A call of the driver.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn capacity(&self) -> Result<Capacity, SourceError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places are of this type.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok(Capacity { total, free })
    }

    /// Blocks until all work on the device is done.
    ///
    /// # Errors
    ///
    /// What the driver says, errors of the work itself among them.
    pub fn synchronize(&self) -> Result<(), SourceError> {
        self.bind()?;
        // SAFETY: there is a context.
        unsafe { call!(cuCtxSynchronize()) }
    }

    /// An event without a time, used before or new.
    pub(super) fn take_event(&self) -> Result<CUevent, SourceError> {
        let used = self.0.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(EventHandle(event)) = used {
            return Ok(event);
        }
        self.bind()?;
        let mut event = ptr::null_mut();
        const DISABLE_TIMING: u32 = 2;
        // SAFETY: the place is one of this type.
        unsafe { call!(cuEventCreate(&mut event, DISABLE_TIMING))? };
        Ok(event)
    }

    pub(super) fn put_event(&self, event: CUevent) {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(EventHandle(event));
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", self.device()).finish_non_exhaustive()
    }
}

impl PartialEq for Context {
    /// Whether both are of the same device.
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }
}

impl Eq for Context {}

impl Drop for Shared {
    fn drop(&mut self) {
        let events = self.events.get_mut().unwrap_or_else(PoisonError::into_inner);
        for EventHandle(event) in events.drain(..) {
            // SAFETY: nobody else has the event. An error cannot be helped here.
            let _ = unsafe { call!(cuEventDestroy_v2(event)) };
        }
        self.copies.clear();
        // SAFETY: retained once by `Context::new`, and nothing that was made from it is left.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.raw_device)) };
    }
}
