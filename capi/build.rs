//! Makes `liballotment.so` a library that is never unloaded: threads that end, the thread of the option `background` and blocks that are
//! still in use need it. And links the unwinder into it, so that no other library has to be loaded with it at each start of a program.
//!
//! The standard library asks the linker for `libgcc_s`. A linker script of that name sends it to the static `libgcc_eh` where the
//! C compiler has it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if ["linux", "android"].contains(&target("OS").as_str()) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    let native = env::var("HOST").ok() == env::var("TARGET").ok();
    if target("OS") != "linux" || target("ENV") != "gnu" || !native {
        return;
    }
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let Ok(output) = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output() else { return };
    let library = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let Some(folder) = env::var_os("OUT_DIR") else { return };
    // A compiler that has no such file prints its name as it is.
    if library.is_absolute() && library.is_file() {
        let script = format!("INPUT(\"{}\")\n", library.display());
        if fs::write(Path::new(&folder).join("libgcc_s.so"), script).is_ok() {
            println!("cargo:rustc-link-search=native={}", Path::new(&folder).display());
        }
    }
}
