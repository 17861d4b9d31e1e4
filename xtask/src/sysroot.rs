//! Debian's compiler, with `core` and `alloc` compiled once per target and version and kept in the cache
//! folder.
//!
//! Debian packages the library's sources instead of compiled libraries for these targets.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::compiler::{DEBIANS_CARGO as CARGO, Toolchain, missing};
use crate::{Setup, child, setup, tools};

const RUSTC: &str = "/usr/bin/rustc";
const RUSTLIB: &str = "/usr/lib/rustlib";
const LINKER: &str = "/usr/bin/rust-lld";
const PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-llvm"];
const LIBRARIES: [&str; 3] = ["libcore-", "liballoc-", "libcompiler_builtins-"];

/// Debian's toolchain for all of `targets`, installed and built as far as it is missing.
pub fn find(targets: &[&str], setup: &Setup) -> Result<Toolchain> {
    install(setup)?;
    let root = root(setup)?;
    let wrapper = prepare(&root)?;
    let missing = missing(targets, &root);
    if !missing.is_empty() {
        build(&missing, &root)?;
    }
    Ok(Toolchain::debian(wrapper))
}

/// Returns whether [`find`] can work for `target` without installing or building anything.
pub fn is_built(target: &str, setup: &Setup) -> bool {
    is_installed() && root(setup).is_ok_and(|root| missing(&[target], &root).is_empty())
}

fn is_installed() -> bool {
    let source = Path::new(RUSTLIB).join("src/rust/library/vendor");
    [Path::new(RUSTC), Path::new(CARGO), Path::new(LINKER), &source].iter().all(|path| path.exists())
}

fn install(setup: &Setup) -> Result<()> {
    if is_installed() {
        return Ok(());
    }
    let whole = || format!("Debian's {} (and the lld that they ask for) are missing", PACKAGES.join(", "));
    tools::install(&PACKAGES, setup).with_context(whole)?;
    // The linker is a link to the lld of the compiler's LLVM, whose package nothing pulls in; its name is the
    // package's.
    if let (false, Ok(lld)) = (Path::new(LINKER).exists(), fs::read_link(LINKER)) {
        let package = lld.file_name().context("rust-lld links to nothing")?.to_string_lossy();
        tools::install(&[&package], setup).with_context(whole)?;
    }
    if !is_installed() {
        bail!("{} were installed without what we need of them", PACKAGES.join(", "));
    }
    Ok(())
}

/// The sysroot's place in the cache. The compiler's version is part of it, since no other one can read the
/// libraries.
fn root(setup: &Setup) -> Result<PathBuf> {
    let version = child::stdout_of(child::command(RUSTC).arg("-vV"))?;
    let field = |name| version.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown");
    let commit: String = field("commit-hash: ").chars().take(9).collect();
    Ok(setup::cache(setup)?.join(format!("sysroot-{}-{commit}", field("release: "))))
}

/// Lays out the sysroot around the host's libraries. Returns the rustc that uses it.
fn prepare(root: &Path) -> Result<PathBuf> {
    let wrapper = root.join("bin/rustc");
    let rustlib = root.join("lib/rustlib");
    fs::create_dir_all(root.join("bin"))?;
    fs::create_dir_all(&rustlib)?;
    for entry in fs::read_dir(RUSTLIB)? {
        let entry = entry?;
        let link = rustlib.join(entry.file_name());
        if link.symlink_metadata().is_err() {
            symlink(&entry.path(), &link)?;
        }
    }
    let script = format!("#!/bin/sh\nexec {RUSTC} --sysroot '{}' \"$@\"\n", root.display());
    if fs::read_to_string(&wrapper).ok().as_deref() != Some(&script) {
        fs::write(&wrapper, script)?;
        make_executable(&wrapper)?;
    }
    Ok(wrapper)
}

/// Compiles the libraries for `targets` and moves them into the sysroot at `root`.
fn build(targets: &[&str], root: &Path) -> Result<()> {
    eprintln!(
        "xtask: compiling core and alloc for {} (once, about a minute each; kept in {})",
        targets.join(", "),
        root.display()
    );
    let seed = tempfile::Builder::new().prefix("build-").tempdir_in(root)?;
    let home = seed.path().join("home");
    fs::create_dir_all(seed.path().join("src"))?;
    fs::create_dir_all(&home)?;
    fs::write(seed.path().join("src/lib.rs"), "#![no_std]\n")?;
    // A workspace of its own, and no debug information that would double the size.
    let manifest = "[package]\nname = \"seed\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(seed.path().join("Cargo.toml"), manifest)?;

    let mut cargo = child::command(CARGO);
    cargo.current_dir(seed.path()).args(["build", "--quiet", "--release", "--offline"]);
    cargo.arg("-Zbuild-std=core,alloc").arg("--target-dir").arg(seed.path().join("target"));
    for target in targets {
        cargo.args(["--target", target]);
    }
    // The sources' own dependencies come from beside them; for this build only, the whole registry is
    // replaced.
    cargo.args(["--config", "source.crates-io.replace-with='vendored'", "--config"]);
    cargo.arg(format!("source.vendored.directory='{RUSTLIB}/src/rust/library/vendor'"));
    cargo.env("RUSTC", RUSTC).env("RUSTC_BOOTSTRAP", "1").env("CARGO_HOME", &home);
    // Link-time optimisation reads it, and Cargo leaves it out by default.
    cargo.env("RUSTFLAGS", "-Cembed-bitcode=yes");
    let status = child::status(&mut cargo, "compiling core and alloc")?;
    anyhow::ensure!(status.success(), "core and alloc do not compile: {status}");

    for target in targets {
        let from = seed.path().join("target").join(target).join("release/deps");
        install_libraries(&from, target, seed.path(), root)?;
    }
    Ok(())
}

/// Puts the libraries in `from` in place in one step, so that no one ever sees half of them.
fn install_libraries(from: &Path, target: &str, scratch: &Path, root: &Path) -> Result<()> {
    let staged = scratch.join(format!("staged-{target}"));
    fs::create_dir_all(staged.join("lib"))?;
    for file in fs::read_dir(from).with_context(|| format!("{} is missing", from.display()))? {
        let file = file?;
        let name = file.file_name();
        let text = name.to_string_lossy();
        if text.ends_with(".rlib") && LIBRARIES.iter().any(|library| text.starts_with(library)) {
            fs::copy(file.path(), staged.join("lib").join(&name))?;
        }
    }
    let destination = root.join("lib/rustlib").join(target);
    match fs::rename(&staged, &destination) {
        // Another run of this tool was faster.
        Err(_) if missing(&[target], root).is_empty() => Ok(()),
        other => other.with_context(|| format!("{} cannot be written", destination.display())),
    }
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(unix)]
fn make_executable(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

// Debian's compiler is not installed anywhere else, so these are never reached.
#[cfg(not(unix))]
fn symlink(_to: &Path, _at: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn make_executable(_file: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_put_in_place_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (from, root) = (folder.path().join("deps"), folder.path().join("root"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(root.join("lib/rustlib")).unwrap();
        for name in ["libcore-1.rlib", "liballoc-1.rlib", "libcore-1.rmeta", "libseed-1.rlib"] {
            fs::write(from.join(name), name).unwrap();
        }
        for _ in 0..2 {
            // The second time stands for a run that was overtaken.
            install_libraries(&from, "t", folder.path(), &root).unwrap();
        }
        assert!(missing(&["t"], &root).is_empty());
        let mut names: Vec<_> = fs::read_dir(root.join("lib/rustlib/t/lib"))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["liballoc-1.rlib", "libcore-1.rlib"]);
    }
}
