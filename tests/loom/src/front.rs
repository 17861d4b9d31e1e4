//! The lists of free blocks of the library.

#[path = "../../../src/front/small/mod.rs"]
pub mod small;
