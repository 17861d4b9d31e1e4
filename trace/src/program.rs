//! Compiles traces into compact lists of operations for fast replay.

use std::alloc::Layout;

use crate::error::{Problem, TraceError};
use crate::event::{Action, Block};
use crate::reader::{Checked, Reader};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Allocates `size` bytes.
    Allocate,
    /// Changes a block of `size` bytes to `new` bytes.
    Reallocate,
    /// Frees a block of `size` bytes.
    Free,
}

/// An operation in 24 bytes, with everything that the allocator needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Op {
    /// The kind of operation.
    pub kind: Kind,
    /// The binary logarithm of the alignment.
    align: u8,
    /// The slot that holds the block.
    pub slot: u32,
    /// The block's bytes before the operation (after it, for an allocation), and its bytes after a reallocation. Both form valid layouts
    /// with the alignment.
    size: usize,
    new: usize,
}

impl Op {
    /// Creates an operation on the block in `slot`; `None` unless sizes and alignment form valid layouts and the slot is below 4 Gi.
    pub fn new(kind: Kind, slot: usize, size: usize, align: usize, new: usize) -> Option<Self> {
        let valid = |size| Layout::from_size_align(size, align).is_ok();
        let slot = u32::try_from(slot).ok().filter(|_| valid(size) && valid(new))?;
        Some(Self { kind, align: align.ilog2() as u8, slot, size, new })
    }

    /// Returns the block's bytes before the operation (after it, for an allocation).
    #[inline(always)]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the bytes that a reallocation requests.
    #[inline(always)]
    pub fn resized(&self) -> usize {
        self.new
    }

    /// Returns the layout of the block before the operation (after it, for an allocation).
    #[inline(always)]
    pub fn layout(&self) -> Layout {
        // SAFETY: `new` has made sure of a valid layout, and nothing changes it.
        unsafe { Layout::from_size_align_unchecked(self.size, 1 << self.align) }
    }

    /// Returns the block's bytes after the operation; 0 after a free.
    pub fn after(&self) -> usize {
        match self.kind {
            Kind::Allocate => self.size,
            Kind::Reallocate => self.new,
            Kind::Free => 0,
        }
    }
}

/// A trace, ready for replay.
///
/// Slots are reused, so that a table of blocks stays in the cache like a program's variables. A size of zero, for which `malloc` returns
/// a block, becomes one byte; an unknown alignment becomes 8.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// All operations in order.
    pub ops: Vec<Op>,
    /// Number of slots that the operations need.
    pub slots: usize,
    /// Peak of the live requested bytes.
    pub peak: usize,
}

impl Program {
    /// Reads and compiles a whole trace.
    ///
    /// # Errors
    /// Those of the reader; an event whose figures do not fit an [`Op`].
    pub fn compile(mut trace: Reader<'_>) -> Result<Self, TraceError> {
        Self::compile_from(&mut trace)
    }

    /// Compiles the rest of a trace.
    ///
    /// # Errors
    /// Those of [`Program::compile`].
    pub fn compile_from(trace: &mut Reader<'_>) -> Result<Self, TraceError> {
        let mut builder = ProgramBuilder::default();
        for event in trace {
            builder.push(&event?)?;
        }
        Ok(builder.finish())
    }
}

/// Largest number of operations of a program: 6 GiB of them.
const MOST: usize = 1 << 28;

/// Compiles events one by one.
#[derive(Debug, Default)]
pub struct ProgramBuilder {
    program: Program,
    bytes: usize,
}

impl ProgramBuilder {
    /// Adds an event.
    ///
    /// # Errors
    /// If its figures do not fit an [`Op`].
    pub fn push(&mut self, checked: &Checked) -> Result<(), TraceError> {
        let Checked { event, place, slot, before, .. } = checked;
        let (size, align) = match event.action {
            Action::Allocate { size, align } => (size, align),
            _ => before.map_or((0, 0), |Block { size, align }| (size, align)),
        };
        // A number that does not fit a word does not fit an operation either.
        let word = |number: u64| usize::try_from(number.max(1)).unwrap_or(usize::MAX);
        let (kind, new) = match event.action {
            Action::Allocate { .. } => (Kind::Allocate, 0),
            Action::Reallocate { size } => (Kind::Reallocate, word(size)),
            Action::Free => (Kind::Free, 0),
        };
        self.program.slots = self.program.slots.max(slot + 1);
        // Requests for zero bytes add nothing to the peak.
        let after = match event.action {
            Action::Allocate { size, .. } | Action::Reallocate { size } => size as usize,
            Action::Free => 0,
        };
        let released = if kind == Kind::Allocate { 0 } else { size as usize };
        let align = if align == 0 { 8 } else { word(align) };
        let size = word(size);
        if self.program.ops.len() == MOST {
            return Err(Problem::Many(MOST).at(*place));
        }
        let op = Op::new(kind, *slot, size, align, new)
            .ok_or_else(|| Problem::Size { size: size.max(new) as u64, align: align as u64 }.at(*place))?;
        self.bytes = self.bytes - released + after;
        self.program.peak = self.program.peak.max(self.bytes);
        self.program.ops.push(op);
        Ok(())
    }

    /// Returns the compiled trace.
    pub fn finish(self) -> Program {
        self.program
    }
}
