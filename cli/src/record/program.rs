//! Finds out before a program runs whether it can be recorded.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{PT_INTERP, PT_LOAD};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol};

/// The file that a program's name stands for, as the system looks for it.
pub fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return program.is_file().then(|| program.to_owned());
    }
    let paths = env::var_os("PATH")?;
    let can_run = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&paths).map(|folder| folder.join(program)).find(can_run)
}

/// The known properties of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The reason why it cannot be recorded, and what to do.
    pub refused: Option<String>,
    /// The events that will be missing in its trace, and why.
    pub warning: Option<String>,
}

/// Allocators that programs bring along: a name, functions that only they have, and a text that stands in programs without symbols.
const ALLOCATORS: [(&str, &[&str], &[u8]); 5] = [
    ("jemalloc", &["je_malloc", "_rjem_malloc", "mallocx", "_rjem_mallocx"], b"<jemalloc>: "),
    ("mimalloc", &["mi_malloc", "mi_heap_malloc"], b"mimalloc: "),
    ("tcmalloc", &["tc_malloc", "TCMallocInternalMalloc"], b"tcmalloc: "),
    ("snmalloc", &["sn_malloc", "sn_rust_alloc"], b"snmalloc: "),
    ("rpmalloc", &["rpmalloc"], b"rpmalloc: "),
];

/// Looks at the file of a program. What is not understood is not objected to.
pub fn look(path: &Path, name: &str) -> Known {
    let mut known = Known::default();
    if let Some(proxy) = proxy(path, name) {
        known.warning = Some(proxy);
    }
    let Ok(file) = File::open(path) else { return known };
    let special = file.metadata().is_ok_and(|file| {
        let mode = file.mode();
        let own = rustix::process::getuid().as_raw() == file.uid();
        (mode & 0o4000 != 0 && !own)
            || (mode & 0o2000 != 0 && rustix::process::getgid().as_raw() != file.gid())
    });
    if special {
        let why = "runs with rights of its own (set-user-ID or set-group-ID), so the system loads nothing into it: run a copy without";
        known.refused = Some(format!("{name} {why}"));
        return known;
    }
    let cache = ReadCache::new(file);
    let Ok(elf) = object::File::parse(&cache) else { return known };
    if is_static(&cache) {
        known.refused = Some(format!(
            "{name} is statically linked, so the system loads nothing into it: link it dynamically \
             (Rust: a target ending in -gnu, without crt-static; C: without -static)"
        ));
        return known;
    }
    if let Some(own) = own_allocator(&elf, path) {
        known.warning = Some(format!(
            "{name} brings its own allocator ({own}): only what it asks the C library for is recorded. Build it with the system's \
             allocator to record all of it"
        ));
    }
    known
}

/// Returns whether the program starts without a dynamic linker.
fn is_static(cache: &ReadCache<File>) -> bool {
    fn of<Elf: FileHeader<Endian = object::Endianness>>(cache: &ReadCache<File>) -> Option<bool> {
        let header = Elf::parse(cache).ok()?;
        let endian = header.endian().ok()?;
        let parts = header.program_headers(endian, cache).ok()?;
        let has = |kind: u32| parts.iter().any(|part| part.p_type(endian) == kind);
        Some(has(PT_LOAD) && !has(PT_INTERP))
    }
    of::<object::elf::FileHeader64<_>>(cache)
        .or_else(|| of::<object::elf::FileHeader32<_>>(cache))
        .unwrap_or(false)
}

/// The name of the allocator that a program brings along.
fn own_allocator<'a>(elf: &object::File<'a, &'a ReadCache<File>>, path: &Path) -> Option<&'static str> {
    let own = |function: &str| {
        let known = |functions: &[&str]| functions.contains(&function);
        ALLOCATORS.iter().find(|(_, functions, _)| known(functions)).map(|&(name, ..)| name)
    };
    let defined = || elf.dynamic_symbols().chain(elf.symbols()).filter(|symbol| symbol.is_definition());
    if let Some(name) = defined().filter_map(|symbol| symbol.name().ok()).find_map(own) {
        return Some(name);
    }
    if elf.sections().any(|section| section.name().is_ok_and(|name| name == ".go.buildinfo")) {
        return Some("that of Go");
    }
    if defined().any(|symbol| symbol.name() == Ok("malloc")) {
        return Some("a function `malloc` of its own");
    }
    // Programs without symbols still have the allocator's messages.
    let stripped = elf.symbols().next().is_none();
    let bytes = if stripped { fs::read(path).ok()? } else { return None };
    let holds = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    ALLOCATORS.iter().find(|(.., text)| holds(text)).map(|&(name, ..)| name)
}

/// Says so if the program only starts another one.
fn proxy(path: &Path, name: &str) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let stem = real.file_name()?.to_string_lossy().into_owned();
    let rustup = stem == "rustup" || is_same_file(&real, &real.with_file_name("rustup"));
    (rustup && name != "rustup").then(|| {
        format!(
            "{name} is a proxy of rustup, which starts the real {name} in its place: that is what is recorded; `rustup which \
             {name}` tells its path"
        )
    })
}

/// Returns whether two paths lead to the same file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino())).ok();
    id(a).is_some_and(|own| id(b) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_system_finds_them() {
        assert!(find(Path::new("sh")).unwrap().is_absolute());
        assert_eq!(find(Path::new("there-is-no-such-program")), None);
        assert_eq!(find(Path::new("/there/is/none")), None);
        assert_eq!(look(&find(Path::new("sh")).unwrap(), "sh"), Known::default());
    }
}
