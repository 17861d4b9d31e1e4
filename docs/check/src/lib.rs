//! The book, README.md and CONTRIBUTING.md as doc comments, so that `cargo test --package allotment-docs` compiles and
//! runs every Rust snippet in them exactly as it is printed.

/// One module for each document.
#[cfg(doctest)]
mod documents {
    include!(concat!(env!("OUT_DIR"), "/documents.rs"));
}
