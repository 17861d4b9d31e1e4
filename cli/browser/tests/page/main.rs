//! The page of `allotment view` in a browser.

mod browser;
#[path = "../../../tests/view/firmware.rs"]
mod firmware;
mod page;
