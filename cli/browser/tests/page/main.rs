//! The pages of `allotment view` and `allotment plan --bench` in a browser.

mod browser;
#[path = "../../../tests/view/firmware.rs"]
mod firmware;
mod instances;
mod page;
