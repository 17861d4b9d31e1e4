//! Code shared by the benchmarks' programs: result files, medians, RMM's workload, misuses, and the report of the GPU
//! figures, which is also part of RESULTS.md.

pub mod gpu;
pub mod machine;
pub mod misuse;
pub mod results;
pub mod rmm;
pub mod statistics;
