//! Code shared by the benchmarks of host and GPU: result files, medians, RMM's workload, and the report of the GPU
//! figures, which is also part of RESULTS.md.

pub mod gpu;
pub mod machine;
pub mod results;
pub mod rmm;
pub mod statistics;
