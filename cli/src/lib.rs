//! What the host tool `allotment` and the project's own automation share.

pub mod advise;
pub mod attach;
pub mod boards;
pub mod convert;
pub mod failure;
mod output;
pub mod plan;
mod progress;
#[cfg(target_os = "linux")]
pub mod record;
pub mod replay;
pub mod table;
mod units;
pub mod view;
