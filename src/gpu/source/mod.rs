//! Sources of segments, one file for each kind of memory.

/// Defines the items of an `impl Source` that are the same for every segment.
macro_rules! describe {
    (|$this:ident| $name:expr, cpu_visible: $visible:expr, $capabilities:expr, granularity: $granularity:expr, alignment: $alignment:expr $(, copies: $direction:ident)? $(, of: $context:expr)?) => {
        type Stream = $crate::gpu::Stream;
        const CPU_VISIBLE: bool = $visible;

        fn name(&$this) -> &str {
            $name
        }

        fn capabilities(&$this) -> $crate::region::Capabilities {
            $capabilities
        }

        fn granularity(&$this) -> usize {
            $granularity
        }

        fn alignment(&$this) -> usize {
            $alignment
        }

        $(unsafe fn copy(
            &$this,
            from: usize,
            to: usize,
            bytes: usize,
            stream: &$crate::gpu::Stream,
        ) -> Result<(), $crate::pool::SourceError> {
            // SAFETY: the caller guarantees both ranges.
            unsafe { $crate::gpu::source::copy($crate::pool::Direction::$direction, from, to, bytes, stream) }
        }

        unsafe fn fill(
            &$this,
            address: usize,
            bytes: usize,
            value: u8,
            stream: &$crate::gpu::Stream,
        ) -> Result<(), $crate::pool::SourceError> {
            // SAFETY: the caller guarantees the range.
            unsafe { $crate::gpu::source::fill(address, bytes, value, stream) }
        }

        unsafe fn read(
            &$this,
            address: usize,
            into: &mut [u8],
            stream: &$crate::gpu::Stream,
        ) -> Result<(), $crate::pool::SourceError> {
            // SAFETY: the caller guarantees the range.
            unsafe { $crate::gpu::source::read(address, into, stream) }
        })?

        $(fn device(&$this) -> Option<usize> {
            Some($context.device().ordinal)
        }

        fn accepts(&$this, stream: &$crate::gpu::Stream) -> bool {
            stream.context().raw() == $context.raw()
        })?
    };
}

mod async_memory;
mod device_memory;
mod host_memory;
mod managed;
mod pinned;
mod registered;
mod virtual_memory;

pub use async_memory::AsyncMemory;
pub use device_memory::DeviceMemory;
pub use host_memory::HostMemory;
pub use managed::{Advice, Managed};
pub(super) use managed::{advise, attach, prefetch};
pub use pinned::{Pinned, pinned_bytes};
pub use registered::Registered;
pub use virtual_memory::Virtual;
pub(super) use virtual_memory::granularity;

use super::{Error, Stream, library::call};
use crate::pool::{Direction, Segment, SourceError, SourceErrorKind, Stream as _};
use core::num::NonZeroUsize;
use cudarc::driver::sys::CUdeviceptr;

/// The size of a device's large pages in bytes.
const PAGE: usize = 2 << 20;

/// Alignment in bytes of all segments. The driver guarantees only 256, but aligns allocations above a page to
/// pages, and [`segment`] checks the result.
const ALIGNMENT: usize = 512;

/// Makes a segment, or fails if the driver returned an unaligned address.
fn segment(call: &'static str, address: u64, bytes: usize) -> Result<Segment, SourceError> {
    let broken = SourceError::new(SourceErrorKind::Other, call);
    let address = usize::try_from(address).ok().filter(|address| address % ALIGNMENT == 0);
    let address = address.and_then(NonZeroUsize::new).ok_or(broken)?;
    Ok(Segment { address, bytes, zeroed: false })
}

/// Refuses page-locked memory whose device address differs from its host address. For registered and write-combined memory, the driver
/// does not guarantee a common address.
fn check_one_address(pointer: *mut u8) -> Result<(), Error> {
    let mut address = 0;
    // SAFETY: the output has the type that the function writes, the memory is page-locked, and 0 is the only flag.
    unsafe { call!(cuMemHostGetDevicePointer_v2(&mut address, pointer.cast(), 0))? };
    if address == pointer.addr() as CUdeviceptr {
        Ok(())
    } else {
        Err(Error::Unsupported("page-locked memory with one address for host and device"))
    }
}

/// Refuses sizes that are not a multiple of the granularity.
fn check_size(call: &'static str, bytes: usize, granularity: usize) -> Result<(), SourceError> {
    if bytes == 0 || bytes % granularity != 0 {
        return Err(SourceError::new(SourceErrorKind::Invalid, call));
    }
    Ok(())
}

/// Copies bytes for [`Source::copy`](crate::pool::Source::copy) of every source: one address space holds the memory
/// of all of them.
///
/// # Safety
///
/// The contract of `Source::copy`: both ranges lie in segments, do not overlap, and nothing else uses them at that point of the stream.
pub(super) unsafe fn copy(
    direction: Direction,
    from: usize,
    to: usize,
    bytes: usize,
    stream: &Stream,
) -> Result<(), SourceError> {
    let _bound = stream.context().enter_relaxed()?;
    // SAFETY: the caller guarantees both ranges; the stream is alive.
    unsafe { call!(cuMemcpyAsync(to as CUdeviceptr, from as CUdeviceptr, bytes, stream.raw()))? };
    stream.context().count_moved(direction, bytes);
    Ok(())
}

/// Fills bytes for [`Source::fill`](crate::pool::Source::fill) of every source.
///
/// # Safety
///
/// The contract of `Source::fill`.
unsafe fn fill(address: usize, bytes: usize, value: u8, stream: &Stream) -> Result<(), SourceError> {
    let _bound = stream.context().enter_relaxed()?;
    // SAFETY: the caller guarantees the range; the stream is alive.
    unsafe { call!(cuMemsetD8Async(address as CUdeviceptr, value, bytes, stream.raw())) }
}

/// Reads bytes for [`Source::read`](crate::pool::Source::read) of every source.
///
/// # Safety
///
/// The contract of `Source::read`.
unsafe fn read(address: usize, into: &mut [u8], stream: &Stream) -> Result<(), SourceError> {
    let _bound = stream.context().enter_relaxed()?;
    let (to, from) = (into.as_mut_ptr().cast(), address as CUdeviceptr);
    // SAFETY: the caller guarantees the range, and we wait for the copy even after an error.
    let copied = unsafe { call!(cuMemcpyDtoHAsync_v2(to, from, into.len(), stream.raw())) };
    stream.synchronize().and(copied)
}
