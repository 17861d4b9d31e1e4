//! The command itself.

use std::path::Path;
use std::process::{Command, Output};

fn view(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_allotment")).arg("view").args(args).output().unwrap()
}

/// A page, and what it draws as JSON with the suggestions that were tried on the run.
#[test]
fn it_writes_a_page_and_json() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/espeak.trace.zst");
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command.html");
    let page = page.to_str().unwrap();
    let output = view(&[trace, "-o", page, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["totals"]["events"], 2283);
    let suggestions = report["suggestions"].as_array().unwrap();
    let kinds: Vec<&str> = suggestions.iter().map(|each| each["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"leak") && kinds.contains(&"pool") && !kinds.contains(&"churn"), "{kinds:?}");
    let saved: Vec<u64> = suggestions.iter().map(|each| each["saves"].as_u64().unwrap()).collect();
    assert!(saved.is_sorted_by(|a, b| a >= b), "{saved:?}");
    assert!(std::fs::read_to_string(page).unwrap().contains("espeak.trace.zst"));
    // A part of the trace, in an arena that is too small for it.
    let output = view(&[trace, "--json", "--events", "1000", "--arena", "8K", "--placement", "first-fit"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let totals = &report["totals"];
    assert_eq!(
        (&totals["events"], &totals["arena"], &report["placement"]),
        (&1000.into(), &8192.into(), &"FirstFit".into())
    );
    assert!(totals["failed"].as_u64() > Some(0));
}

#[test]
fn bad_input_is_named_with_its_line() {
    let bad = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad.trace");
    std::fs::write(&bad, "a 1 8 8\n\nf 2\n").unwrap();
    let bad = bad.to_str().unwrap();
    let output = view(&[bad, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, format!("allotment: {bad}: line 3: block 2 is freed, but not live\n"));
    assert_eq!(view(&[bad]).status.code(), Some(1));
}
