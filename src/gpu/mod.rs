//! Memory of CUDA devices (feature `gpu`), through the driver interface, which [`cudarc`] loads at run time. A program built with this
//! feature also runs on machines without a device, where calls return an error.
//!
//! ```text
//!  is_available  Device  Context     the driver, its devices, and a device in use
//!  Stream  Event                     queues of work and marks in them, for pools; the host's stream needs no driver
//!  source        DeviceMemory AsyncMemory Virtual   memory of a device
//!                Pinned Registered                  page-locked host memory, for fast asynchronous copies
//!                HostMemory                         ordinary host memory
//!                Managed                            memory that host and device share
//!  Pool                              memory of any of these, shared by all buffers in it
//!  Buffer  View  Transfer            values of one type in such memory, and copies
//!  Spillable                         values that leave the device while others need its memory
//!  Staging                           streams data of any size through a device in chunks; Batch joins small copies
//!  Staging::update_file              the same for a mapped file, in place
//!  sequences                         sequences that grow page by page and share their beginnings
//!  share                             memory shared with other processes and libraries
//!  manager                           one interface to all of these: pools, and a table that selects one
//! ```
//!
//! ```no_run
//! use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
//! use allotment::pool::PoolOptions;
//!
//! let context = Context::new(0)?; // a typed error where there is no driver or no device
//! let stream = Stream::new(&context)?;
//! let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?; // grows without moving
//! let weights: Buffer<f32> = Buffer::zeros(&pool, 1 << 20, &stream)?; // keeps the pool
//! # drop(weights);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The version of CUDA, and other users of cudarc
//!
//! `cudarc` needs a version of CUDA at build time. A program chooses one by depending on `cudarc` itself with a feature such as
//! `cuda-12080`, or by the environment variable `CUDARC_CUDA_VERSION=12080`, which takes precedence; otherwise, cudarc uses the version
//! of the `nvcc` that it finds, or the latest. This module uses only functions that exist in every version since 11.4, so the choice
//! matters only for the program's own calls.
//!
//! The driver loads on first use, unless another crate of the program makes cudarc link it. Both work: a program can depend on candle,
//! which links the driver, and on CubeCL, which loads it.

mod abi;
mod buffer;
mod context;
mod copies;
mod device;
mod error;
mod launch;
mod library;
pub mod manager;
mod relaxed;
pub mod sequences;
pub mod share;
mod source;
mod staging;
mod stream;
mod usage;

pub use buffer::{Buffer, MemoryKind, Pool, Spillable, Transfer, View, ViewMut};
pub use context::Context;
pub use cudarc;
pub use device::Device;
pub use error::Error;
pub use launch::Launch;
pub use library::is_available;
pub use source::{
    Advice, AsyncMemory, DeviceMemory, HostMemory, Managed, Pinned, Registered, Virtual, pinned_bytes,
};
pub use staging::{Batch, Progress, Staging};
pub use stream::{Event, Stream};
