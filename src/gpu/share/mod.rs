//! Memory shared with other processes and libraries.
//!
//! ```text
//!  Buffer::export  bytes that name a range of a device's memory, to send in any way
//!  DlTensor        a DLPack tensor, for exchange with other libraries
//!  SharedMemory    virtual memory as file descriptors, to send through a socket; not on Windows
//! ```

#[cfg(unix)]
mod descriptor;
mod ipc;

pub use super::buffer::DlTensor;
#[cfg(unix)]
pub use descriptor::SharedMemory;

use super::error::Error;

/// Returns the number of values of `T` in `bytes` bytes at `offset` of memory that is aligned to 256 bytes.
fn values<T>(bytes: usize, offset: usize) -> Result<usize, Error> {
    let (size, align) = (size_of::<T>(), align_of::<T>());
    if size == 0 || bytes == 0 || bytes % size != 0 || offset % align != 0 || align > 256 {
        return Err(Error::Values { bytes, offset });
    }
    Ok(bytes / size)
}

/// Refuses a range that exceeds the shared memory.
fn within(offset: usize, bytes: usize, shared: usize) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= shared => Ok(()),
        end => Err(Error::Range { end: end.unwrap_or(usize::MAX), shared }),
    }
}
