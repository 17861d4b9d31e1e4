//! Recorded plans: an iteration is observed, and the next ones are served from a plan for it.
//!
//! Programs that do the same again and again, like training or control loops, make the same requests in each
//! iteration. After one of them all sizes and lifetimes are known. ONNX Runtime calls this a *memory pattern*.

#[cfg(any(feature = "allocator-api2", feature = "nightly"))]
mod allocator;
mod heap;
mod live;
mod recorder;

pub use heap::{IterationReport, PlannedHeap, ReplanError};
pub use recorder::{RecordedPlan, Recorder, Request};
