//! What the host tool `allotment` and the project's own automation share: the list of boards, plain text tables, and pages of tables.
//!
//! It is a crate of its own so that the automation does not have to compile the whole tool first.

pub mod boards;
pub mod page;
pub mod table;
