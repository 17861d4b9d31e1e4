//! Builds the library and the stand-in driver, and lets a Python program use both.

use escargot::CargoBuild;
use escargot::format::Message;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a package of the workspace and returns its shared library.
fn library(package: &str, name: &str, features: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let build = CargoBuild::new().package(package).manifest_path(root).features(features);
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

#[test]
fn python_uses_a_pool_by_the_functions_for_torch() {
    let allotment = library("allotment-capi", "allotment", "gpu");
    let driver = library("allotment-stand-in-driver", "allotment_stand_in_driver", "");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch.py");
    let output = Command::new("python3").arg(script).args([allotment, driver]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("all is well"), "{text}");
}
