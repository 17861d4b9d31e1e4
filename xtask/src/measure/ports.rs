//! The flash that one program takes with another crate's heap and with ours, beside what porting.md says of it.

use std::fs;
use std::process::ExitCode;

use allotment_common::table;
use anyhow::{Context, Result};

use crate::size::Size;
use crate::{Setup, firmware, toolchain};

const TARGET: &str = "thumbv7em-none-eabihf";

/// How far a number of the page may be from the one that was measured.
const SLACK: f64 = 0.05;

/// A row of the page: how it begins, and the features of `boards/measure` before and after the move.
const PORTS: [(&str, &str, &str); 6] = [
    ("`LlffHeap::empty()` (", "llff", "heap"),
    ("`TlsfHeap::empty()` (", "embedded-alloc", "heap"),
    ("`LockedHeap::empty()` (", "linked-list", "heap"),
    ("`LockedHeap::<32>::empty()` (", "buddy-system", "heap"),
    ("`TalcLock::new(source)` (", "talc", "heap"),
    ("the same, where each byte of flash counts", "linked-list", "tiny"),
];

/// Builds both programs of each row and compares them with the page.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    let toolchain = toolchain::find(&[TARGET], setup)?;
    let page = fs::read_to_string(firmware::root().join("docs/src/porting.md"))?;
    let flash = |feature: &str| -> Result<u64> {
        let features = format!("ported,{feature}");
        Ok(Size::of(&super::program(&toolchain, TARGET, "release", "ported", &features)?)?.flash())
    };
    let (mut rows, mut wrong) = (Vec::new(), false);
    for (row, before, after) in PORTS {
        let stated = stated(&page, row)?;
        let measured = [flash(before)?, flash(after)?];
        let differs =
            |(stated, measured): (u64, u64)| stated.abs_diff(measured) as f64 > measured as f64 * SLACK;
        let right = !stated.into_iter().zip(measured).any(differs);
        wrong |= !right;
        let [from, to] = measured.map(|bytes| bytes.to_string());
        let result = if right { "as the page says".into() } else { format!("the page says {stated:?}") };
        rows.push([format!("{before} to {after}"), from, to, result]);
    }
    println!("{}", table::render(["port", "flash before B", "after B", "result"], rows, &[1, 2]));
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The two numbers in the row of the page that begins with `row`, as in `| 2,920 to 3,972 B |`.
fn stated(page: &str, row: &str) -> Result<[u64; 2]> {
    let found = || {
        let line = page.lines().find(|line| line.trim_start_matches("| ").starts_with(row))?;
        let (before, after) =
            line.split(" | ").find_map(|cell| cell.strip_suffix(" B")?.split_once(" to "))?;
        Some([before.replace(',', "").parse().ok()?, after.replace(',', "").parse().ok()?])
    };
    found().with_context(|| format!("porting.md has no row `{row}` with the flash before and after"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found() {
        let page = "| x | y |\n| `A` (b) | `C` | 2,920 to 3,972 B | text |\n";
        assert_eq!(stated(page, "`A` (").unwrap(), [2920, 3972]);
        assert!(stated(page, "x").is_err());
        assert!(stated(page, "`B`").is_err());
    }
}
