//! The code of the host tool `allotment`, which the project's own automation uses too.

pub mod advise;
pub mod attach;
pub mod budget;
pub mod convert;
pub mod diff;
pub mod endure;
pub mod failure;
mod import;
mod input;
mod messages;
mod output;
pub mod plan;
mod profile;
mod progress;
#[cfg(target_os = "linux")]
pub mod record;
pub mod replay;
mod symbols;
mod template;
#[cfg(target_os = "linux")]
pub mod top;
mod units;
pub mod view;
pub mod who;

pub use allotment_common::{boards, table};
