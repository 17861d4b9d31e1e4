//! For the module with threads: asks the linker for a memory that instances share, and for what an instance needs for a stack and
//! thread-local storage of its own.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_THREADS").is_none() {
        return;
    }
    let arguments = [
        "--shared-memory",
        "--import-memory",
        "--initial-memory=2097152",
        "--max-memory=1073741824",
        "--export=__stack_pointer",
        "--export=__tls_align",
        "--export=__tls_size",
        "--export=__wasm_init_tls",
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg={argument}");
    }
}
