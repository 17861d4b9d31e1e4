//! The compact binary form of devices, see [`allotment_event`].

mod read;
mod write;

pub(crate) use read::Decoded;
pub use write::{BinaryError, write_binary};
