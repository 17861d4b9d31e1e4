//! Runs a C program on the library of feature `hard`: what it does wrong ends it, and what it does right goes on.
#![cfg(target_os = "linux")]

mod build;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Builds the program and the library, which gets a name of its own: the other tests build it without the feature.
fn built() -> &'static [PathBuf; 2] {
    static BUILT: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let [program, library] = ["hard", "liballotment-hard.so"].map(|name| folder.join(name));
        fs::copy(build::library("allotment-capi", "allotment", "hard"), &library).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hard.c");
        let mut cc = Command::new("cc");
        let output =
            cc.args(["-O1", "-fno-builtin", source, "-o"]).arg(&program).output().expect("`cc` starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [program, library]
    })
}

fn run(what: &str) -> Output {
    let [program, library] = built();
    Command::new(program).arg(what).env("LD_PRELOAD", library).output().unwrap()
}

#[test]
fn right_programs_go_on() {
    let output = run("right");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn misuse_ends_the_program() {
    let wrong = "no live block of the heap";
    for (what, text) in [
        ("double_free", wrong),
        ("double_free_after_write", wrong),
        ("double_free_later", wrong),
        ("free_inside", wrong),
        ("overflow", wrong),
        ("realloc_of_freed", wrong),
        ("write_after_free", "a block was written to after it was freed"),
        ("read_after_free", "read"),
    ] {
        let output = run(what);
        let end = if what == "read_after_free" { 11 } else { 6 };
        assert_eq!(output.status.signal(), Some(end), "{what}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(text), "{what}: {output:?}");
    }
}
