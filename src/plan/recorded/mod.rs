//! Recorded plans: one iteration is recorded, and the next ones are served from a plan for it.
//!
//! Repetitive programs, such as training or control loops, make the same requests in every iteration. After one
//! iteration all sizes and lifetimes are known. ONNX Runtime calls this a *memory pattern*.

#![forbid(unsafe_code)]

mod live;
mod recorder;

pub(crate) use live::Live;
pub use recorder::{RecordedPlan, Recorder, Request};
