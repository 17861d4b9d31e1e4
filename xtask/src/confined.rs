//! The check of `cargo xtask lint` that unsafe code stays where it is: a file of the library without any forbids it.

use crate::layers::sources;
use anyhow::{Result, anyhow};
use proc_macro2::{TokenStream, TokenTree};
use std::str::FromStr;

/// Prints how many files of `src` forbid unsafe code, names those that could and do not, and returns the number of the latter.
///
/// # Errors
///
/// If a file cannot be read or parsed.
pub fn lint() -> Result<usize> {
    let mut files = Vec::new();
    for (name, text) in sources::sources("src")? {
        let tokens = TokenStream::from_str(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        files.push(File {
            safe: !mentions(tokens, "unsafe"),
            forbids: text.contains("\n#![forbid(unsafe_code)]\n"),
            name,
        });
    }
    let open = could_forbid(&files);
    for name in &open {
        println!("{name}: has no unsafe code, and no `#![forbid(unsafe_code)]`");
    }
    let unsafe_files = files.iter().filter(|file| !file.safe).count();
    println!(
        "unsafe code: in {unsafe_files} of {} files, and forbidden below {} modules",
        files.len(),
        files.iter().filter(|file| file.forbids).count()
    );
    Ok(open.len())
}

/// A file of the library.
struct File {
    name: String,
    /// True if it has no unsafe code itself.
    safe: bool,
    forbids: bool,
}

impl File {
    /// The folder of the modules below it: what it forbids is forbidden there too.
    fn folder(&self) -> &str {
        let stem = self.name.strip_suffix(".rs").unwrap_or(&self.name);
        stem.strip_suffix("/mod").or(stem.strip_suffix("/lib")).unwrap_or(stem)
    }
}

/// Returns the files that have no unsafe code, nor have the modules below them, and in which it is not forbidden, there or in a module above.
fn could_forbid(files: &[File]) -> Vec<&str> {
    let below =
        |name: &str, folder: &str| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let all_safe = |folder: &str| files.iter().all(|file| file.safe || !below(&file.name, folder));
    let forbidden = |name: &str| {
        files.iter().any(|file| file.forbids && (file.name == name || below(name, file.folder())))
    };
    let open = files.iter().filter(|file| file.safe && all_safe(file.folder()) && !forbidden(&file.name));
    open.map(|file| file.name.as_str()).collect()
}

/// Returns whether the word is among the tokens, at any depth.
fn mentions(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == word,
        TokenTree::Group(group) => mentions(group.stream(), word),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_could_forbid_unsafe_code_are_named() {
        let file = |name: &str, safe, forbids| File { name: name.to_owned(), safe, forbids };
        let files = [
            file("src/lib.rs", true, false),
            file("src/a/mod.rs", true, false),
            file("src/a/unsafe_one.rs", false, false),
            file("src/a/b.rs", true, true),
            file("src/c.rs", true, false),
            file("src/d/mod.rs", true, false),
            file("src/d/e.rs", true, true),
            file("src/ab/f.rs", true, false),
            file("src/ab.rs", true, true),
        ];
        assert_eq!(could_forbid(&files), ["src/c.rs", "src/d/mod.rs"]);
        let unsafe_in = |text| mentions(TokenStream::from_str(text).unwrap(), "unsafe");
        assert!(unsafe_in("fn f() { { unsafe { g() } } }") && unsafe_in("#[unsafe(no_mangle)] fn f() {}"));
        assert!(!unsafe_in("/// An unsafe word.\nfn f() { \"unsafe\"; }"));
    }
}
