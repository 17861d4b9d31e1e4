//! `allotment view`: the figures of a report, and the page in a browser.

mod browser;
mod command;
mod figures;
mod firmware;
mod page;
