//! Firmware in the documents is the text of a board's program, which CI links.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_first_firmware_is_that_of_the_board() {
    let program = read("boards/first-program/src/main.rs");
    let program = program.lines().filter(|line| !line.starts_with("//!")).collect::<Vec<_>>().join("\n");
    for document in ["README.md", "docs/src/first-heap.md"] {
        let text = read(document);
        let shown = text.split("```rs\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        assert!(
            shown.into_iter().any(|shown| shown == program.trim_end()),
            "{document} shows another program"
        );
    }
}

#[test]
fn the_crates_that_are_named_are_those_of_the_board() {
    let manifest = read("boards/first-program/Cargo.toml");
    for package in ["allotment", "cortex-m", "cortex-m-rt", "panic-halt"] {
        assert!(
            manifest.contains(&format!("\n{package}.workspace"))
                || manifest.contains(&format!("\n{package} ="))
        );
        let readme = read("README.md");
        let lines: Vec<&str> = readme.lines().filter(|line| line.starts_with("cargo add")).collect();
        assert!(
            lines
                .iter()
                .any(|line| line.split_whitespace().any(|word| word.trim_start_matches("../") == package)),
            "{package}"
        );
    }
    let workspace = read("boards/Cargo.toml");
    assert!(workspace.contains("\"critical-section-single-core\""));
}
