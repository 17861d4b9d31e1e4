//! The modules of a crate, and the paths by which they name each other, read from the tokens of its files.

use crate::child;
use crate::firmware;
use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::str::FromStr;

/// Returns the names of the files that git tracks or would track, below the folders or with the patterns that are named.
///
/// # Errors
///
/// If git does not list the files.
pub fn tracked(patterns: &[&str]) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(firmware::root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = child::stdout_of(git.arg("--").args(patterns))?;
    // A file that was deleted but not committed yet is still listed.
    let is_there = |name: &&str| firmware::root().join(name).symlink_metadata().is_ok();
    Ok(listed.split_terminator('\0').filter(is_there).map(str::to_owned).collect())
}

/// Returns the text of a file of the project.
///
/// # Errors
///
/// If it cannot be read.
pub fn text(name: &str) -> Result<String> {
    fs::read_to_string(firmware::root().join(name)).with_context(|| format!("cannot read {name}"))
}

/// Returns the names and texts of all files of Rust in `folder`.
///
/// # Errors
///
/// If git does not list the files, or one of them cannot be read.
pub fn sources(folder: &str) -> Result<Vec<(String, String)>> {
    let names = tracked(&[folder])?.into_iter().filter(|name| name.ends_with(".rs"));
    names.map(|name| Ok((name.clone(), text(&name)?))).collect()
}

/// Returns the folders of all crates, but those of tests.
///
/// # Errors
///
/// If git does not list the files.
pub fn crates() -> Result<BTreeSet<String>> {
    let roots = tracked(&["*/lib.rs", "*/main.rs"])?;
    let folders = roots.iter().filter_map(|name| Some(name.rsplit_once('/')?.0));
    let for_tests = |folder: &&str| folder.split('/').any(|part| part == "tests");
    Ok(folders.filter(|folder| !for_tests(folder)).map(str::to_owned).collect())
}

/// A module, by the names that lead to it from the crate's root.
pub type Path = Vec<String>;

/// What is known of one module.
#[derive(Default)]
pub struct Module {
    /// Names that it imports from its own submodules, and from which.
    imports: BTreeMap<String, String>,
    /// Paths that it names, as the absolute ones they stand for, with file and line.
    uses: Vec<(Path, String)>,
}

/// Reads all modules of the crate in `folder`.
///
/// # Errors
///
/// If a file cannot be parsed.
pub fn modules(files: &[(String, String)], folder: &str) -> Result<BTreeMap<Path, Module>> {
    let mut modules = BTreeMap::new();
    for (name, text) in files {
        let path = module_of(name, folder).with_context(|| format!("{name} is no source file"))?;
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow!("{name}: {error}"))?;
        let mut module = Module::default();
        read(tokens, &path, 0, name, &mut module);
        modules.insert(path, module);
    }
    Ok(modules)
}

/// Returns all arrows between modules of one folder: the folder, the one that uses, the one that is used, and the first place.
pub fn arrows(modules: &BTreeMap<Path, Module>) -> BTreeMap<(Path, String, String), String> {
    let mut arrows = BTreeMap::new();
    for (path, module) in modules {
        for (used, place) in &module.uses {
            let target = resolve(used, modules);
            let common = path.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (path.get(common), target.get(common)) {
                let arrow = (path[..common].to_vec(), from.clone(), to.clone());
                arrows.entry(arrow).or_insert_with(|| place.clone());
            }
        }
    }
    arrows
}

/// Returns the module of a file: `a/b.rs` and `a/b/mod.rs` in the crate's folder hold `a::b`, `lib.rs` or `main.rs` the root.
fn module_of(file: &str, folder: &str) -> Option<Path> {
    let file = file.strip_prefix(folder)?.strip_prefix('/')?;
    let mut path: Path = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod")
        || matches!(&*path, [root] if root == "lib" || root == "main")
    {
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

/// Returns whether `to` can be reached from `from`.
pub fn reaches(from: &str, to: &str, edges: &[(&str, &str)]) -> bool {
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
