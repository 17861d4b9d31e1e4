//! Shared libraries of this workspace, built for a test.

use escargot::CargoBuild;
use escargot::format::Message;
use std::path::{Path, PathBuf};

/// Builds a package of the workspace, or an example of it, and returns the shared library of that name.
pub fn library(package: &str, name: &str, features: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut build = CargoBuild::new().package(package).manifest_path(root).features(features);
    if ["growing", "cached", "guarded", "own", "gpu"].contains(&name) {
        build = build.example(name);
    }
    let files = build.exec().unwrap().filter_map(|message| match message.unwrap().decode() {
        Ok(Message::CompilerArtifact(artifact)) if artifact.target.name == name => artifact
            .filenames
            .iter()
            .map(|file| file.to_path_buf())
            .find(|file| file.extension().is_some_and(|it| it == "so")),
        _ => None,
    });
    files.last().expect("a shared library is built")
}
