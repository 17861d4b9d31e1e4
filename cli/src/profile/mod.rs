//! Who asked for memory: what each stack, tag and size of a trace costs.
//!
//! `gather` reads a trace, `costs` counts, `stacks` names the functions of a stack and says which of them holds the memory.

mod costs;
mod gather;
mod stacks;

pub use costs::{Costs, Measure, Weights};
pub use gather::{Counting, Mark, Profile};
pub use stacks::{Holder, Label, holders, labels};
