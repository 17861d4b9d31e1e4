//! What the benchmarks of the host and of the GPU share: result files, medians, RMM's workload, and the report of the
//! GPU's figures, which is also part of RESULTS.md.

pub mod gpu;
pub mod machine;
pub mod results;
pub mod rmm;
pub mod statistics;
