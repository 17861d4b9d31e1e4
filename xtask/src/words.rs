//! The style check of `cargo xtask lint`: refuses phrases that make comments and documents hard to read.

use crate::layers::sources;
use anyhow::Result;

/// The refused phrases, one a line. They are whole words and match as written; a phrase in lower case also matches at
/// the start of a sentence.
const PHRASES: &str = include_str!("words.txt");

/// Words that the trade does not use, and those that it does, one pair a line.
const TERMS: &str = include_str!("terms.txt");
/// How many comments of Rust files still have such a word: lower it when there are fewer.
const TERMS_LEFT: usize = 4;

/// Checks all Rust and Markdown files that git tracks. Prints each refused line and returns how many there are.
///
/// # Errors
///
/// If git does not list the files, or one of them cannot be read.
pub fn lint() -> Result<usize> {
    let (mut findings, mut terms) = (0, Vec::new());
    for name in sources::tracked(&["*.rs", "*.md"])? {
        let text = sources::text(&name)?;
        for (line, reason) in check(&text) {
            println!("{name}:{line}: {reason}");
            findings += 1;
        }
        if name.ends_with(".rs") {
            terms.extend(foreign(&text).into_iter().map(|(line, pair)| format!("{name}:{line}: {pair}")));
        }
    }
    println!("foreign words: {} comments (at most {TERMS_LEFT})", terms.len());
    if terms.len() > TERMS_LEFT {
        terms.iter().for_each(|term| println!("{term}"));
        findings += terms.len() - TERMS_LEFT;
    }
    Ok(findings)
}

/// Returns the number of each comment line, from 1, that has a word of [`TERMS`], and the pair. O(lines * words).
fn foreign(text: &str) -> Vec<(usize, &'static str)> {
    let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
    let pair = |line: &str| {
        let known = |pair: &&str| pair.split(':').next().is_some_and(|word| has_phrase(line, word));
        TERMS.lines().find(known)
    };
    comments.filter_map(|(index, line)| Some((index + 1, pair(line)?))).collect()
}

/// Returns the number of each refused line of a file, from 1, and the reason. O(lines * phrases).
fn check(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if let Some(phrase) = PHRASES.lines().find(|phrase| has_phrase(line, phrase)) {
            findings.push((index + 1, format!("write this without `{phrase}`")));
        }
        let before = index.checked_sub(1).and_then(|index| lines.get(index));
        if doc_text(line).is_some_and(is_reference) && !is_prose(before) && !is_prose(lines.get(index + 1)) {
            findings.push((index + 1, "say what holds instead of only naming another item".into()));
        }
    }
    findings
}

/// Returns whether `line` has `phrase` as whole words.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_word =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    let at_ends = |(start, found): (usize, &str)| {
        !is_word(line[..start].chars().next_back()) && !is_word(line[start + found.len()..].chars().next())
    };
    // With a space behind it: identifiers may begin with the same letters.
    let capital = phrase[..1].to_uppercase() + &phrase[1..] + " ";
    let begins = |start: usize| !is_word(line[..start].chars().next_back());
    line.match_indices(phrase).any(at_ends) || line.match_indices(&capital).any(|(start, _)| begins(start))
}

/// Returns the text of a line of a doc comment.
fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

/// Returns whether a line is text of a doc comment, neither a blank line of one nor a heading.
fn is_prose(line: Option<&&str>) -> bool {
    line.and_then(|line| doc_text(line)).is_some_and(|text| !text.is_empty() && !text.starts_with('#'))
}

/// Returns whether a text only names an item to look up.
fn is_reference(text: &str) -> bool {
    let Some(item) = text.strip_prefix("As [`").or_else(|| text.strip_prefix("See [`")) else {
        return false;
    };
    let item = item.trim_end_matches('.');
    (item.ends_with("`]") || item.ends_with(')') && item.contains("`](")) && !item.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn every_phrase_is_refused_as_whole_words() {
        assert!(PHRASES.lines().count() > 5);
        for phrase in PHRASES.lines() {
            assert_eq!(lines(&format!("fn f() {{}}\n// A block, {phrase}, is free.\n")), [2], "{phrase}");
            assert_eq!(lines(&format!("// {phrase}")), [1], "{phrase}");
            assert_eq!(lines(&format!("let x{phrase}x = 1;\nlet x_{phrase} = 2;")), [0; 0], "{phrase}");
        }
        let first = PHRASES.lines().next().unwrap_or_default();
        let capital = first[..1].to_uppercase() + &first[1..];
        assert_eq!(lines(&format!("// {capital} has it.\nOwner::{capital}.free()")), [1]);
    }

    #[test]
    fn foreign_words_are_found_in_comments_alone() {
        let text =
            "/// A wrong free.\nlet text = \"wrong free\";\n    // Handed out twice.\n// wrong freedom\n";
        let found: Vec<usize> = foreign(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, [1, 3]);
        assert!(TERMS.lines().all(|pair| pair.split_once(": ").is_some()));
    }

    #[test]
    fn references_alone_are_refused() {
        for word in ["As", "See"] {
            assert_eq!(lines(&format!("/// {word} [`Heap::free`].\nfn f() {{}}")), [1]);
            assert_eq!(lines(&format!("//! {word} [`Heap`](crate::Heap)")), [1]);
            assert_eq!(lines(&format!("/// # Errors\n///\n    /// {word} [`Heap`].\n///\n/// More.")), [3]);
            // These say more.
            assert_eq!(lines(&format!("/// Frees a block.\n/// {word} [`Heap`].")), [0; 0]);
            assert_eq!(lines(&format!("/// {word} [`Heap`], which never moves.")), [0; 0]);
            assert_eq!(lines(&format!("// {word} [`Heap`].")), [0; 0]);
        }
    }
}
