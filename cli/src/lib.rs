//! The code of the host tool `allotment`, also used by the project's automation.

#![deny(clippy::print_stderr)]

/// Prints a line on the standard error, with what a terminal could obey escaped. A failure to write it, such as a full disk, neither ends this tool nor changes its exit status.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        _ = ::std::io::Write::write_all(&mut ::std::io::stderr(), ($crate::text::plain(&format!($($text)*)).into_owned() + "\n").as_bytes())
    };
}

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
mod signals;
mod symbols;
mod template;
pub mod text;
#[cfg(target_os = "linux")]
pub mod top;
mod units;
pub mod view;
pub mod who;

pub use allotment_common::{boards, table};
