//! A job on several threads with rayon: texts are cut, counted and sorted side by side, and the parts put together.

use std::collections::HashMap;

use rayon::prelude::*;

/// Runs it; a sum over all counts.
pub fn run(percent: usize) -> u64 {
    let texts = super::texts("src", "rs", percent);
    let lines: Vec<&str> = texts.iter().flat_map(|text| text.lines()).collect();
    let mut total = 0;
    for round in (1..=6_usize).cycle().take(30) {
        let counts: HashMap<String, usize> = lines
            .par_chunks(200)
            .map(|lines| {
                let mut counts = HashMap::new();
                for line in lines {
                    for word in line.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > round) {
                        *counts.entry(word.to_owned()).or_insert(0) += 1;
                    }
                }
                counts
            })
            .reduce(HashMap::new, |mut all, part| {
                for (word, count) in part {
                    *all.entry(word).or_insert(0) += count;
                }
                all
            });
        let mut reversed: Vec<(String, usize)> = counts
            .into_par_iter()
            .map(|(word, count)| (word.chars().rev().collect::<String>(), count))
            .collect();
        reversed.par_sort();
        let joined: Vec<Vec<String>> = reversed
            .par_chunks(50)
            .map(|words| words.iter().map(|(word, count)| format!("{word}={count}")).collect())
            .collect();
        total += joined.iter().flatten().map(String::len).sum::<usize>() as u64;
    }
    total
}
