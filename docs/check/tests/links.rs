//! Every link in every document of the project leads to a file that exists and to a heading that it has.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders without documents of ours.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "corpus"];

/// Schemes that this test does not follow.
const ELSEWHERE: [&str; 3] = ["https://", "http://", "mailto:"];

fn root() -> PathBuf {
    tidy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// `path` without `.` and `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                tidied.pop();
            }
            other => tidied.push(other),
        }
    }
    tidied
}

fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            documents(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

/// What a document links to, and the names that can be linked to in it.
#[derive(Default)]
struct Document {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

fn read(text: &str) -> Document {
    let mut document = Document::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                document.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                // A second heading of the same words gets a number.
                let mut unique = anchor.clone();
                let mut number = 0;
                while !document.anchors.insert(unique.clone()) {
                    number += 1;
                    unique = format!("{anchor}-{number}");
                }
            }
            Event::InlineHtml(html) | Event::Html(html) => {
                for name in html.split("id=\"").skip(1) {
                    document.anchors.extend(name.split('"').next().map(str::to_owned));
                }
            }
            _ => {}
        }
    }
    document
}

/// The name that GitHub and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let lower = heading.trim().to_lowercase();
    lower.chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// What is wrong with `link` in the document at `path`, if anything.
fn fault(path: &Path, link: &str, all: &BTreeMap<PathBuf, Document>) -> Option<String> {
    if ELSEWHERE.iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = if file.is_empty() {
        path.to_path_buf()
    } else {
        tidy(&path.parent().unwrap_or(Path::new("")).join(file))
    };
    if !target.exists() {
        return Some("leads to no file".into());
    }
    let anchor = anchor?;
    match all.get(&target) {
        Some(document) if !document.anchors.contains(anchor) => {
            Some(format!("`{anchor}` is no heading there"))
        }
        _ => None,
    }
}

#[test]
fn links_lead_somewhere() {
    let root = root();
    let mut paths = Vec::new();
    documents(&root, &mut paths);
    let text = |path: &PathBuf| fs::read_to_string(path).expect("documents are UTF-8");
    let all: BTreeMap<PathBuf, Document> =
        paths.into_iter().map(|path| (path.clone(), read(&text(&path)))).collect();
    assert!(all.len() > 20, "documents were found: {}", all.len());

    let mut faults = Vec::new();
    let mut followed = 0;
    for (path, document) in &all {
        for link in &document.links {
            followed += 1;
            if let Some(fault) = fault(path, link, &all) {
                let path = path.strip_prefix(&root).unwrap_or(path).display();
                faults.push(format!("{path}: `{link}` {fault}"));
            }
        }
    }
    assert!(followed > 100, "links were followed: {followed}");
    assert!(faults.is_empty(), "dead links:\n{}", faults.join("\n"));
}

#[test]
fn all_chapters_are_listed() {
    let book = root().join("docs/src");
    let summary = read(&fs::read_to_string(book.join("SUMMARY.md")).expect("there is a summary"));
    let listed: BTreeSet<&str> = summary.links.iter().map(String::as_str).collect();
    for entry in fs::read_dir(&book).expect("the book can be read") {
        let name = entry.expect("the entry can be read").file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(listed.contains(name.as_str()), "docs/src/SUMMARY.md does not list {name}");
        }
    }
}

#[test]
fn anchors_are_those_of_the_renderers() {
    assert_eq!(anchor("What the program does, and where"), "what-the-program-does-and-where");
    assert_eq!(anchor("`Heap::used` & co."), "heapused--co");
    let document = read("# One\n\n## Two `three`\n\n## One\n\n[a](b.md#c) ![d](e.svg)\n");
    assert_eq!(document.anchors, ["one", "one-1", "two-three"].map(str::to_owned).into());
    assert_eq!(document.links, ["b.md#c", "e.svg"]);
}

#[test]
fn dead_links_are_noticed() {
    let path = root().join("docs/src/SUMMARY.md");
    let all = BTreeMap::from([(path.clone(), read("# There\n"))]);
    assert_eq!(fault(&path, "nowhere.md", &all).as_deref(), Some("leads to no file"));
    assert_eq!(fault(&path, "#here", &all).as_deref(), Some("`here` is no heading there"));
    assert_eq!(fault(&path, "#there", &all), None);
    assert_eq!(fault(&path, "https://example.org", &all), None);
}

/// The text of all sources and scripts below `folder`.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            sources(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "py") {
            text.push_str(&fs::read_to_string(&path).expect("sources are UTF-8"));
        }
    }
}

/// The lines of `page` whose last word in parentheses is neither a test in `sources` nor a command in `commands`.
fn unshown<'a>(page: &'a str, sources: &str, commands: &str) -> Vec<&'a str> {
    let lines = page.lines().filter(|line| line.starts_with("* "));
    let shown = |line: &&str| {
        let Some(name) = line.strip_suffix("`)").and_then(|line| line.rsplit_once(" (`")) else {
            return false;
        };
        match name.1.strip_prefix("cargo xtask ") {
            // A command is a variant, written in one word.
            Some(command) => {
                let variant = command.replace('-', "").to_lowercase();
                commands.to_lowercase().lines().any(|line| {
                    let line = line.trim().trim_end_matches(['{', ',', ' ']);
                    line == variant || line.split('(').next() == Some(&variant)
                })
            }
            None => ["fn ", "def "].iter().any(|word| sources.contains(&format!("{word}{}(", name.1))),
        }
    };
    lines.filter(|line| !shown(line)).collect()
}

/// The names with underscores in the tables of `page` that are nowhere in `sources`.
fn unknown<'a>(page: &'a str, sources: &str) -> Vec<&'a str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let is_name = |text: &&str| {
        text.contains('_') && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    };
    quoted.filter(is_name).filter(|name| !sources.contains(name)).collect()
}

#[test]
fn features_are_shown_by_tests_that_exist() {
    let root = root();
    let page = fs::read_to_string(root.join("features.md")).expect("the file is UTF-8");
    let commands = fs::read_to_string(root.join("xtask/src/main.rs")).expect("the file is UTF-8");
    let mut text = String::new();
    for folder in [
        "benches",
        "capi",
        "cli",
        "docs/check",
        "event",
        "fuzz",
        "metrics",
        "planner",
        "src",
        "stand-in",
        "tests",
    ] {
        sources(&root.join(folder), &mut text);
    }
    assert!(page.lines().filter(|line| line.starts_with("* ")).count() > 100, "capabilities are listed");
    let missing = unshown(&page, &text, &commands);
    assert!(missing.is_empty(), "features.md names tests or commands that do not exist: {missing:#?}");
    let safety = fs::read_to_string(root.join("SAFETY.md")).expect("the file is UTF-8");
    let unknown = unknown(&safety, &text);
    assert!(unknown.is_empty(), "SAFETY.md's tables name tests that do not exist: {unknown:?}");
}

#[test]
fn a_feature_without_its_test_is_named() {
    let page =
        "* One (`a`)\n* Two (`b`)\n* Three\n* Four (`cargo xtask run-all`)\n* Five (`cargo xtask fly`)\n";
    let missing = unshown(page, "fn a() {}", "    RunAll {\n    Walk,\n");
    assert_eq!(missing, ["* Two (`b`)", "* Three", "* Five (`cargo xtask fly`)"]);
}

#[test]
fn features_name_the_boards() {
    let text = fs::read_to_string(root().join("features.md")).expect("the file is UTF-8");
    let boards = fs::read_to_string(root().join("cli/common/boards.toml")).expect("the file is UTF-8");
    let names = boards.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let (_, table) = text.split_once("## Boards").expect("features.md has a table of boards");
    let cells = table.lines().filter_map(|row| row.strip_prefix("| ")?.split(" |").next());
    let shown: BTreeSet<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert_eq!(shown, names.collect(), "features.md's boards are not those that there are");
}
