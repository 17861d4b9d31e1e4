//! Pages of tables, which are kept as data in benches/results.

use std::fs;
use std::path::PathBuf;

use allotment_common::page;
use anyhow::{Context, Result};

use crate::firmware;

/// Folders of pages in benches/results.
pub const FOLDERS: [&str; 2] = ["pages", "plan"];

/// Keeps a page that was measured.
pub fn keep(name: &str, markdown: &str) -> Result<()> {
    let file = firmware::root().join("benches/results/pages").join(name).with_extension("csv");
    fs::write(&file, page::from_markdown(markdown)).with_context(|| format!("{}", file.display()))
}

/// Returns the file of a page; `None` if there is no page of this name.
pub fn find(name: &str) -> Option<PathBuf> {
    let results = firmware::root().join("benches/results");
    let files = FOLDERS.map(|folder| results.join(folder).join(name).with_extension("csv"));
    files.into_iter().find(|file| file.exists())
}
