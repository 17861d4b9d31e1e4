//! Tells the library's files that they are in a model.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=loom");
}
