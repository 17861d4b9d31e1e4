//! Parts of buffers, and copies to and from them.

use super::host;
use super::job::Job;
use super::{Backing, Error, MemoryKind, Rows, Transfer, bounds};
use crate::gpu::library::call;
use crate::gpu::source::{self, Advice};
use crate::gpu::stream::Stream;
use crate::pool::{SourceError, SourceErrorKind, Stream as _};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, RangeBounds};
use core::ptr;
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};
use stable_deref_trait::StableDeref;

/// A shared view of a part of a buffer.
pub struct View<'a, T> {
    pub(in crate::gpu) address: u64,
    pub(in crate::gpu) len: usize,
    pub(in crate::gpu) stream: &'a Stream,
    pub(in crate::gpu) backing: &'a dyn Backing,
    pub(super) _values: PhantomData<&'a [T]>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

/// A mutable view of a part of a buffer.
pub struct ViewMut<'a, T>(pub(in crate::gpu) View<'a, T>);

/// Waits for a copy to or from host memory, which must have ended even after an error.
fn finish(stream: &Stream) -> Result<(), Error> {
    stream.synchronize().map_err(|error| {
        let _ = stream.context().synchronize();
        Error::Call(error)
    })
}

impl<T> View<'_, T> {
    pub(in crate::gpu) const fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<'a, T: DeviceRepr + Copy> View<'a, T> {
    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device address of the first value.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns a part of the view.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the range exceeds the view.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let (start, len) = bounds(range, self.len)?;
        Ok(Self { address: self.address + (start * size_of::<T>()) as u64, len, ..self })
    }

    /// Refuses lengths that differ.
    pub(in crate::gpu) fn check(&self, asked: usize) -> Result<(), Error> {
        if asked != self.len {
            return Err(Error::Length { have: self.len, asked });
        }
        Ok(())
    }

    /// Submits a copy to the host.
    ///
    /// # Safety
    ///
    /// `place` must have room for all values until the copy is done.
    unsafe fn submit_to(&self, place: *mut T) -> Result<(), SourceError> {
        let bytes = self.bytes();
        if bytes == 0 {
            return Ok(());
        }
        let job = Job::download(self.backing, bytes);
        if self.backing.kind() == MemoryKind::Host {
            // SAFETY: the view is alive and of this kind, and the caller guarantees the place.
            unsafe { host::copy(job, self.stream, host::pointer(self.address), place.cast(), bytes) };
            return Ok(());
        }
        job.submit(self.stream, || {
            // SAFETY: as above.
            unsafe { call!(cuMemcpyDtoHAsync_v2(place.cast(), self.address, bytes, self.stream.raw())) }
        })
    }

    /// Copies all values into a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver.
    pub fn copy_to(&self, values: &mut [T]) -> Result<(), Error> {
        self.check(values.len())?;
        // SAFETY: the slice has the same length and is borrowed until the copy is done.
        unsafe { self.submit_to(values.as_mut_ptr())? };
        self.finish()
    }

    /// Copies all values to a vector on the host. Waits.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut values = Vec::with_capacity(self.len);
        // SAFETY: there is room for this many values, and the vector lives until the copy is done.
        unsafe { self.submit_to(values.as_mut_ptr())? };
        self.finish()?;
        // SAFETY: all values were copied from a buffer of this type.
        unsafe { values.set_len(self.len) };
        Ok(values)
    }

    /// Waits for a copy to or from the host, if there is anything to copy.
    fn finish(&self) -> Result<(), Error> {
        if self.bytes() == 0 { Ok(()) } else { finish(self.stream) }
    }

    /// Copies all values to memory that the transfer keeps alive. Does not wait if that memory is pinned
    /// ([`Pinned`](crate::gpu::Pinned), [`Registered`](crate::gpu::Registered)); otherwise the driver may wait until the
    /// copy is done.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver. The memory is dropped in that case.
    pub fn copy_to_async<O>(&self, mut values: O) -> Result<Transfer<O>, Error>
    where
        O: StableDeref + DerefMut<Target = [T]> + 'static,
    {
        let place = &mut *values;
        self.check(place.len())?;
        // SAFETY: the place has the same length and keeps its address until the transfer is done.
        unsafe { self.submit_to(place.as_mut_ptr())? };
        Ok(Transfer::new(self.stream, values))
    }

    /// Moves managed memory to where it will be used. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the driver, which refuses memory that is not from
    /// [`Managed`](crate::gpu::Managed).
    pub fn prefetch(&self, to: Option<usize>) -> Result<(), Error> {
        if self.bytes() > 0 {
            // SAFETY: the range is that of the view.
            unsafe { source::prefetch(self.address, self.bytes(), to, self.stream)? };
        }
        Ok(())
    }

    /// Tells the driver how managed memory will be used.
    ///
    /// # Errors
    ///
    /// The error of the driver, which refuses memory that is not from
    /// [`Managed`](crate::gpu::Managed).
    pub fn advise(&self, advice: Advice) -> Result<(), Error> {
        if self.bytes() > 0 {
            // SAFETY: the range is that of the view.
            unsafe { source::advise(self.stream.context(), self.address, self.bytes(), advice)? };
        }
        Ok(())
    }

    /// Copies rows of the view into a slice. The shape is the number of values in a row and the number of rows; the pitches are the
    /// values from the start of one row to the start of the next in the view, and in the slice. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::Pitch`], or the error of the driver.
    pub fn copy_rows_to(
        &self,
        values: &mut [T],
        shape: [usize; 2],
        pitches: [usize; 2],
    ) -> Result<(), Error> {
        let rows = Rows::new(shape, pitches);
        rows.check(self.len, values.len())?;
        if rows.bytes::<T>() == 0 {
            return Ok(());
        }
        if self.backing.kind() == MemoryKind::Host {
            let job = Job::download(self.backing, rows.bytes::<T>());
            let (from, to) = (host::pointer(self.address), values.as_mut_ptr().cast());
            // SAFETY: the shape was checked against both sides, which are borrowed.
            unsafe {
                host::copy_rows::<T>(job, self.stream, (from, rows.pitch), (to, rows.host_pitch), rows)
            };
            return Ok(());
        }
        let mut copy = self.rows(rows);
        copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
        copy.dstHost = values.as_mut_ptr().cast();
        (copy.srcPitch, copy.dstPitch) = (rows.pitch * size_of::<T>(), rows.host_pitch * size_of::<T>());
        self.submit_rows(&copy, Job::download(self.backing, rows.bytes::<T>()))
    }

    /// Prepares a copy of rows, without its direction.
    fn rows(&self, rows: Rows) -> CUDA_MEMCPY2D {
        CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: ptr::null(),
            srcDevice: self.address,
            srcArray: ptr::null_mut(),
            srcPitch: 0,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: ptr::null_mut(),
            dstDevice: self.address,
            dstArray: ptr::null_mut(),
            dstPitch: 0,
            WidthInBytes: rows.width * size_of::<T>(),
            Height: rows.height,
        }
    }

    fn submit_rows(&self, copy: &CUDA_MEMCPY2D, job: Job<'_>) -> Result<(), Error> {
        job.submit(self.stream, || {
            // SAFETY: the shape was checked against both sides, which are borrowed until the copy is done.
            unsafe { call!(cuMemcpy2DAsync_v2(copy, self.stream.raw())) }
        })?;
        finish(self.stream)
    }
}

impl<'a, T: DeviceRepr + Copy> ViewMut<'a, T> {
    /// Returns a shared view of the same part.
    pub fn as_view(&self) -> View<'_, T> {
        self.0
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.0.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the device address of the first value.
    pub const fn address(&self) -> u64 {
        self.0.address
    }

    /// Returns a part of the view.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the range exceeds the view.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        self.0.slice(range).map(Self)
    }

    /// Splits the view into its first `len` values and the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if there are fewer than `len` values.
    pub fn split_at(self, len: usize) -> Result<(Self, Self), Error> {
        Ok((Self(self.0.slice(..len)?), Self(self.0.slice(len..)?)))
    }

    /// Submits a copy from the host.
    ///
    /// # Safety
    ///
    /// `place` must hold all values until the copy is done.
    unsafe fn submit_from(&mut self, place: *const T) -> Result<(), SourceError> {
        let View { address, backing, stream, .. } = self.0;
        let bytes = self.0.bytes();
        if bytes == 0 {
            return Ok(());
        }
        let job = Job::upload(backing, bytes);
        if backing.kind() == MemoryKind::Host {
            // SAFETY: the view is alive and of this kind, and the caller guarantees the place.
            unsafe { host::copy(job, stream, place.cast(), host::pointer(address), bytes) };
            return Ok(());
        }
        job.submit(stream, || {
            // SAFETY: as above.
            unsafe { call!(cuMemcpyHtoDAsync_v2(address, place.cast(), bytes, stream.raw())) }
        })
    }

    /// Copies all values from a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver.
    pub fn copy_from(&mut self, values: &[T]) -> Result<(), Error> {
        self.0.check(values.len())?;
        // SAFETY: the slice has the same length and is borrowed until the copy is done.
        unsafe { self.submit_from(values.as_ptr())? };
        self.0.finish()
    }

    /// Copies all values from memory that the transfer keeps alive. Does not wait if that memory is pinned
    /// ([`Pinned`](crate::gpu::Pinned), [`Registered`](crate::gpu::Registered)). For other memory, such as a `Vec`, the driver
    /// may wait for all earlier work on the stream and then read the values before this returns, so that nothing overlaps.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver. The memory is dropped in that case.
    pub fn copy_from_async<O>(&mut self, values: O) -> Result<Transfer<O>, Error>
    where
        O: StableDeref + Deref<Target = [T]> + 'static,
    {
        let place = &*values;
        self.0.check(place.len())?;
        // SAFETY: the place has the same length and keeps its address until the transfer is done.
        unsafe { self.submit_from(place.as_ptr())? };
        Ok(Transfer::new(self.0.stream, values))
    }

    /// Copies all values from a view of the same length, of any device or of the host. If the streams differ, events keep
    /// the order. Does not wait, unless one of the two is [`MemoryKind::Host`]: such a copy is done when this returns, and
    /// a stream that is being captured refuses it.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver.
    pub fn copy_from_view(&mut self, from: &View<'_, T>) -> Result<(), Error> {
        self.0.check(from.len)?;
        if from.bytes() == 0 {
            return Ok(());
        }
        let (here, there) = (self.0.stream, from.stream);
        let is_other = here.id() != there.id();
        if is_other {
            here.wait(&there.record()?)?;
            // Even if the wait below fails, the source's memory outlives this copy.
            from.backing.used_on(here);
        }
        let (bytes, to) = (from.bytes(), self.0.backing);
        let job = Job::between(from.backing, to, bytes);
        let on_host = [from.backing.kind(), to.kind()].map(|kind| kind == MemoryKind::Host);
        if on_host == [true, true] {
            let places = (host::pointer(from.address), host::pointer(self.0.address));
            // SAFETY: both views are alive, of this kind and of the same length, and disjoint, since one of them is
            // mutable.
            unsafe { host::copy(job, here, places.0, places.1, bytes) };
        } else {
            let is_pageable = on_host.contains(&true);
            // The stream of the host cannot do what the driver does. Ordinary memory is waited for below.
            let here = if here.is_host() && on_host[1] { there } else { here };
            if is_pageable && here.is_capturing()? {
                let kind = SourceErrorKind::Capturing;
                return Err(SourceError { kind, call: "a copy of ordinary host memory", code: 0 }.into());
            }
            let peers = from.backing.device().zip(to.device()).filter(|(from, to)| from != to);
            let contexts = match peers {
                Some((there, other)) => {
                    Some([from.stream.context().of_device(there)?, here.context().of_device(other)?])
                }
                None => None,
            };
            job.submit(here, || match contexts {
                // SAFETY: both ranges belong to live buffers, of these contexts' devices, and have the same length.
                Some([there, other]) => unsafe {
                    let (to, from) = (self.0.address, from.address);
                    call!(cuMemcpyPeerAsync(to, other.raw(), from, there.raw(), bytes, here.raw()))
                },
                // SAFETY: as above. One address space holds the memory of all devices and the host.
                None => unsafe { call!(cuMemcpyAsync(self.0.address, from.address, bytes, here.raw())) },
            })?;
            if is_pageable {
                // The CPU may use the memory at once.
                finish(here)?;
            }
        }
        if is_other {
            // Later writes to the source must come after this copy.
            there.wait(&here.record()?)?;
        }
        Ok(())
    }

    /// Copies rows from a slice into the view; see [`View::copy_rows_to`] for the shape and the pitches. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::Pitch`], or the error of the driver.
    pub fn copy_rows_from(
        &mut self,
        values: &[T],
        shape: [usize; 2],
        pitches: [usize; 2],
    ) -> Result<(), Error> {
        let rows = Rows::new(shape, pitches);
        rows.check(self.0.len, values.len())?;
        if rows.bytes::<T>() == 0 {
            return Ok(());
        }
        if self.0.backing.kind() == MemoryKind::Host {
            let job = Job::upload(self.0.backing, rows.bytes::<T>());
            let (from, to) = (values.as_ptr().cast(), host::pointer(self.0.address));
            // SAFETY: the shape was checked against both sides, which are borrowed.
            unsafe {
                host::copy_rows::<T>(job, self.0.stream, (from, rows.host_pitch), (to, rows.pitch), rows)
            };
            return Ok(());
        }
        let mut copy = self.0.rows(rows);
        copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        copy.srcHost = values.as_ptr().cast();
        (copy.dstPitch, copy.srcPitch) = (rows.pitch * size_of::<T>(), rows.host_pitch * size_of::<T>());
        self.0.submit_rows(&copy, Job::upload(self.0.backing, rows.bytes::<T>()))
    }
}
