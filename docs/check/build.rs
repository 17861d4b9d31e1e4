//! Makes an item of every document, so that rustdoc finds its snippets.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Documents outside of the book that show Rust code.
const OTHERS: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let book = root.join("docs/src");
    println!("cargo:rerun-if-changed={}", book.display());

    let mut documents: Vec<PathBuf> = fs::read_dir(&book)
        .expect("the book is in docs/src")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    documents.sort();
    documents.extend(OTHERS.map(|name| root.join(name)));

    let mut items = String::new();
    for document in documents {
        let name = document.file_stem().expect("a document has a name").to_string_lossy().replace('-', "_");
        writeln!(items, "#[doc = include_str!({document:?})]\npub mod {name} {{}}").expect("memory suffices");
    }
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("documents.rs"), items).expect("the output folder can be written");
}
