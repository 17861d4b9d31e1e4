//! planner
#![allow(missing_docs)]
pub mod bounds;
pub mod exact;
pub mod explain;
pub mod generate;
pub mod graph;
pub mod greedy;
pub mod import;
pub mod model;
pub mod read;
pub mod sections;
pub mod solve;
pub mod transform;
pub mod validate;
pub mod write;
