//! The locks of the library.

#[path = "../../../src/lock/mod.rs"]
mod library;

pub use library::{Default, Futex, Lock};
