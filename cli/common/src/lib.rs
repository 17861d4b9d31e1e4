//! What the host tool `allotment` and the project's own automation share: the list of boards, and plain text tables.
//!
//! It is a crate of its own so that the automation does not have to compile the whole tool first.

pub mod boards;
pub mod table;
