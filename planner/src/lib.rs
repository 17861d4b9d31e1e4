//! planner
#![allow(missing_docs)]
pub mod exact;
pub mod generate;
pub mod model;
pub mod sections;
pub mod validate;
