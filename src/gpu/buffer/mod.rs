//! Typed memory and copies.
//!
//! ```text
//!  Allocate   what memory can be had from: a source, a pool
//!  Backing    memory that gives itself back: a Lease of a source, a block of a pool, a slice of cudarc's
//!  Buffer     values of one type in such memory, and the stream that orders all work on them
//!  View, ViewMut   a part of a buffer;   Transfer   an asynchronous copy that keeps the host's side
//! ```

mod backing;
mod cudarc_slice;
mod error;
mod host;
mod pooled;
mod transfer;
mod view;

pub(super) use backing::Uses;
pub use backing::{Allocate, Backing, HostBacking, Lease, MemoryKind, Touch};
pub use cudarc_slice::CudarcMemory;
pub use error::{AllocateError, CopyError};
pub use transfer::{Fixed, FixedMut, Transfer};
pub use view::{Rows, View, ViewMut};

use super::stream::Stream;
use crate::pool::Stream as _;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use core::{ptr, slice};
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use std::vec::Vec;

/// Values of one type in memory that a device can use, given back when this is dropped.
///
/// All work on a buffer is in the order of its stream, and none of it needs the host to wait except where the host's memory is
/// read or written. Copies between buffers of different streams arrange the order by events.
///
/// ```no_run
/// use allotment::gpu::{Buffer, Context, DeviceMemory, Stream};
/// use allotment::pool::{DevicePool, PoolOptions};
///
/// let context = Context::new(0)?;
/// let pool = DevicePool::new(DeviceMemory::new(&context), PoolOptions::new())?;
/// let stream = Stream::new(&context)?;
/// let mut numbers = Buffer::from_slice(&pool, &[1u32, 2, 3, 4], &stream)?;
/// numbers.slice_mut(..2)?.copy_from(&[5, 6])?;
/// assert_eq!(numbers.to_vec()?, [5, 6, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffer<T, B: Backing> {
    backing: B,
    len: usize,
    stream: Stream,
    _values: PhantomData<T>,
}

// SAFETY: the values are in the device's memory; whoever has the buffer may copy them.
unsafe impl<T: Send, B: Backing + Send> Send for Buffer<T, B> {}
// SAFETY: as above; shared use only reads.
unsafe impl<T: Sync, B: Backing + Sync> Sync for Buffer<T, B> {}

impl<T: DeviceRepr + Copy, B: Backing> Buffer<T, B> {
    /// Memory for `len` values, whose contents are unknown.
    ///
    /// # Errors
    ///
    /// [`CopyError::Empty`] for no values, [`CopyError::Length`] for more than can be counted, or what the allocator says.
    ///
    /// # Safety
    ///
    /// Nothing of it is read before it is written.
    pub unsafe fn uninit<'a, A>(
        allocator: &'a A,
        len: usize,
        stream: &Stream,
    ) -> Result<Self, AllocateError<A::Error>>
    where
        A: Allocate<Backing<'a> = B>,
    {
        if len == 0 || size_of::<T>() == 0 {
            return Err(CopyError::Empty.into());
        }
        let most = isize::MAX as usize / size_of::<T>();
        if len > most {
            return Err(CopyError::Length { have: most, asked: len }.into());
        }
        let bytes = len * size_of::<T>();
        let backing = allocator.allocate(bytes, stream).map_err(AllocateError::Allocation)?;
        debug_assert!(backing.bytes() >= bytes && backing.address() % align_of::<T>() == 0);
        Ok(Self { backing, len, stream: stream.clone(), _values: PhantomData })
    }

    /// `len` zeros. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`Buffer::uninit`], or what the driver says.
    pub fn zeros<'a, A>(
        allocator: &'a A,
        len: usize,
        stream: &Stream,
    ) -> Result<Self, AllocateError<A::Error>>
    where
        A: Allocate<Backing<'a> = B>,
        T: ValidAsZeroBits,
    {
        // SAFETY: all of it is written next.
        let mut buffer = unsafe { Self::uninit(allocator, len, stream)? };
        buffer.as_view_mut().clear()?;
        Ok(buffer)
    }

    /// The values of a slice. Waits until they are copied.
    ///
    /// # Errors
    ///
    /// As [`Buffer::zeros`].
    pub fn from_slice<'a, A>(
        allocator: &'a A,
        values: &[T],
        stream: &Stream,
    ) -> Result<Self, AllocateError<A::Error>>
    where
        A: Allocate<Backing<'a> = B>,
    {
        // SAFETY: all of it is written next.
        let mut buffer = unsafe { Self::uninit(allocator, values.len(), stream)? };
        buffer.as_view_mut().copy_from(values)?;
        Ok(buffer)
    }

    /// The same values in memory of another allocator: of another device, pinned, managed. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`Buffer::uninit`], or what the driver says; this buffer is lost to the caller then.
    pub fn migrate<'a, A: Allocate>(
        self,
        allocator: &'a A,
        stream: &Stream,
    ) -> Result<Buffer<T, A::Backing<'a>>, AllocateError<A::Error>> {
        // SAFETY: all of it is written next.
        let mut buffer = unsafe { Buffer::uninit(allocator, self.len, stream)? };
        buffer.as_view_mut().copy_from_view(&self.as_view())?;
        Ok(buffer)
    }

    /// Copies all values to the host. Waits.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn to_vec(&self) -> Result<Vec<T>, CopyError> {
        self.as_view().to_vec()
    }

    /// Copies all values from a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`CopyError::Length`], or what the driver says.
    pub fn copy_from(&mut self, values: &[T]) -> Result<(), CopyError> {
        self.as_view_mut().copy_from(values)
    }

    /// Copies all values into a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_from`].
    pub fn copy_to(&self, values: &mut [T]) -> Result<(), CopyError> {
        self.as_view().copy_to(values)
    }

    /// All of it.
    pub fn as_view(&self) -> View<'_, T> {
        View {
            address: self.address(),
            len: self.len,
            stream: &self.stream,
            backing: &self.backing,
            _values: PhantomData,
        }
    }

    /// All of it, to change.
    pub fn as_view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut(self.as_view())
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`CopyError::Length`] if it is not within.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<View<'_, T>, CopyError> {
        self.as_view().slice(range)
    }

    /// A part of it, to change.
    ///
    /// # Errors
    ///
    /// As [`Buffer::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>, CopyError> {
        Ok(ViewMut(self.as_view().slice(range)?))
    }
}

impl<T: DeviceRepr + Copy, B: Backing> Buffer<T, B> {
    /// The values where they are, once all work on them is done, if the CPU reaches them. Waits.
    ///
    /// # Errors
    ///
    /// [`CopyError::Invisible`], or what the driver says.
    pub fn try_as_slice(&self) -> Result<&[T], CopyError> {
        if self.kind() == MemoryKind::Device {
            return Err(CopyError::Invisible);
        }
        self.stream.synchronize()?;
        self.backing.touched(Touch::HostRead, self.bytes());
        let values = ptr::with_exposed_provenance(self.backing.address());
        // SAFETY: the CPU can read memory of this kind, which holds so many values. No work on it is left in the stream,
        // which is behind that of the others, and none that writes can be submitted while the buffer is borrowed.
        Ok(unsafe { slice::from_raw_parts(values, self.len) })
    }

    /// The same, to change.
    ///
    /// # Errors
    ///
    /// As [`Buffer::try_as_slice`].
    pub fn try_as_mut_slice(&mut self) -> Result<&mut [T], CopyError> {
        if self.kind() == MemoryKind::Device {
            return Err(CopyError::Invisible);
        }
        self.stream.synchronize()?;
        self.backing.touched(Touch::HostWrite, self.bytes());
        let values = ptr::with_exposed_provenance_mut(self.backing.address());
        // SAFETY: as above, and no work at all can be submitted.
        Ok(unsafe { slice::from_raw_parts_mut(values, self.len) })
    }
}

impl<T: DeviceRepr + Copy, B: HostBacking> Buffer<T, B> {
    /// The values where they are, once all work on them is done. Waits.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn as_slice(&self) -> Result<&[T], CopyError> {
        self.try_as_slice()
    }

    /// The same, to change.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], CopyError> {
        self.try_as_mut_slice()
    }
}

impl<T, B: Backing> Buffer<T, B> {
    /// `len` values in memory that holds them already.
    pub(super) fn from_backing(backing: B, len: usize, stream: &Stream) -> Self {
        debug_assert!(backing.bytes() >= len * size_of::<T>());
        Self { backing, len, stream: stream.clone(), _values: PhantomData }
    }

    /// Values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: a buffer has values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all values.
    pub const fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Address of the first value, as the device counts: an argument for kernels, in the order of [`Buffer::stream`],
    /// unless it is in [`MemoryKind::Host`].
    pub fn address(&self) -> u64 {
        self.backing.address() as u64
    }

    /// What kind of memory it is in.
    pub fn kind(&self) -> MemoryKind {
        self.backing.kind()
    }

    /// The memory.
    pub const fn backing(&self) -> &B {
        &self.backing
    }

    /// The stream that orders all work on it.
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// From here on `stream` orders the work, after all that was submitted before. Does not wait.
    ///
    /// # Errors
    ///
    /// What the driver says; the stream is as before then.
    pub fn switch_to(&mut self, stream: &Stream) -> Result<(), CopyError> {
        if stream.id() != self.stream.id() {
            stream.wait(&self.stream.record()?)?;
            self.backing.used_on(stream);
            self.stream = stream.clone();
        }
        Ok(())
    }
}

impl<T, B: Backing> fmt::Debug for Buffer<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("address", &self.address())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// First value and number of values of a range within `len`.
fn bounds(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), CopyError> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if end > len || start > end {
        return Err(CopyError::Length { have: len, asked: end.max(start) });
    }
    Ok((start, end - start))
}
