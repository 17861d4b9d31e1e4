//! Builds the preload library of `allotment record`, which the tool carries, from `preload/` with the compiler alone: it has no
//! dependencies. Where there is no such library the tool is built without one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=preload");
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let library = PathBuf::from(variable("OUT_DIR")).join("liballotment_preload.so");
    // A C library that is linked statically loads nothing.
    let statically = variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    if variable("CARGO_CFG_TARGET_OS") != "linux" || statically {
        std::fs::write(&library, b"").expect("the build folder can be written");
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "allotment_preload"]);
    rustc.args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "strip=symbols", "-C", "lto=fat"]);
    rustc.args(["--cap-lints", "allow"]);
    rustc.args(["--target", &variable("TARGET"), "-o"]).arg(&library);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        rustc.arg("-C").arg(option);
    }
    let built = rustc.arg(Path::new("preload").join("lib.rs")).status();
    assert!(
        built.as_ref().is_ok_and(std::process::ExitStatus::success),
        "the preload library of `allotment record` could not be built: {}",
        match built {
            Ok(status) => status.to_string(),
            Err(error) => format!("{}: {error}", variable("RUSTC")),
        }
    );
}
