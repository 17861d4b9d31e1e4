//! Instances: the buffers to place, and the check of a plan for them.

mod buffer;
mod check;
mod instance;

pub(crate) use buffer::meetings;
pub use buffer::{Buffer, Gap, Piece};
pub use check::Violation;
pub(crate) use check::check;
pub use instance::{Instance, InstanceError};
