//! The locks of the library.

#[path = "../../../src/lock/mod.rs"]
mod library;

pub use library::{Futex, Lock};
