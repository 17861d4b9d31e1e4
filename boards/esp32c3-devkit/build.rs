//! Links with esp-hal's own script, which defines the chip's memory.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-Tlinkall.x", "-Tdefmt.x"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
