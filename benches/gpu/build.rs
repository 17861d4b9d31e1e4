//! Records the compiler's version for the result tables.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").expect("Cargo names the compiler");
    let output = Command::new(rustc).arg("--version").output().expect("the compiler starts");
    println!("cargo::rustc-env=BENCH_RUSTC={}", String::from_utf8_lossy(&output.stdout).trim());
}
