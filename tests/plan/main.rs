//! Static planning: every plan is checked by a validator that shares nothing with the planners.

mod constant;
mod incremental;
mod models;
mod oracle;
mod random;
