//! The chapter on errors names every error that the library can report, and no message that the tool does not have.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).expect("sources are UTF-8");
            found.push((path, text));
        }
    }
}

/// The public error enums of `text` and their variants.
fn variants(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("pub enum ") {
            let name: String = rest.chars().take_while(|letter| letter.is_alphanumeric()).collect();
            current = (name.ends_with("Error") || name == "Violation").then_some(name);
        } else if line.starts_with('}') {
            current = None;
        } else if let (Some(name), Some(rest)) = (&current, line.strip_prefix("    ")) {
            let variant: String = rest.chars().take_while(|letter| letter.is_alphanumeric()).collect();
            if variant.starts_with(char::is_uppercase) {
                found.push((name.clone(), variant));
            }
        }
    }
    found
}

/// Assertions about the library itself: no user's program can fail them.
const INTERNAL: [&str; 4] = [
    "the table ends with the largest class",
    "objects are aligned to 8 bytes",
    "a large block has room for its links",
    "a record has room in place of the guard",
];

/// The messages of assertions in `text`, of the library's own code: they are checked when a program is compiled, or
/// guard what only a wrong argument reaches.
fn assertions(text: &str) -> Vec<String> {
    let tests =
        ["#[cfg(test)]", "#[cfg(any(test, kani))]"].into_iter().filter_map(|mark| text.find(mark)).min();
    let code = &text[..tests.unwrap_or(text.len())];
    let mut found = Vec::new();
    for (at, _) in code.match_indices("assert!(") {
        let (before, part) = code.split_at(at);
        if before.ends_with("debug_") {
            continue;
        }
        let statement = part.split(";\n").next().unwrap_or_default();
        let Some(message) = statement.split('"').nth(1) else { continue };
        // Up to the first value or line break in it.
        let fixed = message.split(['{', '\\']).next().unwrap_or_default().trim();
        if fixed.contains(' ') && !INTERNAL.contains(&fixed) {
            found.push(fixed.to_owned());
        }
    }
    found
}

fn chapter() -> String {
    fs::read_to_string(root().join("docs/src/errors.md")).expect("there is a chapter on errors")
}

#[test]
fn every_error_of_the_library_is_explained() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("event/src"), &mut files);
    let chapter = chapter();
    let mut missing = Vec::new();
    let mut count = 0;
    for (path, text) in &files {
        for (name, variant) in variants(text) {
            count += 1;
            // In a table below a heading that names the enum.
            let is_of_it = |section: &&str| {
                section.lines().next().is_some_and(|heading| heading.contains(&format!("`{name}`")))
            };
            // Two enums may have one name, of CUDA's and of Vulkan's devices.
            let mut sections = chapter.split("\n#").filter(is_of_it);
            if !sections.any(|section| section.contains(&format!("`{variant}`"))) {
                missing.push(format!("{name}::{variant} ({})", path.display()));
            }
        }
    }
    assert!(count > 50, "errors were found: {count}");
    assert!(missing.is_empty(), "docs/src/errors.md does not explain:\n{}", missing.join("\n"));
}

#[test]
fn every_assertion_of_the_library_is_explained() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let chapter = chapter();
    // A stand-in for the system's memory, and what is tried on it, are there in tests only.
    files.retain(|(path, _)| !path.parent().is_some_and(|folder| folder.ends_with("growing/tests")));
    let all: Vec<String> = files.iter().flat_map(|(_, text)| assertions(text)).collect();
    assert!(all.len() > 25, "assertions were found: {}", all.len());
    let missing: Vec<&String> = all.iter().filter(|message| !chapter.contains(message.as_str())).collect();
    assert!(missing.is_empty(), "docs/src/errors.md does not explain:\n{missing:#?}");
}

#[test]
fn messages_of_the_tool_are_its_own() {
    let mut files = Vec::new();
    for folder in ["cli/src", "planner/src", "trace/src"] {
        sources(&root().join(folder), &mut files);
    }
    let text: String = files.iter().map(|(_, text)| joined(text)).collect();
    let chapter = chapter();
    let (_, section) = chapter.split_once("\n## The tool\n").expect("the tool has a section");
    let listed: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("* _")).collect();
    assert!(listed.len() > 10, "messages were found: {}", listed.len());
    // The longest piece between two values.
    let pieces = listed.iter().filter_map(|line| {
        let message = line.split("_:").next()?;
        message.split('…').max_by_key(|piece| piece.len())
    });
    let dead: Vec<&str> = pieces.filter(|piece| !text.contains(piece.trim())).collect();
    assert!(dead.is_empty(), "docs/src/errors.md explains what the tool does not say:\n{dead:#?}");
}

/// `text` without the breaks of its strings' lines.
fn joined(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |whole, part| whole + part.trim_start())
}

#[test]
fn errors_are_found_in_sources() {
    let text = "pub enum CopyError {\n    /// Words.\n    Empty,\n    Length {\n        have: usize,\n    },\n    Call(Other),\n}\npub enum Kind {\n    A,\n}\n";
    let names: Vec<String> = variants(text).into_iter().map(|(_, variant)| variant).collect();
    assert_eq!(names, ["Empty", "Length", "Call"]);
    assert_eq!(joined("say \\\n    it\n"), "say it\n");
    let text = "assert!(N > 0, \"a heap has memory\");\nassert!(a);\ndebug_assert!(a, \"b c\");\nassert!(\n    b,\n    \"more \\\n     words\"\n);\n";
    assert_eq!(assertions(text), ["a heap has memory"]);
}
