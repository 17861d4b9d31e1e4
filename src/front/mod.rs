//! Fronts: each wraps a [`Memory`](crate::Memory), adds one feature, and is itself a [`Memory`](crate::Memory).

mod bounded;
#[cfg(all(any(target_arch = "arm", target_arch = "riscv32"), target_os = "none"))]
mod calls;
pub mod cores;
pub mod inject;
mod kept;
pub mod observed;
pub mod planned;
pub mod pressure;
#[cfg(all(feature = "backtrace", unix))]
mod profile;
pub mod sampled;
pub mod seal;
pub(crate) mod small;
mod timed;
pub mod zones;

pub use bounded::Bounded;
pub use cores::PerCore;
pub use kept::Kept;
pub use observed::Observed;
pub use planned::PlannedHeap;
#[cfg(all(feature = "backtrace", unix))]
pub use profile::HeapProfile;
pub use sampled::Sampled;
pub use seal::Sealable;
pub use timed::Timed;
