//! The check of `cargo xtask lint` for code that stands in two places of the library.
//!
//! Two places share code if six lines that follow one another are the same in both. White space is folded, and what says nothing is
//! passed over: blank lines, comments, imports, and lines without a letter or a digit. A signature counts as one line, however many it
//! takes, because all implementations of a trait share those of its methods.

use crate::layers::sources;
use anyhow::Result;
use std::collections::{BTreeMap, HashMap};

/// So many lines in a row that two places share make a pair.
const LINES: usize = 6;
/// The most pairs of files that share code, or of places within a file. It goes down only.
const PAIRS: usize = 1;

/// A place: the file's number, and the number of the first line among those of the file that count.
type Place = (usize, usize);

/// Prints each pair of files in `src` with places that share code, and returns how many pairs there are too many.
///
/// # Errors
///
/// If a file cannot be read.
pub fn lint() -> Result<usize> {
    let files = sources::sources("src")?;
    let pairs = pairs(&files);
    println!("code in two places: {} pairs (at most {PAIRS})", pairs.len());
    if pairs.len() <= PAIRS {
        return Ok(0);
    }
    for pair in &pairs {
        println!("{pair}");
    }
    Ok(pairs.len() - PAIRS)
}

/// Returns a line for each two files, or each file with itself, that have places which share code.
fn pairs(files: &[(String, String)]) -> Vec<String> {
    let lines: Vec<Vec<(usize, String)>> = files.iter().map(|(_, text)| lines(text)).collect();
    let mut places: HashMap<Vec<&str>, Vec<Place>> = HashMap::new();
    for (file, lines) in lines.iter().enumerate() {
        for (at, window) in lines.windows(LINES).enumerate() {
            places.entry(window.iter().map(|(_, line)| &**line).collect()).or_default().push((file, at));
        }
    }
    // The first places of each pair of files.
    let mut found: BTreeMap<(usize, usize), (Place, Place)> = BTreeMap::new();
    for places in places.values() {
        for (number, &first) in places.iter().enumerate() {
            for &second in &places[number + 1..] {
                // Lines that repeat themselves overlap themselves.
                if first.0 != second.0 || first.1 + LINES <= second.1 {
                    let known = found.entry((first.0, second.0)).or_insert((first, second));
                    *known = (*known).min((first, second));
                }
            }
        }
    }
    let name = |(file, at): Place| format!("{}:{}", files[file].0, lines[file][at].0);
    let line = |&(first, second): &(Place, Place)| {
        format!("{}: {LINES} lines or more stand at {} too", name(first), name(second))
    };
    found.values().map(line).collect()
}

/// Returns the lines of a file that count, with their numbers from 1.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let (mut imports, mut signature) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if signature {
            signature = !line.ends_with(['{', ';']);
            continue;
        }
        signature = line.contains("fn ") && line.ends_with('(') && !line.starts_with("//");
        imports |= line.starts_with("use ") || line.starts_with("pub use ");
        if !imports && !line.starts_with("//") && line.contains(char::is_alphanumeric) {
            lines.push((number + 1, line.clone()));
        }
        imports &= !line.ends_with(';');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs_of(texts: &[&str]) -> Vec<String> {
        let file = |(number, text): (usize, &&str)| (format!("{number}.rs"), (*text).to_owned());
        pairs(&texts.iter().enumerate().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn lines_in_two_places_are_found() {
        let six = "a();\nb();\nc();\nd();\ne();\nf();\n";
        // Neither the indentation nor what says nothing makes a difference.
        let other = "fn x() {\n  a();\n  b();\n\n  // text\n  c();\n  {\n  d();\n  e();\n}\n  f();\n}";
        assert_eq!(pairs_of(&[six, other]), ["0.rs:1: 6 lines or more stand at 1.rs:2 too"]);
        assert_eq!(
            pairs_of(&[&format!("{six}g();\n{six}")]),
            ["0.rs:1: 6 lines or more stand at 0.rs:8 too"]
        );
        // More places of the same two files are the same pair; a third file makes three.
        assert_eq!(pairs_of(&[&format!("{six}g();\n{six}"), other]).len(), 2);
        assert_eq!(pairs_of(&[six, other, six]).len(), 3);
    }

    #[test]
    fn what_differs_is_no_pair() {
        let six = "a();\nb();\nc();\nd();\ne();\nf();\n";
        assert_eq!(pairs_of(&[six, "a();\nb();\nc();\nd();\ne();\ng();\n"]), [""; 0]);
        assert_eq!(pairs_of(&["a();\nb();\nc();\nd();\ne();", "a();\nb();\nc();\nd();\ne();"]), [""; 0]);
        // A line over and over.
        assert_eq!(pairs_of(&["a();\n".repeat(11).as_str()]), [""; 0]);
        let imports = "use a::{\n    b,\n    c,\n    d,\n    e,\n    f,\n};\npub use g;\n";
        assert_eq!(pairs_of(&[imports, imports]), [""; 0]);
    }

    #[test]
    fn the_library_says_things_once() {
        assert_eq!(lint().unwrap(), 0);
    }
}
