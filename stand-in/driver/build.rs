//! Gives the library the soname of the CUDA driver, so that it is found under that name once it is loaded.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo::rerun-if-changed=build.rs");
}
