//! Pressure and recovery: what a heap does when memory runs out (feature `pressure`).
//!
//! [`PressureHeap`] is a [`Heap`](crate::Heap) with
//!
//! * **watermarks** ([`Watermarks`]): a state, [`Pressure`], with hysteresis and a hook on each
//!   transition; while it is not [`Pressure::Normal`] the placement saves memory
//!   ([`Placement::set_saving`](crate::placement::Placement::set_saving));
//! * **reclaim hooks** ([`Reclaim`]): they are asked in order of priority to give memory back when a
//!   request finds no room, which is then tried again;
//! * **headroom**: memory that only requests marked as critical may use, in a scope
//!   ([`PressureHeap::critical_section_of_memory`]) or through a handle ([`Critical`]), so that the path
//!   that handles the error can allocate;
//! * a hook on requests that have failed for good, which sees the typed error.
//!
//! The way of a request that finds no room:
//!
//! ```text
//!  no room ──> headroom, if critical ──> reclaim hook 0 ──> try again ──> hook 1 ──> ... ──> on_out_of_memory
//! ```
//!
//! No hook runs inside the heap's lock, and none runs twice at a time, so every hook may use the heap: to
//! free, and to allocate. A heap of the plain type pays for none of this.

mod front;
mod headroom;
mod monitor;
mod reclaim;
mod watermarks;

pub use front::{Critical, PressureHeap};
pub use headroom::HeadroomStats;
pub use monitor::{Monitor, OnOutOfMemory, OnTransition, Transition};
pub use reclaim::{Hook, HookId, Reclaim, Shortage, TooManyHooks};
#[cfg(feature = "std")]
pub(crate) use reclaim::{Key, Registry};
pub use watermarks::{Amount, Pressure, Watermarks};
