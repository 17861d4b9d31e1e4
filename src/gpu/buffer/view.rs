//! Parts of buffers, and copies to and from them.

use super::{Backing, Error, Job, MemoryKind, Rows, Transfer, Way, bounds, host};
use crate::gpu::{Advice, Stream, library::call, source};
use crate::pool::{SourceError, SourceErrorKind, Stream as _};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, RangeBounds};
use cudarc::driver::DeviceRepr;
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

/// Waits for a copy to or from host memory, which must end even if the driver reports an error.
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

    /// Refuses a different length.
    pub(in crate::gpu) fn check(&self, asked: usize) -> Result<(), Error> {
        if asked != self.len {
            return Err(Error::Length { have: self.len, asked });
        }
        Ok(())
    }

    /// Submits a copy between the view and the host.
    ///
    /// # Safety
    ///
    /// `place` must hold all values, or have room for them, until the copy is done.
    unsafe fn submit(&self, way: Way, place: *mut T) -> Result<(), SourceError> {
        let (bytes, place) = (self.bytes(), place.cast::<u8>());
        if bytes == 0 {
            return Ok(());
        }
        let job = Job::host(way, self.backing, bytes);
        if self.backing.kind() == MemoryKind::Host {
            let here = host::pointer(self.address);
            let (from, to) = if way == Way::Up { (place, here) } else { (here, place) };
            // SAFETY: the view is alive and of this kind, and the caller guarantees the place.
            unsafe { host::copy(job, self.stream, from, to, bytes) };
            return Ok(());
        }
        // SAFETY: as above.
        job.submit(self.stream, || unsafe { way.copy(self.address, place, bytes, self.stream) })
    }

    /// Copies all values into a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver.
    pub fn copy_to(&self, values: &mut [T]) -> Result<(), Error> {
        self.check(values.len())?;
        // SAFETY: the slice has the same length and is borrowed until the copy is done.
        unsafe { self.submit(Way::Down, values.as_mut_ptr())? };
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
        unsafe { self.submit(Way::Down, values.as_mut_ptr())? };
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
    /// [`Error::Length`], or the error of the driver. An error drops the memory.
    pub fn copy_to_async<O>(&self, mut values: O) -> Result<Transfer<O>, Error>
    where
        O: StableDeref + DerefMut<Target = [T]> + 'static,
    {
        let place = &mut *values;
        self.check(place.len())?;
        // SAFETY: the place has the same length and keeps its address until the transfer is done.
        unsafe { self.submit(Way::Down, place.as_mut_ptr())? };
        Ok(Transfer::new(self.stream, values))
    }

    /// Moves managed memory to a device, or, for `None`, to the host. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the driver, which refuses memory that is not from
    /// [`Managed`](crate::gpu::Managed).
    pub fn prefetch(&self, to: Option<usize>) -> Result<(), Error> {
        if self.bytes() > 0 {
            // SAFETY: the range is the view's.
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
            // SAFETY: the range is the view's.
            unsafe { source::advise(self.stream.context(), self.address, self.bytes(), advice)? };
        }
        Ok(())
    }

    /// Copies rows of the view into a slice. The shape is the number of values in a row and the number of rows; the pitches are the
    /// distances in values between the starts of successive rows, in the view and in the slice. Waits.
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
        // SAFETY: the slice is this long, and borrowed until the copy is done.
        unsafe { self.copy_rows(Way::Down, values.as_mut_ptr(), values.len(), Rows::new(shape, pitches)) }
    }

    /// Copies rows between the view and `len` values on the host. Waits.
    ///
    /// # Safety
    ///
    /// `place` must hold the values, or have room for them, until this returns.
    unsafe fn copy_rows(&self, way: Way, place: *mut T, len: usize, rows: Rows) -> Result<(), Error> {
        rows.check(self.len, len)?;
        let (bytes, place) = (rows.bytes::<T>(), place.cast::<u8>());
        if bytes == 0 {
            return Ok(());
        }
        let job = Job::host(way, self.backing, bytes);
        let size = size_of::<T>();
        let (shape, pitches) =
            ([rows.width * size, rows.height], [rows.pitch * size, rows.host_pitch * size]);
        if self.backing.kind() == MemoryKind::Host {
            // SAFETY: the shape was checked against both sides, which are valid.
            unsafe { host::copy_rows(way, host::pointer(self.address), place, shape, pitches) };
            job.done(self.stream);
            return Ok(());
        }
        // SAFETY: as above.
        job.submit(self.stream, || unsafe {
            way.copy_rows(self.address, place, shape, pitches, self.stream)
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

    /// Copies all values from a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver.
    pub fn copy_from(&mut self, values: &[T]) -> Result<(), Error> {
        self.0.check(values.len())?;
        // SAFETY: the slice has the same length and is borrowed until the copy is done.
        unsafe { self.0.submit(Way::Up, values.as_ptr().cast_mut())? };
        self.0.finish()
    }

    /// Copies all values from memory that the transfer keeps alive. Does not wait if that memory is pinned
    /// ([`Pinned`](crate::gpu::Pinned), [`Registered`](crate::gpu::Registered)). For other memory, such as a `Vec`, the driver may wait
    /// for all earlier work on the stream and read the values before this returns, so that nothing overlaps.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver. An error drops the memory.
    pub fn copy_from_async<O>(&mut self, values: O) -> Result<Transfer<O>, Error>
    where
        O: StableDeref + Deref<Target = [T]> + 'static,
    {
        let place = &*values;
        self.0.check(place.len())?;
        // SAFETY: the place has the same length and keeps its address until the transfer is done.
        unsafe { self.0.submit(Way::Up, place.as_ptr().cast_mut())? };
        Ok(Transfer::new(self.0.stream, values))
    }

    /// Copies all values from a view of the same length, on any device or the host. If the streams differ, events order them. Does not
    /// wait, unless either memory is [`MemoryKind::Host`]: such a copy is done when this returns, and fails on a captured stream.
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
            // The host's stream cannot run driver work. The code below waits for copies of ordinary memory.
            let here = if here.is_host() && on_host[1] { there } else { here };
            if is_pageable && here.is_capturing()? {
                return Err(
                    SourceError::new(SourceErrorKind::Capturing, "a copy of ordinary host memory").into()
                );
            }
            let peers = from.backing.device().zip(to.device()).filter(|(from, to)| from != to);
            let contexts = match peers {
                Some((there, other)) => {
                    Some([from.stream.context().of_device(there)?, here.context().of_device(other)?])
                }
                None => None,
            };
            job.submit(here, || match contexts {
                // SAFETY: both ranges belong to live buffers on these contexts' devices and have the same length.
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
        let place = values.as_ptr().cast_mut();
        // SAFETY: the slice is this long, borrowed until the copy is done, and only read.
        unsafe { self.0.copy_rows(Way::Up, place, values.len(), Rows::new(shape, pitches)) }
    }
}
