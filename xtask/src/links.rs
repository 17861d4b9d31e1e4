//! The check of `cargo xtask lint` for symbolic links: where git cannot make one, as on Windows, it writes the name of the target
//! into an ordinary file.

use crate::firmware;
use crate::layers::sources;
use anyhow::Result;
use std::path::Path;

/// Prints each symbolic link of the project, and returns how many there are.
///
/// # Errors
///
/// If git does not list the files.
pub fn lint() -> Result<usize> {
    let names = sources::tracked(&["."])?;
    let links = names.iter().filter(|name| is_link(&firmware::root().join(name)));
    Ok(links
        .inspect(|name| println!("{name}: is a symbolic link, which a checkout on Windows breaks: let a package hold what others share"))
        .count())
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|file| file.is_symlink())
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn links_are_told_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        assert!(super::is_link(&link) && !super::is_link(folder.path()));
        assert_eq!(super::lint().unwrap(), 0);
    }
}
