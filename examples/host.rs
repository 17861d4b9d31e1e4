//! A host program on a static heap: counts the words of a text, then says what the heap did.
//!
//! ```sh
//! cargo run --example host            # counts the words of README.md
//! cargo run --example host -- FILE
//! ```

use allotment::{Heap, heap};
use std::collections::HashMap;
use std::process::ExitCode;

#[global_allocator]
static HEAP: Heap = heap!(64 * 1024 * 1024);

fn main() -> ExitCode {
    let file =
        std::env::args().nth(1).unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/README.md").into());
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    };

    let mut counts: HashMap<String, usize> = HashMap::new();
    for word in text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| word.len() > 3) {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
    let mut words: Vec<_> = counts.iter().collect();
    words.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    for (word, count) in words.iter().take(5) {
        println!("{count:4} {word}");
    }

    let stats = HEAP.stats();
    println!("{} different words in {} live blocks", counts.len(), stats.live_blocks);
    println!("{} of {} bytes in use, at most {}", stats.used, stats.capacity, stats.peak);
    ExitCode::SUCCESS
}
