//! Writing plans: data, source code, drawings.

mod arenas;
mod code;
mod data;
mod drawing;

pub use arenas::{Sections, c_arenas, rust_arenas};
pub use code::{c_header, rust_source};
pub use data::{csv, json};
pub use drawing::{html, svg};

use crate::graph::Graph;
use crate::model::{Buffer, Instance};
use crate::solve::Solution;
use crate::transform::Inside;

/// The input of the writers.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// A name for titles and constants.
    pub name: &'a str,
    /// The instance.
    pub instance: &'a Instance,
    /// Its plan.
    pub solution: &'a Solution,
    /// The tensors that lie in a buffer of another name; they are listed after the buffers.
    pub inside: &'a [Inside],
    /// The operators whose order the time steps count: JSON lists them.
    pub graph: Option<&'a Graph>,
}

impl<'a> Planned<'a> {
    /// Takes a plan of buffers, which belong to no graph.
    pub fn new(name: &'a str, instance: &'a Instance, solution: &'a Solution) -> Self {
        Self { name, instance, solution, inside: &[], graph: None }
    }

    /// The buffers in order, then the tensors that lie in them.
    fn rows(self) -> impl Iterator<Item = Row<'a>> + Clone {
        let buffers = self.instance.buffers();
        let row = move |n: usize, inside: Option<&'a Inside>| {
            let (buffer, offset) = (&buffers[n], self.solution.offsets[n]);
            match inside {
                Some(Inside { name, at, size, start, end, .. }) => Row {
                    id: name,
                    offset: offset + at,
                    size: *size,
                    start: *start,
                    end: *end,
                    buffer,
                    inside: true,
                },
                None => {
                    let Buffer { id, size, start, end, .. } = buffer;
                    Row { id, offset, size: *size, start: *start, end: *end, buffer, inside: false }
                }
            }
        };
        let own = (0..buffers.len()).map(move |n| row(n, None));
        own.chain(self.inside.iter().map(move |inside| row(inside.buffer, Some(inside))))
    }
}

/// A buffer or a tensor in one, with its place.
#[derive(Clone, Copy)]
struct Row<'a> {
    id: &'a str,
    offset: u64,
    size: u64,
    start: i64,
    end: i64,
    /// The buffer, which may be larger and live longer than a tensor in it.
    buffer: &'a Buffer,
    /// True if it is a tensor that lies in a buffer of another name.
    inside: bool,
}
