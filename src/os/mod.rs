//! What the operating system adds (feature `std`).

#[cfg(feature = "pressure")]
pub mod pressure;
