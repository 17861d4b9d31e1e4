//! What a program does wrong, as a real driver may or may not notice.

/// A kind of misuse. The numbers are part of the control interface.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that is not, and was not, allocated was freed.
    FreeUnknown = 0,
    /// Memory was freed again.
    FreeTwice = 1,
    /// An access beyond the end of an allocation, or to no allocation at all.
    OutOfBounds = 2,
    /// A stream, event or other object was used after its destruction.
    Destroyed = 3,
    /// Something was used that never was an object of this kind.
    UnknownHandle = 4,
    /// Work ran on memory that was freed, or freed and allocated anew, since it was submitted.
    UseAfterFree = 5,
    /// Work ran on stream-ordered memory before the stream reached its allocation.
    UseBeforeAllocation = 6,
    /// Mapped memory was accessed without access having been set, or where nothing is mapped.
    NoAccess = 7,
    /// A reservation was freed while memory was mapped in it.
    StillMapped = 8,
    /// A context went with objects or memory in it.
    LeftInContext = 9,
    /// The driver was called while it is forbidden: in a capture, or in a function of the host.
    Forbidden = 10,
    /// Memory was freed while work on it waited. The real driver lets it end first, without promising that.
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

    /// How often; kind `u32::MAX` counts all.
    pub fn count(&self, kind: u32) -> u64 {
        self.list.iter().filter(|(other, _)| kind == u32::MAX || *other as u32 == kind).count() as u64
    }

    /// One line for each.
    pub fn text(&self) -> String {
        self.list.iter().map(|(kind, text)| format!("{kind:?}: {text}\n")).collect()
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }
}
