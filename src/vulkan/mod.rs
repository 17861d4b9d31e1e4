//! Memory of Vulkan devices (feature `vulkan`), through [`ash`], which loads Vulkan at run time. A program built with this
//! feature also runs on machines without Vulkan, and gets an error there.
//!
//! ```text
//!  Device                  a device of Vulkan: its own, or one that the program has made
//!  Wish                    which of its memory types a pool lies in
//!  Stream  Event           submissions in order: each waits for the one before it, by a timeline semaphore
//!  DeviceMemory  Place     the source of a pool, and where Vulkan has a block of it
//!  Resource                a buffer or an image in a pool, or in memory of its own where the driver prefers that
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
//! A queue of Vulkan starts its submissions in order but does not finish one before the next. A [`Stream`] does: each
//! submission waits for the one before it, with all memory accesses, so that memory which was freed on a stream can be used
//! again at once. Streams of one queue are independent of each other, and [`Stream::wait`](crate::pool::Stream::wait) orders
//! them. A pool needs no driver call to mark a point of a stream, because that is the number of its last submission.

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
