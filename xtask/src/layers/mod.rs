//! The layer check of `cargo xtask lint`: the modules of a crate use one another in one direction only.
//!
//! The order of the modules in `src` is the first table of ARCHITECTURE.md, from the ground up. In the folders below and in all other
//! crates, which have no table, the modules of a folder must not use one another in a circle. A module and those inside it are one.

pub mod sources;

use anyhow::{Result, ensure};
use sources::{Path, arrows, crates, modules, reaches, sources};

/// Checks all crates that git tracks, but those of tests. Prints each arrow that points up or closes a circle, and returns how many
/// there are.
///
/// # Errors
///
/// If git does not list the files, one of them cannot be read or parsed, or ARCHITECTURE.md has no table of layers.
pub fn lint() -> Result<usize> {
    let order = order(&sources::text("ARCHITECTURE.md")?)?;
    let mut findings = 0;
    for folder in crates()? {
        let order = (folder == "src").then_some(&*order);
        for finding in check(&sources(&folder)?, &folder, order)? {
            println!("{finding}");
            findings += 1;
        }
    }
    Ok(findings)
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

/// Returns a line for each arrow between modules of the crate in `folder` that is not allowed, and for each module that `order` lacks.
fn check(files: &[(String, String)], folder: &str, order: Option<&[String]>) -> Result<Vec<String>> {
    let modules = modules(files, folder)?;
    let mut findings = Vec::new();
    let unknown = |path: &&Path| order.is_some_and(|order| path.len() == 1 && !order.contains(&path[0]));
    for path in modules.keys().filter(unknown) {
        findings.push(format!("{folder}/{}: the table in ARCHITECTURE.md lacks this module", path[0]));
    }
    let arrows = arrows(&modules);
    for ((parent, from, to), place) in &arrows {
        let (up, why) = match order {
            Some(order) if parent.is_empty() => {
                let height = |name: &String| order.iter().position(|other| other == name);
                (height(from) < height(to), "is above it in ARCHITECTURE.md")
            }
            _ => {
                let beside = arrows.keys().filter(|arrow| arrow.0 == *parent);
                let beside: Vec<_> = beside.map(|(_, from, to)| (&**from, &**to)).collect();
                (reaches(to, from, &beside), "uses it in turn")
            }
        };
        if up {
            let name = |module: &String| [&**parent, std::slice::from_ref(module)].concat().join("::");
            findings.push(format!("{place}: `{}` uses `{}`, which {why}", name(from), name(to)));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (format!("src/{name}"), (*text).to_owned())).collect();
        let table = "text\n\n| layer | module | what |\n| --- | --- | --- |\n| low | `units` | a |\n| high | `heap`, `os` | b |\n\n| x |\n";
        check(&files, "src", Some(&order(table).unwrap())).unwrap()
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
    fn circles_in_a_crate_without_a_table_are_found() {
        let files = [
            ("main.rs", "mod a; mod b; pub struct S;"),
            ("a.rs", "use crate::{S, b::f};"),
            ("b/mod.rs", "mod c; pub fn f() {}"),
            ("b/c.rs", "fn g() { crate::a::h(super::f()) }"),
        ];
        let of = |files: &[(&str, &str)]| {
            let files: Vec<_> =
                files.iter().map(|(name, text)| (format!("tool/src/{name}"), (*text).to_owned())).collect();
            check(&files, "tool/src", None).unwrap()
        };
        assert_eq!(
            of(&files),
            [
                "tool/src/a.rs:1: `a` uses `b`, which uses it in turn",
                "tool/src/b/c.rs:1: `b` uses `a`, which uses it in turn"
            ]
        );
        assert_eq!(of(&files[..3]), [""; 0]);
    }

    #[test]
    fn the_table_is_kept_up_to_date() {
        let found = findings(&[("units.rs", ""), ("new/mod.rs", "")]);
        assert_eq!(found, ["src/new: the table in ARCHITECTURE.md lacks this module"]);
        assert!(order("| module |\n").is_err());
    }

    #[test]
    fn all_crates_keep_to_their_layers() {
        assert_eq!(lint().unwrap(), 0);
    }
}
