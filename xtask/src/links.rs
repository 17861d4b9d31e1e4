//! The check of `cargo xtask lint` for symbolic links: where git cannot make one, as on Windows, it writes the name of the target
//! into an ordinary file.

use crate::child;
use crate::firmware;
use anyhow::Result;
use std::process::Command;

/// Prints each symbolic link that git tracks, and returns how many there are.
///
/// # Errors
///
/// If git does not list the files.
pub fn lint() -> Result<usize> {
    let mut git = Command::new("git");
    git.current_dir(firmware::root()).args(["ls-files", "--stage", "-z"]);
    let listed = child::stdout_of(&mut git)?;
    let found = links(&listed);
    for name in &found {
        println!(
            "{name}: is a symbolic link, which a checkout on Windows breaks: let a package hold what others share"
        );
    }
    Ok(found.len())
}

/// Returns the names of the links in a list of `git ls-files --stage -z`, whose entries are `<mode> <object> <stage>\t<name>`.
fn links(listed: &str) -> Vec<&str> {
    let entries = listed.split_terminator('\0').filter(|entry| entry.starts_with("120000 "));
    entries.filter_map(|entry| entry.split_once('\t')).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_by_their_mode() {
        let listed = "100644 d23a64 0\ta.rs\x00120000 41f863 0\tb/c d.rs\x00100755 120000 0\te\0";
        assert_eq!(links(listed), ["b/c d.rs"]);
        assert_eq!(links(""), [""; 0]);
    }

    #[test]
    fn the_project_has_no_links() {
        assert_eq!(lint().unwrap(), 0);
    }
}
