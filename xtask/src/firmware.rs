//! A board's program: how it is built and where it ends up.

use std::path::{Path, PathBuf};
use std::process::Command;

use allotment_common::boards::{Board, Runner};
use anyhow::Result;

use crate::child;
use crate::toolchain::Toolchain;

/// Log messages of this level and above are compiled in.
const LOG_LEVEL: &str = "info";

/// The project's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is one folder below it")
}

/// The folder of the boards' workspace.
fn workspace() -> PathBuf {
    root().join("boards")
}

/// The folder of a board's package.
pub fn folder(board: &Board) -> PathBuf {
    workspace().join(if board.package == "boards" { "" } else { &board.package })
}

/// `cargo COMMAND` for the program of `board`.
pub fn cargo(board: &Board, toolchain: &Toolchain, command: &str) -> Command {
    let mut cargo = toolchain.cargo(command);
    cargo.current_dir(workspace()).env("DEFMT_LOG", LOG_LEVEL);
    cargo.args(["--release", "--locked", "--package", &board.package]);
    match board.runner {
        Runner::Node { .. } => cargo.arg("--lib"),
        _ => cargo.args(["--bin", &board.name]),
    };
    cargo.args(["--target", &board.target]).arg("--target-dir").arg(target_folder());
    if !board.features.is_empty() {
        cargo.arg("--features").arg(board.features.join(","));
    }
    cargo
}

/// Builds the program of `board` and returns its path.
pub fn build(board: &Board, toolchain: &Toolchain) -> Result<PathBuf> {
    eprintln!("xtask: building {} for {}", board.name, board.target);
    child::run(&mut cargo(board, toolchain, "build"), &format!("building {}", board.name))?;

    let file = match board.runner {
        Runner::Node { .. } => format!("{}.wasm", board.package.replace('-', "_")),
        _ => board.name.clone(),
    };
    Ok(target_folder().join(&board.target).join("release").join(file))
}

/// Where firmware is built.
pub fn target_folder() -> PathBuf {
    workspace().join("target")
}
