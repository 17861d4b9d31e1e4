//! The records of a trace.

/// An event of a block. Sizes and alignments are in bytes, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Action {
    /// A block was allocated.
    Allocate {
        /// The block's id while it is live: its address, or a number ([`Header::addresses`](crate::Header::addresses)).
        id: u64,
        /// Requested size in bytes.
        size: u64,
        /// Requested alignment: a power of two, or 0 if it is unknown.
        align: u64,
    },
    /// A live block was resized.
    Reallocate {
        /// The old id.
        id: u64,
        /// The new id, which differs only if ids are addresses and the block has moved.
        to: u64,
        /// The new requested size in bytes.
        size: u64,
    },
    /// A block was freed.
    Free {
        /// The block's id, which may be used again.
        id: u64,
    },
    /// A request for a block, or for a larger size, failed.
    Fail {
        /// Requested size in bytes.
        size: u64,
        /// Requested alignment: a power of two, or 0 if it is unknown.
        align: u64,
    },
}

/// An event in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Event {
    /// The kind of event and its data.
    pub action: Action,
    /// The time of the event, in the recording program's unit.
    pub time: Option<u64>,
    /// The number of the tag in whose scope it happened, 0 for none; [`Record::Name`] gives its name.
    pub tag: u32,
}

impl Event {
    /// Creates an event without time and tag.
    pub const fn new(action: Action) -> Self {
        Self { action, time: None, tag: 0 }
    }
}

/// A record of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Record<'a> {
    /// An event.
    Event(Event),
    /// Events that happened here but were not recorded.
    Lost {
        /// The number of these events.
        events: u64,
    },
    /// The name of a tag, which comes before the first event with that tag.
    Name {
        /// The tag's number, not 0.
        tag: u32,
        /// The tag's name.
        name: &'a str,
    },
    /// Text on the previous event, such as an allocation's backtrace with one frame per line.
    Note {
        /// The text.
        text: &'a str,
    },
}

impl From<Event> for Record<'_> {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

impl From<Action> for Record<'_> {
    fn from(action: Action) -> Self {
        Self::Event(Event::new(action))
    }
}
