//! Records the compiler's version for the result tables, and links the library with an allocator that a user has named.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").expect("Cargo names the compiler");
    let output = Command::new(rustc).arg("--version").output().expect("the compiler starts");
    println!("cargo::rustc-env=BENCH_RUSTC={}", String::from_utf8_lossy(&output.stdout).trim());
    println!("cargo::rustc-check-cfg=cfg(archive)");
    println!("cargo::rerun-if-env-changed=ALLOTMENT_ARCHIVE");
    if let Some(file) = std::env::var_os("ALLOTMENT_ARCHIVE").map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", file.display());
        println!("cargo::rustc-link-arg-bins={}", file.display());
        println!("cargo::rustc-cfg=archive");
        println!("cargo::rustc-env=BENCH_ARCHIVE={}", file.file_stem().unwrap_or_default().display());
    }
}
