//! What the host tool `allotment` and the project's own automation share.

pub mod boards;
pub mod failure;
pub mod plan;
mod progress;
pub mod replay;
pub mod table;
mod units;
