//! Five whole programs that allocate as real ones do, because they are made of the crates that real ones are made of.
//! Each file `on_*.rs` links them to another allocator.

mod image_filter;
mod json;
mod source;
mod threads;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of the arena of allocators that need one: enough for every program.
pub const MEMORY_BYTES: usize = 192 << 20;

/// A program: does so many percent of its work, the same every time, and returns a number that depends on all of it.
type Program = fn(usize) -> u64;

/// The programs by name.
const PROGRAMS: [(&str, Program); 5] = [
    ("json", json::run),
    ("source", source::run),
    ("words", words::run),
    ("threads", threads::run),
    ("image", image_filter::run),
];

/// Runs the program that the command line names; prints its result and the most memory that was resident, in KiB.
pub fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match PROGRAMS.iter().find(|program| program.0 == name) {
        Some((_, run)) => {
            let result = run(100);
            println!("{result} {}", peak());
        }
        None => {
            eprintln!("programs: {:?} are the programs, not {name:?}", PROGRAMS.map(|program| program.0));
            std::process::exit(2);
        }
    }
}

/// The most memory that was resident, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// So many percent of the files below a folder of the repository with this ending, in the order of their names: the text
/// that programs work on.
fn texts(folder: &str, ending: &str, percent: usize) -> Vec<String> {
    let mut paths = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder), ending, &mut paths);
    paths.sort();
    paths.truncate((paths.len() * percent).div_ceil(100));
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
            let first = run(2);
            assert_eq!(first, run(2), "{name}");
            assert!(first > 1000, "{name}: {first}");
        }
    }
}
