//! Memory of Vulkan devices (feature `vulkan`), through [`ash`], which loads Vulkan at run time. A program built with this feature also
//! runs on machines without Vulkan, where calls return an error.
//!
//! ```text
//!  Device                  a Vulkan device, made by the library or by the program
//!  Wish                    the choice of a pool's memory type
//!  Stream  Event           ordered submissions: each waits for the previous one, by a timeline semaphore
//!  DeviceMemory  Place     the source of a pool, and the Vulkan place of a block
//!  Resource                a buffer or an image in a pool, or in dedicated memory if the driver prefers that
//! ```
//!
//! ```no_run
//! use allotment::pool::{DevicePool, PoolOptions};
//! use allotment::vulkan::{Device, DeviceMemory, Resource, Stream, Wish, ash::vk};
//! use std::sync::Arc;
//!
//! let device = Device::new(0)?; // a typed error where there is no Vulkan or no device
//! let stream = Stream::new(&device)?;
//! let pool = Arc::new(DevicePool::new(DeviceMemory::new(&device, Wish::device())?, PoolOptions::new())?);
//! let buffer = Resource::buffer(&pool, 1 << 20, vk::BufferUsageFlags::TRANSFER_DST, &stream)?;
//! // SAFETY: the buffer is live, and its usage allows this.
//! unsafe { stream.run(|device, commands| device.cmd_fill_buffer(commands, buffer.raw(), 0, 1 << 20, 7))? };
//! drop(buffer); // at once: the memory is reused after the fill, and the handle is destroyed after it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Order
//!
//! A Vulkan queue starts its submissions in order but may overlap them. In a [`Stream`], each submission waits for the previous one,
//! including all memory accesses, so that memory freed on a stream is reusable there at once. Streams of one queue are independent of
//! each other, and [`Stream::wait`](crate::pool::Stream::wait) orders them. A pool needs no driver call to mark a point of a stream: the
//! point is the number of the last submission.

mod device;
mod error;
mod graves;
mod inner;
mod memory;
mod resource;
#[cfg(unix)]
mod share;
mod stream;
mod timeline;
mod wish;

pub use ash;
pub use device::Device;
pub use error::Error;
pub use memory::{DeviceMemory, Place};
pub use resource::Resource;
pub use stream::{Event, Stream};
pub use wish::Wish;
