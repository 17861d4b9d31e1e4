//! `cargo xtask book`: renders the book in `docs` to `target/book` with mdBook, and checks the links of the pages.
//!
//! Chapters link to files of the project as they are in the tree (`../../examples/plain_value.rs`), so that they can be
//! followed in an editor and on the repository's pages. In the rendered book these become links to the repository
//! that the root's Cargo.toml names.

use anyhow::{Context, Result, bail};
use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How chapters point out of `docs/src`.
const OUTSIDE: &str = "](../../";

fn main() -> Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let root = docs.join("..").canonicalize()?;
    let repository = repository(&fs::read_to_string(root.join("Cargo.toml"))?);

    let mut book = MDBook::load(&docs).context("the book cannot be read")?;
    book.book.for_each_mut(|item| {
        if let BookItem::Chapter(chapter) = item {
            chapter.content = outside(&chapter.content, repository.as_deref());
        }
    });
    book.build().context("the book cannot be rendered")?;

    let rendered = book.build_dir_for("html");
    let dead = dead_links(&rendered)?;
    if !dead.is_empty() {
        bail!("dead links in the rendered book:\n{}", dead.join("\n"));
    }
    println!("{}", rendered.join("index.html").canonicalize()?.display());
    Ok(())
}

/// The value of `repository` in a manifest.
fn repository(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("repository = \""))?;
    line.split('"').nth(1).map(|url| url.trim_end_matches('/').to_owned())
}

/// `chapter` with the links out of the book as links to the repository; as plain text if there is none.
fn outside(chapter: &str, repository: Option<&str>) -> String {
    if let Some(repository) = repository {
        return chapter.replace(OUTSIDE, &format!("]({repository}/blob/main/"));
    }
    let mut text = String::with_capacity(chapter.len());
    let mut rest = chapter;
    while let Some(at) = rest.find(OUTSIDE) {
        let (before, link) = rest.split_at(at);
        let label = before.rfind('[').unwrap_or(before.len());
        text.push_str(&before[..label]);
        text.push_str(before.get(label + 1..).unwrap_or_default());
        rest = link.find(')').map_or("", |end| &link[end + 1..]);
    }
    text + rest
}

/// Links of the pages in `folder` that lead to no file.
fn dead_links(folder: &Path) -> Result<Vec<String>> {
    let mut dead = BTreeSet::new();
    for page in pages(folder)? {
        let text = fs::read_to_string(&page)?;
        let links = ["href=\"", "src=\""].into_iter().flat_map(|key| text.split(key).skip(1));
        for link in links.filter_map(|rest| rest.split('"').next()) {
            let file = link.split(['#', '?']).next().unwrap_or_default();
            if file.is_empty() || link.contains(':') || file.starts_with('/') {
                continue;
            }
            if !page.parent().unwrap_or(folder).join(file).exists() {
                dead.insert(format!("{}: {link}", page.strip_prefix(folder)?.display()));
            }
        }
    }
    Ok(dead.into_iter().collect())
}

fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages.extend(self::pages(&path)?);
        } else if path.extension().is_some_and(|ending| ending == "html") {
            pages.push(path);
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_lead_to_the_repository() {
        let chapter = "See [a](../../a.rs), [b](b.md) and [`c`](../../c).";
        let linked = outside(chapter, Some("https://example.org/x"));
        assert_eq!(
            linked,
            "See [a](https://example.org/x/blob/main/a.rs), [b](b.md) and [`c`](https://example.org/x/blob/main/c)."
        );
        assert_eq!(outside(chapter, None), "See a, [b](b.md) and `c`.");
        assert_eq!(
            repository("[package]\nrepository = \"https://example.org/x/\"\n").as_deref(),
            Some("https://example.org/x")
        );
    }

    #[test]
    fn dead_links_are_found() {
        let folder = std::env::temp_dir().join(format!("allotment-book-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("a.html"),
            "<a href=\"b.html#x\"><a href=\"a.html\"><img src=\"c.svg\"><a href=\"https://d\">",
        )
        .unwrap();
        let dead = dead_links(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(dead, ["a.html: b.html#x", "a.html: c.svg"]);
    }
}
