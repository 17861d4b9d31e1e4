//! Static planning: memory laid out before the program runs.
//!
//! A [`Buffer`] has a size, a lifetime in steps, and constraints. Buffers whose lifetimes do not overlap may share memory. Finding the
//! offsets that need the smallest arena is *dynamic storage allocation*, which is NP-complete (Garey and Johnson, *Computers and
//! Intractability*, 1979, problem SR2). [`plan`] computes the best of several greedy plans in a `const`, with a lower bound that limits
//! its distance from the optimum.
//!
//! * [`plan`], [`Plan`]: one arena, planned by the compiler. [`plan_tiers`]: several memories. `OwnedPlan` (`alloc`): buffers known only
//!   at run time.
//! * [`arena!`](crate::arena!), [`Arena`]: memory for a plan, and typed access to the live buffers.
//! * [`Incremental`]: a plan that changes at run time, in fixed memory.
//! * [`Recorder`], [`PlannedHeap`](crate::PlannedHeap): record one iteration, and allocate the next ones from a plan for it.
//! * [`check`], [`load`], [`validate`]: tools for plans made elsewhere.

mod arena;
mod bound;
mod buffer;
mod check;
mod error;
mod greedy;
mod incremental;
mod layout;
mod lowest;
mod message;
mod order;
#[cfg(feature = "alloc")]
mod owned;
mod placed;
mod recorded;
mod search;
mod tiers;

pub use arena::{Arena, ArenaMemory, ArenaRun, Place, Plain, Planned, Slot, Slots, Step, StepAt, Storage};
pub use bound::{Load, load, load_at};
pub use buffer::{Buffer, Interval};
pub use check::{check, validate};
pub use error::PlanError;
pub use greedy::{Fit, RULES, Rule, affordable_rules};
pub use incremental::Incremental;
pub use layout::{Plan, plan, try_plan};
pub use order::Order;
#[cfg(feature = "alloc")]
pub use owned::OwnedPlan;
#[cfg(feature = "std")]
pub(crate) use owned::rules_for;
pub use placed::Placed;
pub(crate) use recorded::Live;
pub use recorded::{RecordedPlan, Recorder, Request};
pub use tiers::{Tier, TieredPlan, plan_tiers, try_plan_tiers};
