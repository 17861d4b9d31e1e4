//! Finds out before a program runs whether it can be recorded.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{PT_INTERP, PT_LOAD};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol};

/// Finds the file of a program as the system does.
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
    /// Why it cannot be recorded, and what to do.
    pub refused: Option<String>,
    /// Which events its trace will lack, and why.
    pub warning: Option<String>,
    /// Where the preload library finds jemalloc's hooks: the address of `mallctl` in the file, and the file's path.
    pub hooks: Option<OsString>,
}

/// Allocators that programs bring along: a name, functions that only they have, and a text that stands in programs without symbols.
const ALLOCATORS: [(&str, &[&str], &[u8]); 5] = [
    ("jemalloc", &["je_malloc", "_rjem_malloc", "mallocx", "_rjem_mallocx"], b"<jemalloc>: "),
    ("mimalloc", &["mi_malloc", "mi_heap_malloc"], b"mimalloc: "),
    ("tcmalloc", &["tc_malloc", "TCMallocInternalMalloc"], b"tcmalloc: "),
    ("snmalloc", &["sn_malloc", "sn_rust_alloc"], b"snmalloc: "),
    ("rpmalloc", &["rpmalloc"], b"rpmalloc: "),
];

/// Names of jemalloc's function `mallctl` in programs.
const CONTROLS: [&str; 4] = ["mallctl", "je_mallctl", "_rjem_mallctl", "jemalloc_mallctl"];

/// Parts of the names of this project's functions in a program that has one of its heaps, and the same without symbols.
const OURS: [&str; 3] = ["9allotment2os7growing", "9allotment2os6cached", "9allotment4heap"];
const OUR_TEXTS: [&[u8]; 2] = [b"/os/growing/", b"the block is not from this heap"];

/// Interpreters that keep the objects of their language in memory of their own: a function that marks them, their name, and the variable
/// that turns them off, if there is one.
const INTERPRETERS: [(&str, &str, &str); 5] = [
    ("Py_BytesMain", "Python", "PYTHONMALLOC=malloc"),
    ("Py_Main", "Python", "PYTHONMALLOC=malloc"),
    ("zend_mm_alloc", "PHP", "USE_ZEND_ALLOC=0"),
    ("JLI_Launch", "Java", ""),
    ("_ZN2v82V810InitializeEi", "JavaScript", ""),
];

/// Looks at the file of a program, or at a script's interpreter. Passes files that it does not understand.
pub fn look(path: &Path, name: &str, library: &Path) -> Known {
    let mut known = Known::default();
    if let Some(proxy) = proxy(path, name) {
        known.warning = Some(proxy);
    }
    let interpreter = interpreter(path);
    let path = interpreter.as_deref().unwrap_or(path);
    let Ok(file) = File::open(path) else { return known };
    if has_rights(path, &file) {
        let why = "runs with rights of its own (set-user-ID, set-group-ID or capabilities), so the system loads nothing into it: \
                   run a copy without them";
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
    let other = fs::read(library).ok().and_then(|bytes| Some(machine(&object::File::parse(&*bytes).ok()?)));
    if let Some(other) = other.filter(|other| *other != machine(&elf)) {
        let own = machine(&elf);
        known.refused = Some(format!(
            "{name} is a program for {own}, and the preload library is for {other}: build the library for that, and name it with \
             --preload"
        ));
        return known;
    }
    if let Some(own) = own_allocator(&elf, path) {
        known.hooks = if own == "jemalloc" { hooks(&elf, path) } else { None };
        known.warning = Some(format!(
            "{name} brings its own allocator ({own}): only what it asks the C library for is recorded. Build it with the system's \
             allocator to record all of it"
        ));
    } else {
        known.warning = known.warning.or_else(|| own_objects(&elf, name));
    }
    known
}

/// Returns the kind of processor that a file is for.
fn machine<'a>(file: &impl Object<'a>) -> String {
    format!("{:?} with {} bits", file.architecture(), if file.is_64() { 64 } else { 32 })
}

/// Returns the interpreter of a script, looked up as `env` does.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    BufReader::new(File::open(path).ok()?).take(256).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let first = Path::new(words.next()?);
    if first.file_name()? == "env" {
        return find(Path::new(words.find(|word| !word.starts_with('-') && !word.contains('='))?));
    }
    Some(first.to_owned())
}

/// Returns whether the system would start the program with more rights than its user has, and without libraries of that user's.
fn has_rights(path: &Path, file: &File) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let has_bits = file.metadata().is_ok_and(|file| {
        let mode = file.mode();
        (mode & 0o4000 != 0 && user.as_raw() != file.uid())
            || (mode & 0o2000 != 0 && group.as_raw() != file.gid())
    });
    let has_capabilities = || rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    has_bits || (!user.is_root() && has_capabilities())
}

/// Returns a warning if the program is an interpreter whose objects are not recorded.
fn own_objects<'a>(elf: &object::File<'a, &'a ReadCache<File>>, name: &str) -> Option<String> {
    let functions: Vec<&str> = elf.dynamic_symbols().filter_map(|symbol| symbol.name().ok()).collect();
    let &(_, what, variable) = INTERPRETERS.iter().find(|(function, ..)| functions.contains(function))?;
    let objects =
        format!("{name} serves small objects of {what} from memory of its own, which are not recorded");
    match variable.split_once('=') {
        Some((name, _)) if env::var_os(name).is_some() => None,
        Some(_) => Some(format!("{objects}: set {variable} to record them")),
        None => Some(objects),
    }
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

/// Returns the name of the allocator that a program brings along.
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
    let is_ours = |name: &str| OURS.iter().any(|part| name.contains(part));
    if defined().filter_map(|symbol| symbol.name().ok()).any(is_ours) {
        return Some("allotment");
    }
    // Programs without symbols still have the allocator's messages.
    let stripped = elf.symbols().next().is_none();
    let bytes = if stripped { fs::read(path).ok()? } else { return None };
    let holds = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    if OUR_TEXTS.iter().any(|text| holds(text)) {
        return Some("allotment");
    }
    ALLOCATORS.iter().find(|(.., text)| holds(text)).map(|&(name, ..)| name)
}

/// Returns where a program with jemalloc has the function that installs hooks.
fn hooks<'a>(elf: &object::File<'a, &'a ReadCache<File>>, path: &Path) -> Option<OsString> {
    let is_control = |name: &str| CONTROLS.contains(&name);
    let mut defined = elf.symbols().chain(elf.dynamic_symbols()).filter(|symbol| symbol.is_definition());
    let control = defined.find(|symbol| symbol.name().is_ok_and(is_control))?;
    let mut value = OsString::from(format!("{:x}:", control.address()));
    value.push(path.canonicalize().ok()?);
    Some(value)
}

/// Returns a warning if the program only starts another one.
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
        let shell = find(Path::new("sh")).unwrap();
        assert_eq!(look(&shell, "sh", &shell), Known::default());
    }
}
