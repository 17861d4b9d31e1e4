//! The heap that grows, as the global allocator of this program, so that the test harness itself uses it too.
#![cfg(any(unix, windows))]

#[cfg(target_os = "linux")]
#[path = "../again/mod.rs"]
mod again;
mod blocks;
#[cfg(target_os = "linux")]
mod fork;
#[cfg(target_os = "linux")]
#[path = "../forked/mod.rs"]
mod forked;
mod fronts;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod nodes;
mod own;
#[path = "../panics/mod.rs"]
mod panics;
#[cfg(target_os = "linux")]
mod shared;
mod threads;

use allotment::os::Growing;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static HEAP: Growing = Growing::new();

/// Lets one test run at a time: some look at the memory of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
