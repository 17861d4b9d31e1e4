//! Static planning: memory laid out before the program runs.
//!
//! A [`Buffer`] has a size, a lifetime in steps, and constraints; buffers whose lifetimes are apart may share
//! memory. Finding the offsets that need the smallest arena is *dynamic storage allocation*, which is
//! NP-complete (Garey and Johnson, *Computers and Intractability*, 1979, problem SR2).

mod buffer;

pub use buffer::{Buffer, Interval, Relation, relation};
