//! Five whole programs that allocate as real ones do, because they are made of the crates that real ones are made of.
//! Each file of `src/bin` links them to another allocator.

mod image_filter;
mod json;
mod source;
mod threads;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of the arena of allocators that need one: enough for every program.
pub const ARENA: usize = 192 << 20;

/// The programs by name. Each does the same work every time and returns a number that depends on all of it.
const PROGRAMS: [(&str, fn() -> u64); 5] = [
    ("json", json::run),
    ("source", source::run),
    ("words", words::run),
    ("threads", threads::run),
    ("image", image_filter::run),
];

/// Runs the program that the command line names and prints its result.
pub fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match PROGRAMS.iter().find(|program| program.0 == name) {
        Some((_, run)) => println!("{}", run()),
        None => {
            eprintln!("programs: {:?} are the programs, not {name:?}", PROGRAMS.map(|program| program.0));
            std::process::exit(2);
        }
    }
}

/// The files of the repository with one of these endings, in the order of their names: the text that programs work on.
fn texts(folder: &str, ending: &str) -> Vec<String> {
    let mut paths = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder), ending, &mut paths);
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).expect("sources are text")).collect()
}

fn collect(folder: &Path, ending: &str, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the repository is there") {
        let path = entry.expect("its folders can be read").path();
        if path.is_dir() {
            collect(&path, ending, paths);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            paths.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn programs_do_the_same_every_time() {
        for (name, run) in super::PROGRAMS {
            let first = run();
            assert_eq!(first, run(), "{name}");
            assert!(first > 1000, "{name}: {first}");
        }
    }
}
