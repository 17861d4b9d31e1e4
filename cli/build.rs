//! Builds the preload library of `allotment record`, which the tool carries, from `preload/` and the crate `allotment-event`, with the
//! compiler alone: both have no dependencies. Where there is no such library the tool is built without one.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

fn main() {
    let event = Path::new(allotment_event::FOLDER).join("src");
    println!("cargo:rerun-if-changed={}", event.display());
    println!("cargo:rerun-if-changed=preload");
    println!("cargo:rerun-if-changed=build.rs");
    let folder = PathBuf::from(variable("OUT_DIR"));
    let library = folder.join("liballotment_preload.so");
    // A C library that is linked statically loads nothing.
    let statically = variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    if variable("CARGO_CFG_TARGET_OS") != "linux" || statically {
        std::fs::write(&library, b"").expect("the build folder can be written");
        return;
    }
    let format = folder.join("liballotment_event.rlib");
    compile(&event.join("lib.rs"), "allotment_event", "rlib", &format, &[]);
    let mut linked = vec!["--extern".into(), option("allotment_event=", format)];
    linked.extend(["-C", "lto=fat", "-C", "strip=symbols"].map(OsString::from));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        linked.extend(["-C".into(), option("linker=", linker)]);
    }
    compile(&Path::new("preload").join("lib.rs"), "allotment_preload", "cdylib", &library, &linked);
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// Returns an option whose value need not be UTF-8.
fn option(name: &str, value: impl Into<OsString>) -> OsString {
    let mut option = OsString::from(name);
    option.push(value.into());
    option
}

/// Compiles the crate `name` from `source` to `output`.
fn compile(source: &Path, name: &str, kind: &str, output: &Path, options: &[OsString]) {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-type", kind, "--crate-name", name]);
    rustc.args(["-C", "opt-level=3", "-C", "panic=abort", "--cap-lints", "allow"]);
    rustc.args(["--target", &variable("TARGET"), "-o"]).arg(output).args(options).arg(source);
    let built = rustc.status();
    assert!(
        built.as_ref().is_ok_and(ExitStatus::success),
        "the preload library of `allotment record` could not be built from {}: {}",
        source.display(),
        match built {
            Ok(status) => status.to_string(),
            Err(error) => format!("{}: {error}", variable("RUSTC")),
        }
    );
}
