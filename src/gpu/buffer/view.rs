//! Parts of buffers, and copies from and to them.

use super::host::{self, Element};
use super::{Backing, CopyError, Fixed, FixedMut, MemoryKind, Transfer, bounds};
use crate::gpu::copies::Job;
use crate::gpu::error::call;
use crate::gpu::source::{self, Advice, Location};
use crate::gpu::stream::Stream;
use crate::pool::{SourceError, Stream as _};
use core::marker::PhantomData;
use core::ops::RangeBounds;
use core::ptr;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use std::vec::Vec;

/// A part of a buffer.
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

/// A part of a buffer, to change.
pub struct ViewMut<'a, T>(pub(in crate::gpu) View<'a, T>);

/// The shape of a copy of rows, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Values of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Values from start to start of rows in the buffer.
    pub pitch: usize,
    /// Values from start to start of rows in the host's slice.
    pub host_pitch: usize,
}

impl Rows {
    /// Bytes that are copied, of a shape that was checked.
    fn bytes<T>(&self) -> usize {
        self.width * self.height * size_of::<T>()
    }

    /// Refuses what does not fit into the two lengths.
    fn check(&self, buffer: usize, host: usize) -> Result<(), CopyError> {
        let Self { width, height, pitch, host_pitch } = *self;
        if width == 0 || height == 0 {
            return Err(CopyError::Empty);
        }
        for (pitch, have) in [(pitch, buffer), (host_pitch, host)] {
            if pitch < width {
                return Err(CopyError::Pitch { pitch, width });
            }
            let span = pitch.checked_mul(height - 1).and_then(|before| before.checked_add(width));
            let asked = span.unwrap_or(usize::MAX);
            if asked > have {
                return Err(CopyError::Length { have, asked });
            }
        }
        Ok(())
    }
}

/// Waits for a copy from or to the host's memory, which must be over even after an error.
fn finish(stream: &Stream) -> Result<(), CopyError> {
    stream.synchronize().map_err(|error| {
        let _ = stream.context().synchronize();
        CopyError::Call(error)
    })
}

impl<'a, T: DeviceRepr + Copy> View<'a, T> {
    /// Values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first value, as the device counts.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`CopyError::Length`] if it is not within.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, CopyError> {
        let (start, len) = bounds(range, self.len)?;
        Ok(Self { address: self.address + (start * size_of::<T>()) as u64, len, ..self })
    }

    /// Refuses copies of nothing, and lengths that do not agree.
    pub(in crate::gpu) fn check(&self, asked: usize) -> Result<(), CopyError> {
        if self.len == 0 || asked == 0 {
            return Err(CopyError::Empty);
        }
        if asked != self.len {
            return Err(CopyError::Length { have: self.len, asked });
        }
        Ok(self.stream.context().bind()?)
    }

    /// Submits a copy to the host.
    ///
    /// # Safety
    ///
    /// The place has room for all values until the copy is over.
    unsafe fn submit_to(&self, place: *mut T) -> Result<(), SourceError> {
        let bytes = self.len * size_of::<T>();
        let job = Job::download(self.backing, bytes);
        if self.backing.kind() == MemoryKind::Host {
            // SAFETY: the view is alive, of this kind, and the caller answers for the place.
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
    /// [`CopyError::Empty`], [`CopyError::Length`], or what the driver says.
    pub fn copy_to(&self, values: &mut [T]) -> Result<(), CopyError> {
        self.check(values.len())?;
        // SAFETY: the slice is as long, and borrowed until the copy is over.
        unsafe { self.submit_to(values.as_mut_ptr())? };
        finish(self.stream)
    }

    /// Copies all values to the host. Waits.
    ///
    /// # Errors
    ///
    /// [`CopyError::Empty`], or what the driver says.
    pub fn to_vec(&self) -> Result<Vec<T>, CopyError> {
        self.check(self.len)?;
        let mut values = Vec::with_capacity(self.len);
        // SAFETY: there is room for so many, and the vector lives until the copy is over.
        unsafe { self.submit_to(values.as_mut_ptr())? };
        finish(self.stream)?;
        // SAFETY: all of them are copied from a buffer of such values.
        unsafe { values.set_len(self.len) };
        Ok(values)
    }

    /// Copies all values to memory that the transfer keeps meanwhile. Waits only if that memory is not pinned.
    ///
    /// # Errors
    ///
    /// As [`View::copy_to`]; the memory is lost to the caller then.
    pub fn copy_to_async<O: FixedMut<T>>(&self, mut values: O) -> Result<Transfer<O>, CopyError> {
        let place = values.as_mut_slice();
        self.check(place.len())?;
        // SAFETY: the place is as long, and stays where it is until the transfer is over.
        unsafe { self.submit_to(place.as_mut_ptr())? };
        Ok(Transfer::new(self.stream, values))
    }

    /// Moves managed memory to where it will be used. Does not wait.
    ///
    /// # Errors
    ///
    /// [`CopyError::Empty`], or what the driver says: it refuses memory that is not of
    /// [`Managed`](crate::gpu::Managed).
    pub fn prefetch(&self, to: Location) -> Result<(), CopyError> {
        self.check(self.len)?;
        // SAFETY: the range is that of the view.
        unsafe { source::prefetch(self.address, self.len * size_of::<T>(), to, self.stream)? };
        Ok(())
    }

    /// Tells the driver how managed memory will be used.
    ///
    /// # Errors
    ///
    /// As [`View::prefetch`].
    pub fn advise(&self, advice: Advice) -> Result<(), CopyError> {
        self.check(self.len)?;
        let context = self.stream.context();
        // SAFETY: the range is that of the view.
        unsafe { source::advise(context, self.address, self.len * size_of::<T>(), advice)? };
        Ok(())
    }

    /// Copies rows into a slice. Waits.
    ///
    /// # Errors
    ///
    /// [`CopyError::Empty`], [`CopyError::Length`], [`CopyError::Pitch`], or what the driver says.
    pub fn copy_rows_to(&self, values: &mut [T], rows: Rows) -> Result<(), CopyError> {
        rows.check(self.len, values.len())?;
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

    /// A copy of rows, without its direction.
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

    fn submit_rows(&self, copy: &CUDA_MEMCPY2D, job: Job<'_>) -> Result<(), CopyError> {
        self.stream.context().bind()?;
        job.submit(self.stream, || {
            // SAFETY: the shape was checked against both sides, which are borrowed until the copy is over.
            unsafe { call!(cuMemcpy2DAsync_v2(copy, self.stream.raw())) }
        })?;
        finish(self.stream)
    }
}

impl<'a, T: DeviceRepr + Copy> ViewMut<'a, T> {
    /// The same part, to read.
    pub fn as_view(&self) -> View<'_, T> {
        self.0
    }

    /// Values.
    pub const fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Address of the first value, as the device counts.
    pub const fn address(&self) -> u64 {
        self.0.address
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`CopyError::Length`] if it is not within.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, CopyError> {
        self.0.slice(range).map(Self)
    }

    /// The first `len` values and the others, to change apart.
    ///
    /// # Errors
    ///
    /// [`CopyError::Length`] if there are fewer.
    pub fn split_at(self, len: usize) -> Result<(Self, Self), CopyError> {
        Ok((Self(self.0.slice(..len)?), Self(self.0.slice(len..)?)))
    }

    /// Submits a copy from the host.
    ///
    /// # Safety
    ///
    /// The place holds all values until the copy is over.
    unsafe fn submit_from(&mut self, place: *const T) -> Result<(), SourceError> {
        let View { address, backing, stream, .. } = self.0;
        let bytes = self.0.len * size_of::<T>();
        let job = Job::upload(backing, bytes);
        if backing.kind() == MemoryKind::Host {
            // SAFETY: the view is alive, of this kind, and the caller answers for the place.
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
    /// [`CopyError::Empty`], [`CopyError::Length`], or what the driver says.
    pub fn copy_from(&mut self, values: &[T]) -> Result<(), CopyError> {
        self.0.check(values.len())?;
        // SAFETY: the slice is as long, and borrowed until the copy is over.
        unsafe { self.submit_from(values.as_ptr())? };
        finish(self.0.stream)
    }

    /// Copies all values from memory that the transfer keeps meanwhile. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`ViewMut::copy_from`]; the memory is lost to the caller then.
    pub fn copy_from_async<O: Fixed<T>>(&mut self, values: O) -> Result<Transfer<O>, CopyError> {
        let place = values.as_slice();
        self.0.check(place.len())?;
        // SAFETY: the place is as long, and stays where it is until the transfer is over.
        unsafe { self.submit_from(place.as_ptr())? };
        Ok(Transfer::new(self.0.stream, values))
    }

    /// Copies all values from a part of another buffer, of any device or of the host. Does not wait: the order is kept by
    /// events where the streams differ.
    ///
    /// # Errors
    ///
    /// As [`ViewMut::copy_from`].
    pub fn copy_from_view(&mut self, from: &View<'_, T>) -> Result<(), CopyError> {
        self.0.check(from.len)?;
        let (here, there) = (self.0.stream, from.stream);
        let is_other = here.id() != there.id();
        if is_other {
            here.wait(&there.record()?)?;
            // Should the wait below fail, its memory still outlives this copy.
            from.backing.used_on(here);
            here.context().bind()?;
        }
        let (bytes, to) = (self.0.len * size_of::<T>(), self.0.backing);
        let job = Job::between(from.backing, to, bytes);
        if [from.backing.kind(), to.kind()] == [MemoryKind::Host; 2] {
            let places = (host::pointer(from.address), host::pointer(self.0.address));
            // SAFETY: both views are alive, of this kind, as long, and apart, since one of them is to be changed.
            unsafe { host::copy(job, here, places.0, places.1, bytes) };
        } else {
            job.submit(here, || {
                // SAFETY: both ranges are of live buffers, and as long. One address space holds the memory of all.
                unsafe { call!(cuMemcpyAsync(self.0.address, from.address, bytes, here.raw())) }
            })?;
        }
        if is_other {
            // What is written there next comes after this.
            there.wait(&here.record()?)?;
        }
        Ok(())
    }

    /// Makes all values zero. Does not wait.
    ///
    /// # Errors
    ///
    /// [`CopyError::Empty`], or what the driver says.
    pub fn clear(&mut self) -> Result<(), CopyError>
    where
        T: ValidAsZeroBits,
    {
        self.0.check(self.0.len)?;
        // SAFETY: zeros are allowed for the type.
        unsafe { self.fill_with::<u8>(0, self.0.len * size_of::<T>()) }
    }

    /// Makes all values equal. Does not wait.
    ///
    /// # Errors
    ///
    /// [`CopyError::ValueSize`] for values that are not 1, 2 or 4 bytes large, [`CopyError::Empty`], or what the driver
    /// says.
    pub fn fill(&mut self, value: T) -> Result<(), CopyError> {
        let place = (&raw const value).cast::<u8>();
        let len = self.0.len;
        if !matches!(size_of::<T>(), 1 | 2 | 4) {
            return Err(CopyError::ValueSize(size_of::<T>()));
        }
        self.0.check(len)?;
        // SAFETY: the value has so many bytes, and the range is that of the view.
        unsafe {
            match size_of::<T>() {
                1 => self.fill_with::<u8>(place.read(), len),
                2 => self.fill_with::<u16>(place.cast::<u16>().read_unaligned(), len),
                _ => self.fill_with::<u32>(place.cast::<u32>().read_unaligned(), len),
            }
        }
    }

    /// Fills `len` elements from the start of the view on, which has been checked.
    ///
    /// # Safety
    ///
    /// They end where the view ends, and what they are then is allowed for its type.
    unsafe fn fill_with<E: Element>(&mut self, value: E, len: usize) -> Result<(), CopyError> {
        let View { address, backing, stream, .. } = self.0;
        let job = Job::fill(backing, len * size_of::<E>());
        if backing.kind() == MemoryKind::Host {
            // SAFETY: the view is alive, of this kind, and the caller answers for the length.
            unsafe { host::fill(job, stream, host::pointer(address).cast::<E>(), value, len) };
            return Ok(());
        }
        // SAFETY: the caller answers for the range.
        Ok(job.submit(stream, || unsafe { value.submit(address, len, stream) })?)
    }

    /// Copies rows from a slice. Waits.
    ///
    /// # Errors
    ///
    /// As [`View::copy_rows_to`].
    pub fn copy_rows_from(&mut self, values: &[T], rows: Rows) -> Result<(), CopyError> {
        rows.check(self.0.len, values.len())?;
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
