//! The compact binary form of devices, see [`allotment::observe::event`].

mod read;
mod write;

pub(crate) use read::Decoded;
pub use write::{BinaryError, write_binary};
