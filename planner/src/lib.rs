//! The host planner: turns buffers with sizes and lifetimes into offsets in the smallest arena, with a proof or an optimality gap.
//!
//! An instance passes through the modules in one direction: [`read`] or [`import`] → [`model`] (after [`transform`], for graphs) →
//! [`bounds`] → [`greedy`] → [`exact`] → [`validate`] → [`mod@write`] and [`explain`]; [`solve`] drives it.
//!
//! ```
//! use allotment_planner::model::{Buffer, Instance};
//! use allotment_planner::solve::{Options, Status, solve};
//!
//! let buffers = vec![Buffer::new("a", 8, 0, 3), Buffer::new("b", 4, 2, 5), Buffer::new("c", 8, 3, 6)];
//! let plan = solve(&Instance::new(buffers)?, &Options::default(), None);
//! assert_eq!((plan.peak, plan.status), (12, Status::Optimal));
//! # Ok::<(), allotment_planner::model::InstanceError>(())
//! ```
//!
//! Time steps are half-open ranges of 64-bit integers, offsets and sizes are bytes.

#![deny(unsafe_code)]

pub mod bounds;
pub mod boxes;
pub mod deadline;
pub mod exact;
pub mod explain;
pub mod family;
pub mod graph;
pub mod greedy;
pub mod import;
pub mod instances;
pub mod model;
pub mod read;
pub mod reuse;
pub mod schedule;
pub mod sections;
pub mod solve;
pub mod transform;
pub mod validate;
pub mod write;

/// Lets tests shared by several crates refer to this crate by name.
#[cfg(test)]
extern crate self as allotment_planner;
#[cfg(test)]
#[path = "../tests/common/generate.rs"]
mod generate;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
