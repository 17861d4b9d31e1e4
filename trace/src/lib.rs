//! Allocation traces: what a program asked its allocator for, in order.
//!
//! A trace is text, one event a line; `.zst` and `.gz` are read as they are:
//!
//! ```text
//! # name=example events=4
//! a 0 100 8            block 0 of 100 bytes is allocated, aligned to 8 (0: the program did not say)
//! a 1 24 0 @1200 #net  at time 1200, under the tag `net`, which reaches to the end of the line
//! r 0 200              block 0 gets 200 bytes
//! f 1                  block 1 is freed; its id may be used again
//! ```
//!
//! Lines that start with `#` are comments. The first comment may hold `key=value` pairs: `events` is the number of
//! events, by which a file that was cut off is noticed; `tail` the number of the event from which on the recorder
//! itself freed what the program had left. The unit of times is the recorder's; they never fall.
//!
//! [`Reader`] checks every event as it streams by, in memory bounded by [`Limits`], and says with each one what
//! the block was before. [`Program`] is a whole trace compiled for replay. [`Writer`] writes the text.
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
mod error;
mod event;
mod program;
mod reader;
mod text;
mod writer;

pub use compress::decompressed;
pub use error::{Place, Problem, TraceError};
pub use event::{Action, Block, Event};
pub use program::{Kind, Op, Program, ProgramBuilder};
pub use reader::{Checked, Header, Limits, Reader, open};
pub use writer::Writer;
