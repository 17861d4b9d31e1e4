//! Misuse by a program that a real driver may or may not notice.

/// A kind of misuse. The numbers are part of the control interface.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory was freed that was never allocated.
    FreeUnknown = 0,
    /// Memory was freed twice.
    FreeTwice = 1,
    /// Memory beyond the end of an allocation, or outside all allocations, was accessed.
    OutOfBounds = 2,
    /// A stream, event or other object was used after its destruction.
    Destroyed = 3,
    /// A handle was used that was never an object of this kind.
    UnknownHandle = 4,
    /// Work ran on memory that was freed (and possibly allocated again) after the work was submitted.
    UseAfterFree = 5,
    /// Work ran on stream-ordered memory before the stream reached its allocation.
    UseBeforeAllocation = 6,
    /// Mapped memory was accessed without access rights, or nothing was mapped.
    NoAccess = 7,
    /// Reserved addresses were freed while memory was mapped there.
    StillMapped = 8,
    /// A context was destroyed with objects or memory in it.
    LeftInContext = 9,
    /// The driver was called where that is forbidden: during a capture, or in a host function.
    Forbidden = 10,
    /// Memory was freed while work on it was pending. The real driver finishes the work first, but does not
    /// guarantee that.
    FreedInUse = 11,
}

/// All misuse since the last reset.
#[derive(Default)]
pub struct Misuse {
    list: Vec<(Kind, String)>,
}

impl Misuse {
    pub fn note(&mut self, kind: Kind, text: String) {
        self.list.push((kind, text));
    }

    /// How often this kind occurred; `u32::MAX` counts all kinds.
    pub fn count(&self, kind: u32) -> u64 {
        self.list.iter().filter(|(other, _)| kind == u32::MAX || *other as u32 == kind).count() as u64
    }

    /// One line for each occurrence.
    pub fn text(&self) -> String {
        self.list.iter().map(|(kind, text)| format!("{kind:?}: {text}\n")).collect()
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }
}
