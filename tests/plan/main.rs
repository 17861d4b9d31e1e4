//! Static planning: every plan is checked by a validator that shares nothing with the planners.

mod constant;
mod incremental;
mod models;
mod oracle;
mod random;
mod recorded;
mod tiers;
#[allow(dead_code, reason = "each test crate uses its part")]
#[path = "../core/shadow/trace.rs"]
mod trace;
