//! Fronts: each wraps a [`Memory`](crate::Memory), adds one thing, and is a [`Memory`](crate::Memory) again.

mod bounded;
pub mod inject;
mod kept;
pub mod observed;
pub mod planned;
pub mod pressure;
mod timed;
pub mod zones;

pub use bounded::Bounded;
pub use kept::Kept;
pub use observed::Observed;
pub use planned::PlannedHeap;
pub use timed::Timed;
