//! A simulated device: memory and streams without a GPU, for developing and testing pools anywhere (feature `std`).
//!
//! ```
//! use allotment::pool::{Source, Stream as _};
//! use allotment::sim::DeviceMemory;
//!
//! let device: DeviceMemory = DeviceMemory::new(64 << 20);
//! let stream = device.stream();
//! let segment = device.reserve(2 << 20, &stream)?;
//! let kernel = stream.launch(1, segment.address.get(), 4096); // a kernel that uses 4 KiB
//! let event = stream.record()?;
//! assert!(!device.is_done(kernel)); // work runs only when a test or a blocking call runs it
//! stream.step();
//! assert!(device.is_done(kernel));
//! device.fail("simReserve", 1); // the next one
//! assert!(device.reserve(2 << 20, &stream).unwrap_err().is_out_of_memory());
//! # Ok::<(), allotment::pool::SourceError>(())
//! ```

mod device;
mod memory;
mod stream;

pub use device::{CALLS, Hazard};
pub use memory::{DeviceMemory, HostMemory};
pub use stream::{Event, Stream};
