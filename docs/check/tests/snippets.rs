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

/// Every other placement costs a chip more flash, so what these pages show or advise is one of the two heaps that are small.
#[test]
fn pages_for_chips_name_their_heaps() {
    for page in ["first-heap", "low-memory", "performance", "porting", "zones"] {
        let text = read(&format!("docs/src/{page}.md"));
        for line in text.lines().filter(|line| line.contains("static ")) {
            let other =
                ["Tlsf", "FirstFit", "BestFit", "Slab", "Buddy>"].iter().find(|name| line.contains(**name));
            assert!(other.is_none(), "{page}: {line}");
        }
    }
    let choosing = read("docs/src/choosing.md");
    let default = choosing.lines().find(|line| line.starts_with("| placement | `Tiered`")).unwrap();
    assert!(default.contains("| `MicroTlsf`"), "{default}");
    assert!(choosing.contains("\n`Heap` and `TinyHeap`. Every other placement costs more flash."));
    assert!(read("docs/src/porting.md").contains("| flash before and after |"));
    assert!(
        read("README.md")
            .lines()
            .any(|line| line.starts_with("embedded-alloc") && line.matches('|').count() == 3)
    );
}

/// Until the crate is published, what brings it needs the path of a clone: README's lines have it, and the first chapter says it once.
#[test]
fn the_clone_is_named() {
    let readme = read("README.md");
    assert!(readme.contains("not published yet") && readme.contains("\ncargo add --path ../allotment\n"));
    assert!(!readme.contains("cargo add allotment"));
    let first = read("docs/src/first-heap.md");
    let (before, _) = first.split_once("\n```sh\ncargo add allotment\n").unwrap();
    assert!(before.contains("not published yet") && before.contains("`cargo add --path ../allotment`"));
}
