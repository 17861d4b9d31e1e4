//! What the programs for emulated boards share.
#![no_std]

#[cfg(all(target_os = "none", target_arch = "arm", feature = "interrupts"))]
pub mod interrupts;
#[forbid(unsafe_code)]
pub mod network;
#[cfg(all(target_os = "none", feature = "sampled"))]
pub mod sampled;
#[cfg(all(target_os = "none", target_arch = "arm"))]
mod stack;
#[cfg(target_os = "none")]
pub mod support;

#[cfg(target_os = "none")]
pub use support::finish;
