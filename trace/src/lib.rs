//! Allocation traces: a program's requests to its allocator, in order.
//!
//! A trace is text with one event per line, or the binary format of [`allotment_event`]. Both may be compressed, as `.zst` and `.gz`:
//!
//! ```text
//! # name=example events=4
//! a 0 100 8            block 0 of 100 bytes is allocated, aligned to 8 (0: the program did not say)
//! a 1 24 0 @1200 #net  at time 1200, under the tag `net`
//! r 0 200              block 0 gets 200 bytes
//! f 1                  block 1 is freed; its id may be used again
//! ```
//!
//! An event may be followed, in any order, by ` @<time>`, ` #<tag>` (one word; white space, control characters, `%` and characters that
//! are not ASCII are escaped as `%` and two hexadecimal digits per byte) and ` &<address>` (hexadecimal). Lines that start with `#` are
//! comments. Three kinds have a meaning: `# failed <size> <align>` is a request that was refused, `# lost <events>` counts events that
//! were not recorded, and `# | <text>` is a note on the event before. The first comment may hold `key=value` pairs: `events` is the
//! number of events, by which a file that was cut off is detected; `tail` is the number of the event from which on the recorder itself
//! freed the blocks that the program had left (with `tail_bytes`, `tail` is the number of these events). With `sample`, the trace has
//! only one block for so many bytes on average ([`Sampling`]). The unit of times is the recorder's; times never decrease. Comments that
//! begin with `#^` name the functions that requested a block: [`Stacks`].
//!
//! [`Reader`] checks every event as it streams by, in memory bounded by [`Limits`], and returns each with the block's previous state.
//! [`Records`] reads a trace without these checks, for conversions. [`Program`] is a whole trace compiled for replay. [`Writer`] writes
//! the text format, [`write_binary`] the binary format.
//!
//! ```
//! use allotment_trace::{Action, Reader};
//!
//! let mut trace = Reader::new("a 7 100 8\nr 7 200\nf 7\nf 7\n".as_bytes())?;
//! let resized = trace.nth(1).unwrap()?;
//! assert_eq!((resized.event.action, resized.before.unwrap().size), (Action::Reallocate { size: 200 }, 100));
//! assert_eq!(trace.nth(1).unwrap().unwrap_err().to_string(), "line 4: block 7 is freed, but not live");
//! # Ok::<(), allotment_trace::TraceError>(())
//! ```

mod compress;
mod decode;
mod encode;
mod error;
mod event;
mod program;
mod reader;
mod records;
mod slots;
mod stacks;
mod tags;
mod text;
mod writer;

pub use compress::decompressed;
pub use encode::{BinaryError, BinaryWriter, binary_header, write_binary};
pub use error::{Place, Problem, TraceError};
pub use event::{Action, Block, Event, Failure, Record};
pub use program::{Kind, Op, Program, ProgramBuilder};
pub use reader::{Checked, Reader, open};
pub use records::{Header, Limits, Records, Sampling};
pub use slots::Slots;
pub use stacks::{Frame, Module, Node, Stacks};
pub use writer::Writer;
