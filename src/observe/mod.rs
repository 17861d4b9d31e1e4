//! Observers: what a heap can tell about itself. None costs anything when it is not chosen.

pub mod event;
mod stats;

pub use stats::{Counters, NoStatistics, Statistics, Stats};
