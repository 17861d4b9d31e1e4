//! Typed buffers and copies.
//!
//! ```text
//!  Backer     an allocator of memory: a source, a pool, a plan, a manager (private)
//!  Memory     memory with an owner: a block of a pool, or any Backing, such as a Lease of a source (private)
//!  Buffer     values of one type in such memory, and the stream that orders all work on them
//!  View, ViewMut   a part of a buffer;   Transfer   an asynchronous copy that keeps the host's side alive
//! ```

#![expect(private_bounds, reason = "what allocates is a closed list")]

mod backing;
mod cudarc_slice;
mod current;
mod dlpack;
mod fill;
mod host;
mod job;
mod owned;
mod resident;
mod rows;
mod spill;
mod transfer;
mod view;

pub use crate::pool::MemoryKind;
use crate::units::debug;
pub(in crate::gpu) use backing::{Backer, Backing, Foreign, Memory};
pub use dlpack::DlTensor;
pub(super) use job::{Job, Way};
pub use owned::Pool;
use rows::Rows;
pub use spill::Spillable;
pub use transfer::Transfer;
pub use view::{View, ViewMut};

use super::usage::{Touch, Usage};
use super::{Error, Stream, source};
use crate::pool::{SourceErrorKind, Stream as _};
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use core::{ptr, slice};
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

/// The alignment of buffers' memory in bytes.
const ALIGNMENT: usize = 256;

/// Values of one type in memory that a device can use. Dropping the buffer frees the memory.
///
/// All work on a buffer runs in the order of its stream. The host waits only for reads and writes of host memory. Events order copies
/// between buffers of different streams.
///
/// The constructors accept an allocator: a [`Pool`], an `Arc` of a [`DevicePool`](crate::pool::DevicePool) whose other methods the
/// program also calls, a [`PlannedArena`](crate::pool::PlannedArena) with the number of its buffer, a [`Pattern`](crate::pool::Pattern),
/// a [`MemoryRequest`](super::manager::MemoryRequest), or an `Arc` of a [`Source`](crate::pool::Source), which reserves a segment for
/// each buffer. A program's own allocator implements [`DeviceAllocator`](crate::pool::DeviceAllocator) and goes into [`Pool::over`].
///
/// ```no_run
/// use allotment::gpu::{Buffer, Context, DeviceMemory, Pool, Stream};
/// use allotment::pool::PoolOptions;
///
/// let context = Context::new(0)?;
/// let pool = Pool::new(DeviceMemory::new(&context), PoolOptions::new())?;
/// let stream = Stream::new(&context)?;
/// let mut numbers = Buffer::from_slice(&pool, &[1u32, 2, 3, 4], &stream)?;
/// numbers.slice_mut(..2)?.copy_from(&[5, 6])?;
/// assert_eq!(numbers.to_vec()?, [5, 6, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffer<T> {
    memory: Memory,
    len: usize,
    stream: Stream,
    _values: PhantomData<T>,
}

// SAFETY: the values lie in the backing's memory, and the owner of the buffer may copy them.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Allocates memory for `len` values, possibly 0, with unspecified contents.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the length in bytes overflows, [`Error::Align`] if the program's own [`Source`](crate::pool::Source) has a
    /// lower alignment than the type requires, or the error of the allocator. The compiler refuses a type with an alignment above 256
    /// bytes:
    ///
    /// ```compile_fail,E0080
    /// use allotment::gpu::cudarc::driver::{DeviceRepr, ValidAsZeroBits};
    /// use allotment::gpu::{Buffer, Pool, Stream};
    ///
    /// #[derive(Clone, Copy)]
    /// #[repr(C, align(4096))]
    /// struct Page([u64; 512]);
    /// // SAFETY: plain numbers, for which zero bytes are valid.
    /// unsafe impl DeviceRepr for Page {}
    /// // SAFETY: as above.
    /// unsafe impl ValidAsZeroBits for Page {}
    ///
    /// fn pages(pool: &Pool, stream: &Stream) -> Option<Buffer<Page>> {
    ///     Buffer::zeros(pool, 2, stream).ok()
    /// }
    /// # fn main() { let _: fn(&Pool, &Stream) -> Option<Buffer<Page>> = pages; }
    /// ```
    ///
    /// # Safety
    ///
    /// The program must not read a value before writing it.
    pub unsafe fn uninit(allocator: &impl Backer, len: usize, stream: &Stream) -> Result<Self, Error> {
        const {
            assert!(
                align_of::<T>() <= ALIGNMENT,
                "blocks are aligned to 256 bytes, and the type asks for more"
            );
        }
        let most = isize::MAX as usize / size_of::<T>().max(1);
        if len > most {
            return Err(Error::Length { have: most, asked: len });
        }
        let bytes = len * size_of::<T>();
        // Even a buffer without values has an address.
        let memory = allocator.allocate(bytes.max(1), stream)?;
        let backing = memory.get();
        // The allocator promised both, but a program's own allocator may be wrong, and a source may align to less.
        if backing.bytes() < bytes {
            let have = backing.bytes() / size_of::<T>().max(1);
            return Err(Error::Length { have, asked: len });
        }
        if backing.address() % align_of::<T>() != 0 {
            return Err(Error::Align { asked: align_of::<T>() });
        }
        // After the loss of a device, the CPU does the work in host memory.
        let is_lost = || stream.capture().is_err_and(|error| error.kind == SourceErrorKind::Lost);
        let goes_on = backing.kind() == MemoryKind::Host && is_lost();
        let stream = if goes_on { Stream::host() } else { stream.clone() };
        Ok(Self { memory, len, stream, _values: PhantomData })
    }

    /// Makes a buffer of `len` zeros. Does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::uninit`], or the error of the driver.
    pub fn zeros(allocator: &impl Backer, len: usize, stream: &Stream) -> Result<Self, Error>
    where
        T: ValidAsZeroBits,
    {
        // SAFETY: all values are written next.
        let mut buffer = unsafe { Self::uninit(allocator, len, stream)? };
        buffer.as_view_mut().clear()?;
        Ok(buffer)
    }

    /// Makes a buffer with the values of a slice. Waits until they are copied.
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::uninit`], or the error of the driver.
    pub fn from_slice(allocator: &impl Backer, values: &[T], stream: &Stream) -> Result<Self, Error> {
        // SAFETY: all values are written next.
        let mut buffer = unsafe { Self::uninit(allocator, values.len(), stream)? };
        buffer.as_view_mut().copy_from(values)?;
        Ok(buffer)
    }

    /// Moves the values to another allocator's memory: to another device, or to pinned or managed memory. Does not wait, unless either
    /// memory is [`MemoryKind::Host`].
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::uninit`], or the error of the driver. An error drops this buffer.
    pub fn migrate(self, allocator: &impl Backer, stream: &Stream) -> Result<Self, Error> {
        self.duplicate(allocator, stream)
    }

    /// Copies the values to another allocator's memory, like [`Buffer::migrate`].
    fn duplicate(&self, allocator: &impl Backer, stream: &Stream) -> Result<Self, Error> {
        // SAFETY: all values are written next.
        let mut buffer = unsafe { Buffer::uninit(allocator, self.len, stream)? };
        buffer.as_view_mut().copy_from_view(&self.as_view())?;
        Ok(buffer)
    }

    /// Changes the number of values to `len`, and sets new ones to zero. Does not wait. If the memory is long enough
    /// ([`Buffer::capacity`]), the values stay in place; otherwise this copies them to new memory of `allocator`. A buffer that becomes
    /// shorter keeps its memory.
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::uninit`], or the error of the driver. After an error, the buffer is unchanged.
    pub fn resize(&mut self, allocator: &impl Backer, len: usize) -> Result<(), Error>
    where
        T: ValidAsZeroBits,
    {
        let before = self.len;
        if len <= self.capacity() {
            self.len = len;
        } else {
            // SAFETY: all values are written next.
            let mut longer = unsafe { Self::uninit(allocator, len, &self.stream)? };
            longer.slice_mut(..before)?.copy_from_view(&self.as_view())?;
            *self = longer;
        }
        if len > before {
            let cleared = self.slice_mut(before..).and_then(|mut new| new.clear());
            if cleared.is_err() {
                self.len = before;
            }
            cleared?;
        }
        Ok(())
    }

    /// Copies all values to a vector on the host. Waits.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        self.as_view().to_vec()
    }

    /// Copies all values from a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the lengths differ, or the error of the driver.
    pub fn copy_from(&mut self, values: &[T]) -> Result<(), Error> {
        self.as_view_mut().copy_from(values)
    }

    /// Copies all values into a slice of the same length. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the lengths differ, or the error of the driver.
    pub fn copy_to(&self, values: &mut [T]) -> Result<(), Error> {
        self.as_view().copy_to(values)
    }

    /// Returns a view of the whole buffer.
    pub fn as_view(&self) -> View<'_, T> {
        View {
            address: self.address(),
            len: self.len,
            stream: &self.stream,
            backing: self.backing(),
            _values: PhantomData,
        }
    }

    /// Returns a mutable view of the whole buffer.
    pub fn as_view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut(self.as_view())
    }

    /// Returns a view of a part of the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the range exceeds the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<View<'_, T>, Error> {
        self.as_view().slice(range)
    }

    /// Returns a mutable view of a part of the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the range exceeds the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>, Error> {
        Ok(ViewMut(self.as_view().slice(range)?))
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Returns the values in place, once all work on them is done, if the CPU can access them. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Invisible`] if the CPU cannot access them, or the error of the driver.
    pub fn as_slice(&self) -> Result<&[T], Error> {
        let values = ptr::with_exposed_provenance(self.settled_on_host(Touch::HostRead)?);
        // SAFETY: the CPU can read memory of this kind, which holds this many values. The stream, which waits for all other streams in
        // use, has no work left on it, and no writing work can be submitted while the buffer is borrowed.
        Ok(unsafe { slice::from_raw_parts(values, self.len) })
    }

    /// Returns the values in place, mutably, once all work on them is done, if the CPU can access them. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Invisible`] if the CPU cannot access them, or the error of the driver.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], Error> {
        let values = ptr::with_exposed_provenance_mut(self.settled_on_host(Touch::HostWrite)?);
        // SAFETY: as above, and no work at all can be submitted while the buffer is borrowed mutably.
        Ok(unsafe { slice::from_raw_parts_mut(values, self.len) })
    }

    /// Lets the CPU use the values in place during `work`, once all other work on them is done. Waits.
    ///
    /// Works like [`Buffer::as_mut_slice`], and also for memory of [`Managed::in_turns`](super::Managed::in_turns), which no device may
    /// use during `work`: the buffer must be a whole segment there, from an `Arc` of the source.
    ///
    /// # Errors
    ///
    /// [`Error::Invisible`] if the CPU cannot access the values, or the error of the driver. After an error, `work` does not run.
    pub fn on_host<R>(&mut self, work: impl FnOnce(&mut [T]) -> R) -> Result<R, Error> {
        /// Attaches memory to all devices again, even if `work` panics.
        struct Attached<'a>(&'a dyn Backing, &'a Stream);
        impl Drop for Attached<'_> {
            fn drop(&mut self) {
                let (address, bytes) = (self.0.address() as u64, self.0.bytes());
                // SAFETY: as below. A drop cannot report an error: a lost device reports it in the next operation.
                let _ = unsafe { source::attach(address, bytes, false, self.1) };
            }
        }
        if self.kind() != MemoryKind::Device {
            return Ok(work(self.as_mut_slice()?));
        }
        let (stream, backing) = (&self.stream, self.backing());
        let (address, bytes) = (backing.address(), backing.bytes());
        if stream.is_host() || stream.context().kind_of(address)? != MemoryKind::Managed {
            return Err(Error::Invisible);
        }
        stream.synchronize()?;
        // SAFETY: the buffer owns the memory, and no work on it can be submitted while the buffer is borrowed mutably.
        let attached = unsafe { source::attach(address as u64, bytes, true, stream) };
        // The driver can attach only whole segments.
        attached.map_err(|error| {
            if error.kind == SourceErrorKind::Invalid { Error::Invisible } else { error.into() }
        })?;
        let _attached = Attached(backing, stream);
        stream.synchronize()?;
        backing.touched(Touch::HostWrite, self.bytes());
        // SAFETY: the memory is attached to the host until the end of this function, and holds this many values.
        let values =
            unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), self.len) };
        Ok(work(values))
    }

    /// Waits for all work on the values, which the CPU is about to use in place, and returns the address of the first one.
    fn settled_on_host(&self, touch: Touch) -> Result<usize, Error> {
        if self.kind() == MemoryKind::Device {
            return Err(Error::Invisible);
        }
        self.stream.synchronize()?;
        self.backing().touched(touch, self.bytes());
        Ok(self.backing().address())
    }
}

impl<T> Buffer<T> {
    /// Makes a buffer of `len` values in memory that already holds them.
    ///
    /// # Safety
    ///
    /// The memory must hold `len` values, and be aligned for them.
    pub(super) unsafe fn from_memory(memory: Memory, len: usize, stream: &Stream) -> Self {
        Self { memory, len, stream: stream.clone(), _values: PhantomData }
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of values for which the memory has room.
    pub fn capacity(&self) -> usize {
        self.backing().bytes().checked_div(size_of::<T>()).unwrap_or(usize::MAX)
    }

    /// Returns the total length of the values in bytes.
    pub const fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns the device address of the first value. Kernels may take it as an argument in the order of
    /// [`Buffer::stream`], unless the memory is [`MemoryKind::Host`].
    pub fn address(&self) -> u64 {
        self.backing().address() as u64
    }

    /// Returns the kind of memory that contains the buffer.
    pub fn kind(&self) -> MemoryKind {
        self.backing().kind()
    }

    /// Returns the memory.
    pub(super) fn backing(&self) -> &dyn Backing {
        self.memory.get()
    }

    /// Returns the accesses so far; `None` if the buffer is not from a [`MemoryManager`](super::manager::MemoryManager), which counts
    /// them. O(1).
    pub fn usage(&self) -> Option<Usage> {
        self.backing().usage()
    }

    /// Returns the number of the device that holds the memory; `None` for host memory and for memory that host and device share.
    pub fn device(&self) -> Option<usize> {
        self.backing().device()
    }

    /// Returns the pool, for further buffers; `None` if the memory is not just a block of a pool.
    pub fn pool(&self) -> Option<Pool> {
        match &self.memory {
            Memory::Block(block) => Some(Pool::over(block.allocator().clone())),
            Memory::Other(_) => None,
        }
    }

    /// Records a use of the memory on `stream`, so that the memory is freed after that work. The caller must order the two streams.
    pub fn used_on(&self, stream: &Stream) {
        self.backing().used_on(stream);
    }

    /// Returns the stream that orders all work on the buffer.
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes `stream` order the work on the buffer from here on, after all earlier work. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the driver; after an error, the buffer keeps its stream.
    pub fn switch_to(&mut self, stream: &Stream) -> Result<(), Error> {
        if stream.id() != self.stream.id() {
            stream.wait(&self.stream.record()?)?;
            self.used_on(stream);
            self.stream = stream.clone();
        }
        Ok(())
    }
}

debug!([T] Buffer<T>, |self| address: self.address(), len: self.len, kind: self.kind(), capacity: self.capacity(), pool: self.pool());

/// Returns the first value and the number of values of a range within `len`.
fn bounds(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), Error> {
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
        return Err(Error::Length { have: len, asked: end.max(start) });
    }
    Ok((start, end - start))
}
