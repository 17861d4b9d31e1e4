//! Memory pressure and recovery: what a heap does when memory runs out.
//!
//! [`PressureHeap`] is a [`Heap`](crate::Heap) with
//!
//! * **watermarks** ([`Watermarks`]): a state, [`Pressure`], with hysteresis and a hook that is called on each
//!   transition; unless the state is [`Pressure::Normal`], the placement saves memory
//!   ([`Placement::set_saving`](crate::placement::Placement::set_saving));
//! * **reclaim hooks** ([`Reclaim`]): if a request finds no room, they run in order of priority to free memory, and the request is tried
//!   again;
//! * **headroom**: memory reserved for requests in a scope ([`PressureHeap::with_headroom`]), so that error handlers can still allocate;
//! * a hook that gets the typed error of every request that has finally failed.
//!
//! A request that finds no room goes through these steps:
//!
//! ```text
//!  no room ──> headroom, in its scope ──> reclaim hook 0 ──> try again ──> hook 1 ──> ... ──> on_out_of_memory
//! ```
//!
//! Hooks never run inside the heap's lock, and no hook runs twice at a time, so every hook may use the heap, both to free and to
//! allocate. A panic in a hook ends the program. A plain [`Heap`](crate::Heap) has none of these costs.

mod front;
mod headroom;
mod monitor;
mod purgeable;
mod reclaim;
mod request;
mod watermarks;

pub use front::PressureHeap;
pub use monitor::{Monitor, Transition};
pub use purgeable::{Codec, InUse, Purgeable};
#[cfg(feature = "std")]
pub(crate) use reclaim::{Hook, Key, Registry};
pub use reclaim::{Reclaim, Shortage};
pub use watermarks::{Amount, Pressure, Watermarks};
