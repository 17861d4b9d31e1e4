//! `allotment view`: the figures of a report. The page itself is tried in `cli/browser`.

mod command;
mod figures;
mod firmware;
