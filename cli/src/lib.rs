//! What the host tool `allotment` and the project's own automation share.

pub mod boards;
pub mod plan;
pub mod table;
pub mod view;
