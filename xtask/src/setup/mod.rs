//! Programs that are no part of Rust, such as emulators: found on `PATH`, or unpacked into the cache folder.
//!
//! Nothing is ever installed: on Debian and its relatives the packages are downloaded with apt's own resolver and
//! unpacked (see [`debian`]), so an ordinary user can do it, no conflict with an installed package matters, and there
//! is one way to test instead of two. Elsewhere it prints the one command that installs the program.

mod debian;
pub mod status;
mod systems;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{Setup, child};

/// A program that this tool knows how to get.
struct Program {
    name: &'static str,
    /// Debian's and Ubuntu's packages that may hold it, in the order in which they are tried.
    packages: &'static [&'static str],
    /// Its path in the package.
    file: &'static str,
    /// Makes it print its version and end.
    version: &'static str,
    /// Arguments that it needs outside its usual place; `{}` stands for the folder that it was unpacked into.
    arguments: &'static [&'static str],
    /// A variable that it needs outside its usual place, and its value.
    variable: Option<(&'static str, &'static str)>,
}

const fn program(name: &'static str, packages: &'static [&'static str], file: &'static str) -> Program {
    Program { name, packages, file, version: "--version", arguments: &[], variable: None }
}

/// Node is not among them: Debian's starts from its usual place only, and the boards that need it have an interpreter.
const PROGRAMS: &[Program] = &[
    Program {
        arguments: &["-L", "{}/usr/share/qemu"],
        ..program("qemu-system-arm", &["qemu-system-arm"], "usr/bin/qemu-system-arm")
    },
    Program {
        arguments: &["-L", "{}/usr/share/qemu"],
        // Debian 13 has a package for RISC-V alone.
        ..program(
            "qemu-system-riscv32",
            &["qemu-system-riscv", "qemu-system-misc"],
            "usr/bin/qemu-system-riscv32",
        )
    },
    Program {
        arguments: &["-L", "{}/usr/share/qemu", "-L", "{}/usr/share/seabios"],
        ..program("qemu-system-x86_64", &["qemu-system-x86"], "usr/bin/qemu-system-x86_64")
    },
    program("qemu-aarch64", &["qemu-user"], "usr/bin/qemu-aarch64"),
    program("qemu-riscv64", &["qemu-user"], "usr/bin/qemu-riscv64"),
    program("riscv64-linux-gnu-gcc", &["gcc-riscv64-linux-gnu"], "usr/bin/riscv64-linux-gnu-gcc"),
    program(
        "x86_64-w64-mingw32-gcc-win32",
        &["gcc-mingw-w64-x86-64-win32"],
        "usr/bin/x86_64-w64-mingw32-gcc-win32",
    ),
    program("wine64", &["wine64"], "usr/lib/wine/wine64"),
    program("arm-none-eabi-gcc", &["gcc-arm-none-eabi"], "usr/bin/arm-none-eabi-gcc"),
    program("chromium", &["chromium"], "usr/lib/chromium/chromium"),
    program("jq", &["jq"], "usr/bin/jq"),
    program("sqlite3", &["sqlite3"], "usr/bin/sqlite3"),
    Program { version: "-v", ..program("lua5.4", &["lua5.4"], "usr/bin/lua5.4") },
    Program {
        variable: Some(("VALGRIND_LIB", "{}/usr/libexec/valgrind")),
        ..program("valgrind", &["valgrind"], "usr/bin/valgrind")
    },
];

/// Returns whether a program boots firmware; `--no-emulator` hides such programs.
fn is_emulator(program: &str) -> bool {
    program.starts_with("qemu-") || program == "node"
}

/// The path of a program that can be started now: on `PATH`, or unpacked by an earlier run.
pub fn find(program: &str, setup: &Setup) -> Option<PathBuf> {
    if setup.no_emulator && is_emulator(program) {
        return None;
    }
    which::which(program).ok().or_else(|| {
        let unpacked = bin(setup).ok()?.join(program);
        unpacked.is_file().then_some(unpacked)
    })
}

/// The path of a program, which is downloaded and unpacked first if need be.
///
/// With `afresh` it is unpacked even where it is installed.
///
/// # Errors
/// It cannot be had here; the error says why, and what the user can do.
pub fn provide(program: &str, afresh: bool, setup: &Setup) -> Result<PathBuf> {
    if let (false, Some(path)) = (afresh, find(program, setup)) {
        return Ok(path);
    }
    let advice = || format!("`{program}` is missing; {}", systems::advice(program));
    if setup.no_emulator && is_emulator(program) {
        return Err(anyhow::anyhow!("emulators are hidden by --no-emulator").context(advice()));
    }
    unpack(program, setup).with_context(advice)
}

/// Downloads and unpacks a program, and leaves a script in [`bin`] that starts it.
fn unpack(name: &str, setup: &Setup) -> Result<PathBuf> {
    let Some(program) = PROGRAMS.iter().find(|program| program.name == name) else {
        bail!("it cannot be unpacked into a folder of our own");
    };
    // In place of an older one that does not start any more, or where one is wanted afresh.
    let folder = download(&cache(setup)?.join("programs").join(name), program.packages, program.file, setup)?;
    let bin = bin(setup)?;
    fs::create_dir_all(&bin)?;
    let script = bin.join(name);
    let written = tempfile::NamedTempFile::new_in(&bin)?;
    fs::write(written.path(), launcher(program, &folder, &libraries(&folder)?))?;
    make_executable(written.path())?;
    written.persist(&script).with_context(|| format!("{} cannot be written", script.display()))?;

    let started = child::command(&script).arg(program.version).output().context("it does not start")?;
    if !started.status.success() {
        let _ = fs::remove_file(&script);
        let complaint = String::from_utf8_lossy(&started.stderr);
        bail!("it was unpacked, but does not run here: {}", complaint.trim());
    }
    Ok(script)
}

/// The folder that the first of `packages` that there is was unpacked into, which is done first if need be.
///
/// # Errors
/// It cannot be had here.
pub fn unpacked(name: &str, packages: &[&str], setup: &Setup) -> Result<PathBuf> {
    let folder = cache(setup)?.join("packages").join(name);
    if folder.is_dir() { Ok(folder) } else { download(&folder, packages, "", setup) }
}

/// Downloads the first of `packages` that there is, and unpacks it into `folder`. It must have `file`.
fn download(folder: &Path, packages: &[&str], file: &str, setup: &Setup) -> Result<PathBuf> {
    ensure!(!setup.no_install, "not downloaded because of --no-install");
    let parent = folder.parent().context("it is a folder in the cache")?;
    fs::create_dir_all(parent).with_context(|| format!("{} cannot be made", parent.display()))?;
    let staged = tempfile::Builder::new().prefix("unpacking-").tempdir_in(parent)?;
    debian::unpack(packages, staged.path(), &cache(setup)?, setup)?;
    ensure!(staged.path().join(file).exists(), "the package has no {file}");
    let _ = fs::remove_dir_all(folder);
    match fs::rename(staged.path(), folder) {
        // Another run of this tool was faster.
        Err(_) if folder.join(file).exists() => {}
        result => result.with_context(|| format!("{} cannot be written", folder.display()))?,
    }
    Ok(folder.to_owned())
}

/// A shared library whose name starts with `file`, from the first of `packages` that there is.
///
/// # Errors
/// It cannot be had here.
pub fn library(name: &str, packages: &[&str], file: &str, setup: &Setup) -> Result<PathBuf> {
    let folder = unpacked(name, packages, setup)?;
    for folder in libraries(&folder)? {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(file) {
                return Ok(entry.path());
            }
        }
    }
    bail!("{name} has no {file}")
}

/// A shell script that starts `program` from the folder that it was unpacked into.
fn launcher(program: &Program, folder: &Path, libraries: &[PathBuf]) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let root = folder.to_string_lossy();
    let placed = |text: &str| quoted(&text.replace("{}", &root));
    let libraries: Vec<_> = libraries.iter().map(|folder| folder.to_string_lossy()).collect();
    let mut script = String::from(
        "#!/bin/sh\n# Made by `cargo xtask`; the program beside it was unpacked, not installed.\n",
    );
    if !libraries.is_empty() {
        let libraries = quoted(&libraries.join(":"));
        script += &format!("LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n");
        script += "export LD_LIBRARY_PATH\n";
    }
    if let Some((name, value)) = program.variable {
        script += &format!("{name}={}\nexport {name}\n", placed(value));
    }
    script += &format!("exec {}", placed(&format!("{{}}/{}", program.file)));
    for argument in program.arguments {
        script += &format!(" {}", placed(argument));
    }
    script + " \"$@\"\n"
}

/// Every folder below `root` that holds shared libraries, in order of their paths.
pub fn libraries(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut holds = false;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                holds |= name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."));
            }
        }
        if holds {
            found.push(folder);
        }
    }
    found.sort();
    Ok(found)
}

/// `PATH` with the folder of `program` behind what it has.
///
/// # Errors
/// The folder's name cannot be part of `PATH`.
pub fn path_with(program: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(program.parent().map(Path::to_owned));
    Ok(std::env::join_paths(folders)?)
}

/// The folder of the scripts that start unpacked programs.
pub fn bin(setup: &Setup) -> Result<PathBuf> {
    Ok(cache(setup)?.join("bin"))
}

/// The folder for what takes long to download or to build.
///
/// # Errors
/// Neither `ALLOTMENT_CACHE` nor `XDG_CACHE_HOME` nor `HOME` is set.
pub fn cache(setup: &Setup) -> Result<PathBuf> {
    if let Some(folder) = &setup.cache {
        return Ok(folder.clone());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let parent = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    Ok(parent.context("set ALLOTMENT_CACHE to a folder that may keep some 500 MB")?.join("allotment"))
}

#[cfg(unix)]
pub fn make_executable(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

// Nothing is unpacked on other systems.
#[cfg(not(unix))]
pub fn make_executable(_file: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(cache: &Path) -> Setup {
        Setup { no_install: true, cache: Some(cache.into()), ..Setup::default() }
    }

    #[test]
    fn the_cache_folder_can_be_chosen() {
        assert_eq!(cache(&setup(Path::new("/somewhere"))).unwrap(), Path::new("/somewhere"));
    }

    #[cfg(unix)]
    #[test]
    fn a_program_starts_from_where_it_was_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("it's here");
        for library in ["usr/lib/a/libx.so.1", "lib/liby.so", "usr/share/libz.txt"] {
            let file = root.join(library);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let file = root.join("usr/bin/p");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "#!/bin/sh\necho \"$LD_LIBRARY_PATH|$V|$*\"\n").unwrap();
        make_executable(&file).unwrap();
        let program = Program {
            arguments: &["-L", "{}/d"],
            variable: Some(("V", "{}/v")),
            ..program("p", &[], "usr/bin/p")
        };
        let script = folder.path().join("p");
        fs::write(&script, launcher(&program, &root, &libraries(&root).unwrap())).unwrap();
        make_executable(&script).unwrap();
        let printed = child::stdout_of(child::command(&script).args(["a b", "c"])).unwrap();
        let root = root.to_str().unwrap();
        assert_eq!(printed, format!("{root}/lib:{root}/usr/lib/a|{root}/v|-L {root}/d a b c"));
    }

    #[test]
    fn what_was_unpacked_is_found_and_emulators_can_be_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let mut setup = setup(folder.path());
        let name = "qemu-system-of-no-machine";
        assert_eq!(find(name, &setup), None);
        fs::create_dir_all(bin(&setup).unwrap()).unwrap();
        fs::write(bin(&setup).unwrap().join(name), "").unwrap();
        assert_eq!(find(name, &setup), Some(folder.path().join("bin").join(name)));
        setup.no_emulator = true;
        assert_eq!(find(name, &setup), None);
        let error = format!("{:#}", provide(name, false, &setup).unwrap_err());
        assert!(error.contains("--no-emulator") && error.contains("is missing"), "{error}");
    }

    #[test]
    fn nothing_is_downloaded_against_the_users_will() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", provide("lua5.4", true, &setup(folder.path())).unwrap_err());
        assert!(error.contains("--no-install"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
