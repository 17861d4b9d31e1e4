//! Who asked for memory: what each stack, tag and size of a trace costs.
//!
//! `gather` reads a trace, `costs` counts, `parts` counts in detail and over time, `stacks` names the functions of a stack and says which of them holds the memory.

mod costs;
mod gather;
mod parts;
mod stacks;

pub use costs::{Costs, Measure, Weights};
pub use gather::{Counting, Mark, Profile};
pub use parts::{Moments, Part, Parts};
pub use stacks::{Holder, Label, holders, labels};
