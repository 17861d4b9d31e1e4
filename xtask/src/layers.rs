//! The layer check of `cargo xtask lint`: the modules of the library use one another in one direction only.
//!
//! The order of the modules in `src` is the first table of ARCHITECTURE.md, from the ground up. In the folders below, which have no
//! table, the modules must not use one another in a circle.

use crate::child;
use crate::firmware;
use anyhow::{Context, Result, anyhow, ensure};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::str::FromStr;

/// Checks all files in `src` that git tracks. Prints each arrow that points up or closes a circle, and returns how many there are.
///
/// # Errors
///
/// If git does not list the files, one of them cannot be read or parsed, or ARCHITECTURE.md has no table of layers.
pub fn lint() -> Result<usize> {
    let files = sources("src")?;
    let path = firmware::root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let findings = check(&files, &order(&text)?)?;
    for finding in &findings {
        println!("{finding}");
    }
    Ok(findings.len())
}

/// Returns the names and texts of all files of Rust in `folder` that git tracks or would track.
///
/// # Errors
///
/// If git does not list the files, or one of them cannot be read.
pub fn sources(folder: &str) -> Result<Vec<(String, String)>> {
    let mut git = Command::new("git");
    git.current_dir(firmware::root()).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        folder,
    ]);
    let mut files = Vec::new();
    for name in child::stdout_of(&mut git)?.split_terminator('\0').filter(|name| name.ends_with(".rs")) {
        let path = firmware::root().join(name);
        // A file that was deleted but not committed yet is still listed.
        if path.exists() {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

/// Returns the modules in the order of the first table with the column `module`, from the ground up.
fn order(text: &str) -> Result<Vec<String>> {
    let rows = text.lines().skip_while(|line| !line.starts_with("| layer | module |")).skip(2);
    let column = rows.map_while(|row| row.strip_prefix('|')?.split('|').nth(1));
    // Names stand between back quotes.
    let order: Vec<String> =
        column.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    ensure!(!order.is_empty(), "ARCHITECTURE.md has no table that begins with `| layer | module |`");
    Ok(order)
}

/// A module, by the names that lead to it from the crate's root.
type Path = Vec<String>;

/// What is known of one module.
#[derive(Default)]
struct Module {
    /// Names that it imports from its own submodules, and from which.
    imports: BTreeMap<String, String>,
    /// Paths that it names, as the absolute ones they stand for, with file and line.
    uses: Vec<(Path, String)>,
}

/// Returns a line for each arrow between modules that is not allowed, and for each module that `order` lacks.
fn check(files: &[(String, String)], order: &[String]) -> Result<Vec<String>> {
    let mut modules = BTreeMap::new();
    for (name, text) in files {
        let path = module_of(name).with_context(|| format!("{name} is no source file"))?;
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow!("{name}: {error}"))?;
        let mut module = Module::default();
        read(tokens, &path, 0, name, &mut module);
        modules.insert(path, module);
    }
    let mut findings = Vec::new();
    for path in modules.keys().filter(|path| path.len() == 1 && !order.contains(&path[0])) {
        findings.push(format!("src/{}: the table in ARCHITECTURE.md lacks this module", path[0]));
    }
    // All arrows between modules of one folder: folder, who, whom, and where first.
    let mut arrows: BTreeMap<(Path, String, String), String> = BTreeMap::new();
    for (path, module) in &modules {
        for (used, place) in &module.uses {
            let target = resolve(used, &modules);
            let common = path.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (path.get(common), target.get(common)) {
                let arrow = (path[..common].to_vec(), from.clone(), to.clone());
                arrows.entry(arrow).or_insert_with(|| place.clone());
            }
        }
    }
    let name = |folder: &Path, module: &String| [&**folder, std::slice::from_ref(module)].concat().join("::");
    for ((folder, from, to), place) in &arrows {
        let up = if folder.is_empty() {
            let height = |name: &String| order.iter().position(|other| other == name);
            height(from) < height(to)
        } else {
            let others = arrows.keys().filter(|arrow| &arrow.0 == folder);
            reaches(to, from, &others.map(|arrow| (&*arrow.1, &*arrow.2)).collect::<Vec<_>>())
        };
        if !up {
            continue;
        }
        let (from, to) = (name(folder, from), name(folder, to));
        if folder.is_empty() {
            findings.push(format!("{place}: `{from}` uses `{to}`, which is above it in ARCHITECTURE.md"));
        } else {
            findings.push(format!("{place}: `{from}` uses `{to}`, which uses it in turn"));
        }
    }
    Ok(findings)
}

/// Returns whether `to` can be reached from `from`.
fn reaches(from: &str, to: &str, edges: &[(&str, &str)]) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        if next == to {
            return true;
        }
        open.extend(edges.iter().filter(|edge| edge.0 == next && seen.insert(edge.1)).map(|edge| edge.1));
    }
    false
}

/// Returns the module of a file: `src/a/b.rs` and `src/a/b/mod.rs` hold `a::b`, `src/lib.rs` the root.
fn module_of(file: &str) -> Option<Path> {
    let mut path: Path =
        file.strip_prefix("src/")?.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    Some(path)
}

/// Returns the module that a path leads to, through imports of modules from their own submodules.
fn resolve(path: &[String], modules: &BTreeMap<Path, Module>) -> Path {
    let mut at = Vec::new();
    for name in path {
        let inner = |name: &String| at.iter().chain([name]).cloned().collect::<Path>();
        if modules.contains_key(&inner(name)) {
            at = inner(name);
            continue;
        }
        // Another name: an item of this module, or of the submodule that it imports it from.
        if let Some(child) = modules.get(&at).and_then(|module| module.imports.get(name)) {
            at = inner(child);
        }
        break;
    }
    at
}

/// Reads the paths in `tokens`, which stand `depth` inline modules deep in the module `path`.
fn read(tokens: TokenStream, path: &[String], depth: usize, file: &str, module: &mut Module) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        match rest {
            // What is compiled for tests only may use anything.
            _ if is_for_tests(rest) => at += length_of_item(rest),
            [TokenTree::Ident(word), TokenTree::Ident(_), TokenTree::Group(body), ..] if word == "mod" => {
                read(body.stream(), path, depth + 1, file, module);
                at += 2;
            }
            [TokenTree::Ident(word), ..] => {
                let (names, length) = names(rest);
                if let ("use", 0) = (&*word.to_string(), depth) {
                    for name in self::names(&rest[1..]).0 {
                        if let [child, .., item] = &*name {
                            module.imports.insert(item.clone(), child.clone());
                        }
                    }
                }
                let place = format!("{file}:{}", word.span().start().line);
                let absolute = names.iter().filter_map(|name| absolute(name, path, depth));
                module.uses.extend(absolute.map(|path| (path, place.clone())));
                at += length - 1;
            }
            [TokenTree::Group(group), ..] => read(group.stream(), path, depth, file, module),
            _ => {}
        }
        at += 1;
    }
}

/// Returns whether `tokens` begin with an attribute that restricts an item to tests.
pub fn is_for_tests(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(attribute), ..] = tokens else { return false };
    hash.as_char() == '#' && is_test(attribute)
}

/// Returns how many tokens of the item that `tokens` begin with are in front of the one that ends it.
pub fn length_of_item(tokens: &[TokenTree]) -> usize {
    tokens.iter().position(ends_item).unwrap_or(tokens.len())
}

/// Returns whether an attribute restricts an item to tests.
fn is_test(attribute: &Group) -> bool {
    let text = attribute.to_string().replace(' ', "");
    text.starts_with("[cfg(test)") || text.starts_with("[cfg(all(test,")
}

/// Returns whether an item ends with this token: a block or a semicolon.
fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    }
}

/// Returns the paths that begin with the first of `tokens`, several if it is that of a tree of imports, and how many tokens they
/// take.
fn names(tokens: &[TokenTree]) -> (Vec<Path>, usize) {
    let Some(TokenTree::Ident(first)) = tokens.first() else { return (Vec::new(), 1) };
    let mut path = vec![first.to_string()];
    let mut at = 1;
    while let [TokenTree::Punct(a), TokenTree::Punct(b), next, ..] = &tokens[at.min(tokens.len())..] {
        if (a.as_char(), b.as_char()) != (':', ':') {
            break;
        }
        match next {
            TokenTree::Ident(name) => path.push(name.to_string()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma =
                    |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
                let all = inner.split(is_comma).flat_map(|part| names(part).0);
                return (all.map(|rest| path.iter().cloned().chain(rest).collect()).collect(), at + 3);
            }
            // Parameters of a type.
            _ => break,
        }
        at += 3;
    }
    (vec![path], at)
}

/// Returns the path from the crate's root that `name` stands for in `module`; `None` if it does not lead out of it.
fn absolute(name: &[String], module: &[String], depth: usize) -> Option<Path> {
    match name.split_first()? {
        (first, rest) if first == "crate" => Some(rest.to_vec()),
        (first, _) if first == "super" => {
            let up = name.iter().take_while(|part| *part == "super").count();
            let stays = (module.len() + depth).checked_sub(up).filter(|stays| *stays <= module.len())?;
            Some(module[..stays].iter().chain(&name[up..]).cloned().collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (format!("src/{name}"), (*text).to_owned())).collect();
        let table = "text\n\n| layer | module | what |\n| --- | --- | --- |\n| low | `units` | a |\n| high | `heap`, `os` | b |\n\n| x |\n";
        check(&files, &order(table).unwrap()).unwrap()
    }

    /// Paths in every form, each of which points from `units` up to `heap`.
    #[test]
    fn arrows_that_point_up_are_found() {
        let lib = ("lib.rs", "mod heap; mod os; mod units; pub use heap::Heap;");
        let heap = ("heap/mod.rs", "mod state; pub struct Heap; use crate::units::A;");
        let below = [("heap/state.rs", "use super::Heap;"), ("os.rs", "use crate::{units::A, heap::Heap};")];
        for text in [
            "use crate::heap::Heap;",
            "use crate::Heap;",
            "use super::heap::state::State;",
            "use crate::{A, b::{C}, heap::{self, Heap}};",
            "fn f() { let a = g(|x| crate::heap::f::<u8>(x)); }",
            "macro_rules! m { () => { $crate::heap::Heap::new() }; }",
            "mod inner { use super::super::heap::Heap; }",
            "#[cfg(test)] mod tests { use super::*; } fn f(_: crate::Heap) {}",
        ] {
            let found = findings(&[lib, heap, below[0], below[1], ("units.rs", text)]);
            assert_eq!(
                found,
                ["src/units.rs:1: `units` uses `heap`, which is above it in ARCHITECTURE.md"],
                "{text}"
            );
        }
        for text in [
            "",
            "/// crate::heap::Heap\nmod inner { use super::A; }",
            "#[cfg(test)] mod tests { use crate::heap::Heap; }",
            "#[cfg(test)] use crate::heap::Heap;",
            "use heap::Heap; use ::heap::Heap; const A: &str = \"crate::heap\";",
        ] {
            let found = findings(&[lib, heap, below[0], below[1], ("units.rs", text)]);
            assert_eq!(found, [""; 0], "{text}");
        }
    }

    #[test]
    fn circles_in_a_folder_are_found() {
        let files = [
            ("os/mod.rs", "mod a; mod b; mod c; pub use c::C; use a::f;"),
            ("os/a.rs", "use super::b::f; use super::A;"),
            ("os/b.rs", "use super::C;"),
            ("os/c.rs", "fn c() { crate::os::a::f() }"),
        ];
        let found = findings(&files);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[1], "src/os/b.rs:1: `os::b` uses `os::c`, which uses it in turn");
        // One arrow less, and the circle is open.
        assert_eq!(findings(&files[..3]), [""; 0]);
    }

    #[test]
    fn the_table_is_kept_up_to_date() {
        let found = findings(&[("units.rs", ""), ("new/mod.rs", "")]);
        assert_eq!(found, ["src/new: the table in ARCHITECTURE.md lacks this module"]);
        assert!(order("| module |\n").is_err());
    }

    #[test]
    fn the_library_keeps_to_its_layers() {
        assert_eq!(lint().unwrap(), 0);
    }
}
