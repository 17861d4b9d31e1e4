//! Text with regular expressions and hash maps: an index of words, sequences of words, replacements.

use std::collections::{BTreeMap, HashMap};

use regex::Regex;

/// Runs it; how many words there are, and how much text was made of them.
pub fn run(percent: usize) -> u64 {
    let texts = [super::texts("src", "rs", percent), super::texts("tests", "rs", percent)].concat();
    let word = Regex::new(r"[A-Za-z][A-Za-z0-9_]*").expect("it is well formed");
    let number = Regex::new(r"\b(\d+)[.,]?(\d*)\b").expect("it is well formed");
    let mut index: HashMap<String, Vec<(usize, usize)>> = HashMap::new();
    let mut pairs: HashMap<(String, String), u32> = HashMap::new();
    let mut made = 0;
    for (place, text) in texts.iter().enumerate() {
        let mut last: Option<String> = None;
        for (line, text) in text.lines().enumerate() {
            for found in word.find_iter(text) {
                let found = found.as_str().to_lowercase();
                index.entry(found.clone()).or_default().push((place, line));
                if let Some(last) = last.replace(found.clone()) {
                    *pairs.entry((last, found)).or_default() += 1;
                }
            }
        }
        made += number.replace_all(text, "<$2|$1>").len();
    }
    let mut by_count: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for ((first, second), count) in pairs {
        by_count.entry(count).or_default().push(format!("{first} {second}"));
    }
    let mut report = String::new();
    for (count, mut names) in by_count.into_iter().rev() {
        names.sort();
        report += &format!("{count}: {}\n", names.join(", "));
    }
    let places: usize = index.values().map(Vec::len).sum();
    (made + report.len() + places) as u64
}
