//! Code shared by the benchmarks' programs: result files, medians, RMM's workload, misuses, and the report of the GPU
//! figures, which is also part of RESULTS.md; and the programs that are linked once per allocator.

pub mod gpu;
pub mod machine;
pub mod misuse;
#[cfg(feature = "programs")]
#[path = "../programs/mod.rs"]
pub mod programs;
pub mod results;
pub mod rmm;
pub mod statistics;
