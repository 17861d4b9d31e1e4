//! Writing plans: data, source code, drawings.

mod arenas;
mod code;
mod data;
mod drawing;

pub use arenas::{Sections, c_arenas, rust_arenas};
pub use code::{c_header, rust_source};
pub use data::{csv, json};
pub use drawing::{html, svg};

/// The input of the writers.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// A name for titles and constants.
    pub name: &'a str,
    /// The instance.
    pub instance: &'a crate::model::Instance,
    /// Its plan.
    pub solution: &'a crate::solve::Solution,
}
