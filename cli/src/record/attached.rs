//! Records a process that runs already: loads the preload library into it, and has the addresses of the allocation functions that
//! its program and libraries hold replaced by the library's.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use object::elf::{R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget};
use rustix::process::Pid;
use signal_hook::consts::{SIGQUIT, SIGTSTP, SIGUSR2};

use super::raw::is_complete;
use super::run::{Ended, named};
use super::tracee::{PATIENCE, Tracee, stop};
use crate::failure::Failure;

/// The functions that are replaced.
const FUNCTIONS: [&str; 13] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "free",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "dlclose",
    "prctl",
    "syscall",
];

/// The time between two looks at the process.
const INTERVAL: Duration = Duration::from_millis(100);

/// How a process is recorded.
pub struct Wanted<'a> {
    /// The beginning of the files' names.
    pub files: &'a Path,
    /// The first letter of how times are recorded, or 0.
    pub times: u8,
    pub stacks: bool,
    /// The mean of a sample, or 0.
    pub mean: u64,
    /// Not for longer than this.
    pub length: Option<Duration>,
}

/// A place of a module where the dynamic linker puts the address of a function.
struct Slot {
    place: u64,
    name: &'static str,
    /// True if the linker may look the function up at its first call. Others are the program's own variables too.
    is_lazy: bool,
}

/// The program or a library, as it lies in the process.
struct Module {
    start: u64,
    end: u64,
    /// Where it holds addresses of [`FUNCTIONS`].
    slots: Vec<Slot>,
    /// Addresses of the functions that it defines and that are called here.
    defined: BTreeMap<String, u64>,
    /// True if its code may hold a lock of the allocator or of the dynamic linker.
    is_locking: bool,
    /// True if it is the dynamic linker alone, which makes system calls in the middle of its work.
    is_linker: bool,
}

/// The modules of a process, by path and start.
#[derive(Default)]
struct Modules {
    modules: BTreeMap<(PathBuf, u64), Module>,
    /// The kernel's code for clocks, which the preload library calls under its lock.
    clock: Range<u64>,
}

impl Modules {
    /// Looks at what the process has loaded since the last time, and forgets what it has unloaded.
    fn update(&mut self, process: u32) -> io::Result<()> {
        let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
        let mut places: BTreeMap<(PathBuf, u64), u64> = BTreeMap::new();
        let mut last = None;
        for line in maps.lines() {
            let mut words = line.splitn(6, ' ');
            let (Some(range), _, Some(offset)) = (words.next(), words.next(), words.next()) else { continue };
            let Some((start, end)) = range.split_once('-') else { continue };
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            let path = words.nth(2).map_or("", str::trim);
            if path == "[vdso]" {
                self.clock = number(start)..number(end);
            }
            if !path.starts_with('/') {
                continue;
            }
            // All segments of a tiny library may lie in its first page.
            let goes_on = last.as_ref().is_some_and(|key: &(PathBuf, u64)| {
                key.0 == Path::new(path) && places.get(key) == Some(&number(start))
            });
            if number(offset) == 0 && !goes_on {
                last = Some((PathBuf::from(path), number(start)));
            }
            if let Some(key) = last.as_ref().filter(|(own, _)| own == Path::new(path)) {
                places.insert(key.clone(), number(end));
            }
        }
        self.modules.retain(|key, _| places.contains_key(key));
        for (key, end) in places {
            if let Entry::Vacant(entry) = self.modules.entry(key) {
                let (path, start) = entry.key();
                // A library whose file was replaced since cannot be read any more.
                let module = Module::read(process, path, *start, end)
                    .unwrap_or_else(|| Module { is_locking: true, ..Module::other(*start, end) });
                entry.insert(module);
            }
        }
        Ok(())
    }

    /// Returns the address of a function.
    fn function(&self, name: &str) -> Option<u64> {
        self.modules.values().find_map(|module| module.defined.get(name).copied())
    }

    /// Returns whether a preload library gets the process's calls already.
    fn are_hooked(&self, memory: &File) -> bool {
        let libraries =
            || self.modules.values().filter(|module| module.defined.contains_key("allotment_attach"));
        self.modules.values().filter(|_| libraries().next().is_some()).any(|module| {
            module.slots.iter().any(|slot| {
                let address = module.held(slot, memory);
                address.is_some()
                    && libraries().any(|library| library.defined.get(slot.name).copied() == address)
            })
        })
    }

    /// Returns whether this is the address of a function of that name.
    fn defines(&self, name: &str, address: u64) -> bool {
        self.modules.values().any(|module| module.defined.get(name) == Some(&address))
    }

    /// Stops a thread of the process, so that it calls functions.
    fn stop(&self, process: u32) -> io::Result<Tracee> {
        let mut tracee = stop(process, |address, in_call| self.is_locking(address, in_call))?;
        let gate = self.gate(tracee.memory());
        tracee.make_stack(gate.ok_or_else(|| io::Error::other("its C library makes no system calls"))?)?;
        Ok(tracee)
    }

    /// Returns where an instruction makes a system call: in the C library's function for that.
    fn gate(&self, memory: &File) -> Option<u64> {
        let libraries =
            self.modules.values().filter(|module| !module.defined.contains_key("allotment_attach"));
        libraries.filter_map(|module| module.defined.get("syscall")).find_map(|&function| {
            let mut code = [0; 64];
            memory.read_exact_at(&mut code, function).ok()?;
            let at = code.windows(2).position(|code| code == [0x0f, 0x05])?;
            Some(function + at as u64)
        })
    }

    /// Returns whether a thread there may hold a lock, in a system call or not.
    fn is_locking(&self, address: u64, in_call: bool) -> bool {
        let mut holding =
            self.modules.values().filter(|module| (module.start..module.end).contains(&address));
        if in_call {
            return holding.any(|module| module.is_linker);
        }
        self.clock.contains(&address) || holding.any(|module| module.is_locking)
    }
}

impl Module {
    /// Returns a file of which nothing is known.
    fn other(start: u64, end: u64) -> Self {
        Self { start, end, slots: Vec::new(), defined: BTreeMap::new(), is_locking: false, is_linker: false }
    }

    /// Returns what stands at a place. A file that is mapped but not loaded has other bytes there, or ends before.
    fn held(&self, slot: &Slot, memory: &File) -> Option<u64> {
        (self.start..self.end).contains(&slot.place).then(|| word(memory, slot.place)).flatten()
    }

    fn read(process: u32, path: &Path, start: u64, end: u64) -> Option<Self> {
        let inside = path.strip_prefix("/").ok()?;
        let path = Path::new(&format!("/proc/{process}/root")).join(inside);
        // To open a device or a pipe may do something.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let cache = ReadCache::new(File::open(path).ok()?);
        let elf = object::File::parse(&cache).ok()?;
        let first = elf.segments().find(|segment| segment.file_range().0 == 0)?;
        let bias = start.wrapping_sub(first.address() & !0xfff);
        let mut module = Self::other(start, end);
        let (mut has_locals, mut has_output) = (false, false);
        for symbol in elf.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
            let Ok(name) = symbol.name() else { continue };
            // Older C libraries have threads in a library of their own.
            module.is_locking |= ["malloc", "dlopen", "pthread_create", "__tls_get_addr"].contains(&name);
            has_locals |= name == "__tls_get_addr";
            has_output |= name == "printf";
            if CALLED.contains(&name) || FUNCTIONS.contains(&name) {
                module.defined.insert(name.into(), bias.wrapping_add(symbol.address()));
            }
        }
        // In musl it is one with the C library.
        module.is_linker = has_locals && !has_output;
        let Some(symbols) = elf.dynamic_symbol_table() else { return Some(module) };
        for (place, relocation) in elf.dynamic_relocations().into_iter().flatten() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let is_address = match r_type {
                R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT => true,
                R_X86_64_64 => relocation.addend() == 0,
                _ => false,
            };
            let name = symbols.symbol_by_index(symbol).ok().and_then(|symbol| symbol.name().ok());
            let known = name.and_then(|name| FUNCTIONS.into_iter().find(|&known| known == name));
            module.slots.extend(known.filter(|_| is_address).map(|name| Slot {
                place: bias.wrapping_add(place),
                name,
                is_lazy: r_type == R_X86_64_JUMP_SLOT,
            }));
        }
        Some(module)
    }
}

/// Functions that this tool has the process call: older C libraries have the second of them only.
const CALLED: [&str; 5] = ["dlopen", "__libc_dlopen_mode", "dlerror", "allotment_attach", "allotment_detach"];

/// A process whose allocations are being recorded.
struct Attached {
    process: u32,
    modules: Modules,
    /// The library's function that ends the recording.
    end: u64,
    /// The library's functions.
    hooks: BTreeMap<&'static str, u64>,
    /// What stood at the places that were changed.
    before: BTreeMap<u64, u64>,
}

impl Attached {
    /// Replaces the functions' addresses: at first all of them, later those of libraries that were loaded since.
    fn replace(&mut self, memory: &File) {
        for module in self.modules.modules.values() {
            for slot in &module.slots {
                let Some((&hook, address)) = self.hooks.get(slot.name).zip(module.held(slot, memory)) else {
                    continue;
                };
                // The program may have set its variable to another function, and a library that is being loaded may not be relocated yet.
                let is_ours = slot.is_lazy && (module.start..module.end).contains(&address)
                    || self.modules.defines(slot.name, address);
                if address != hook && is_ours && memory.write_all_at(&hook.to_ne_bytes(), slot.place).is_ok()
                {
                    self.before.insert(slot.place, address);
                }
            }
        }
    }

    /// Puts back what stood there.
    fn put_back(&self, memory: &File) {
        for module in self.modules.modules.values() {
            for slot in &module.slots {
                let is_hook = module.held(slot, memory) == self.hooks.get(slot.name).copied();
                let before = self.before.get(&slot.place).filter(|_| is_hook);
                // A library may be unloaded at this moment.
                let _ = before.map(|before| memory.write_all_at(&before.to_ne_bytes(), slot.place));
            }
        }
    }
}

fn word(memory: &File, place: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, place).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Lets the process read the library and write its files, even if it is another user's, and returns where its library is.
///
/// # Errors
/// If a file cannot be copied, or its owner cannot be changed.
pub fn readable(process: u32, library: &Path, files: &Path) -> Result<PathBuf, Failure> {
    let place = PathBuf::from(format!("/proc/{process}"));
    let owner = fs::metadata(&place).map_err(Failure::file(&place))?;
    if owner.uid() == rustix::process::geteuid().as_raw() {
        return library.canonicalize().map_err(Failure::file(library));
    }
    let copy = files.with_file_name("liballotment_preload.so");
    fs::copy(library, &copy).map_err(Failure::file(&copy))?;
    for path in [&copy, &files.with_extension("control"), files.parent().unwrap_or(files)] {
        chown(path, Some(owner.uid()), Some(owner.gid())).map_err(Failure::file(path))?;
    }
    Ok(copy)
}

/// Records a process until a signal, for a time, or until it ends.
///
/// # Errors
/// If the system does not allow it, or the library cannot be loaded into the process: what to do.
pub fn record(process: u32, library: &Path, wanted: &Wanted<'_>) -> Result<Ended, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in crate::signals::ending().chain([SIGQUIT, SIGUSR2]) {
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    // This tool must not sleep while a thread of the process waits for it.
    signal_hook::flag::register(SIGTSTP, Arc::default())?;
    let begun = begin_time(process);
    let mut attached = attach(process, library, wanted)?;
    say!("allotment: recording process {process}; ^C stops that, the process goes on");
    let until = wanted.length.map(|length| Instant::now() + length);
    let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"));
    let is_running = || begun.is_some() && begin_time(process) == begun;
    loop {
        let over = stopped.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until);
        if over || !is_running() || is_complete(wanted.files, process) {
            break;
        }
        thread::sleep(INTERVAL);
        if let (Ok(memory), Ok(())) = (&memory, attached.modules.update(process)) {
            attached.replace(memory);
        }
    }
    let mut left = Vec::new();
    if is_running() {
        if let Err(error) = memory.and_then(|memory| detach(&mut attached, &memory)) {
            say!("allotment: warning: process {process} keeps the recorder's file open: {error}");
        }
        left.extend(Pid::from_raw(process.cast_signed()).map(named));
    }
    Ok(Ended { process, status: 0, interrupted: false, left })
}

/// Returns when a process began, which tells it from a later one with the same number; `None` if it has ended.
fn begin_time(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    words.next().filter(|state| !["Z", "X"].contains(state))?;
    words.nth(18)?.parse().ok()
}

fn attach(process: u32, library: &Path, wanted: &Wanted<'_>) -> Result<Attached, Failure> {
    let refused = |what: String| Failure::Other(format!("process {process}: {what}"));
    let wrong = |error: io::Error| match error.raw_os_error() {
        Some(nix::libc::EPERM | nix::libc::EACCES) => refused(why_refused(process)),
        _ => refused(error.to_string()),
    };
    let mut modules = Modules::default();
    modules.update(process).map_err(wrong)?;
    let open = modules.function("dlopen").or_else(|| modules.function("__libc_dlopen_mode"));
    let open = open
        .ok_or_else(|| refused("its C library loads no others: start it with `allotment record`".into()))?;
    if is_confined(process) {
        return Err(refused(
            "it may make few system calls (seccomp): start it with `allotment record`, or run this tool in its container".into(),
        ));
    }
    let tracee = modules.stop(process).map_err(wrong)?;
    if modules.are_hooked(tracee.memory()) {
        return Err(refused(
            "it is being recorded already, or was when that tool was killed: restart it".into(),
        ));
    }
    let handle = tracee.call(open, &string(library), |path| [path, 2, 0, 0]).map_err(wrong)?;
    if handle == 0 {
        let why = error_of(&tracee, &modules).unwrap_or_else(|| "it is not there in its root".into());
        return Err(refused(format!("the preload library cannot be loaded: {why}")));
    }
    modules.update(process).map_err(wrong)?;
    let own = modules.modules.iter().find(|((path, _), _)| path == library).map(|(_, module)| module);
    let own = own.filter(|own| own.defined.contains_key("malloc"));
    let own = own.and_then(|own| {
        Some((own, *own.defined.get("allotment_attach")?, *own.defined.get("allotment_detach")?))
    });
    let (own, begin, end) =
        own.ok_or_else(|| refused(format!("{} is no preload library", library.display())))?;
    let hooks = FUNCTIONS.into_iter().filter_map(|name| Some((name, *own.defined.get(name)?))).collect();
    let arguments = |files| [files, u64::from(wanted.times), u64::from(wanted.stacks), wanted.mean];
    match tracee.call(begin, &string(wanted.files), arguments).map_err(wrong)? as u32 {
        0 => {}
        3 => return Err(refused("a thread is still in the last recording: try again".into())),
        2 => return Err(refused("it was recorded with --sample before: do so again, or restart it".into())),
        _ => {
            return Err(refused(format!(
                "it cannot write {}: choose another folder with -o",
                wanted.files.display()
            )));
        }
    }
    let mut attached = Attached { process, modules, end, hooks, before: BTreeMap::new() };
    attached.replace(tracee.memory());
    if attached.before.is_empty() {
        return Err(refused(
            "the system does not let this tool change its tables of functions: start it with `allotment record`".into(),
        ));
    }
    Ok(attached)
}

/// Has the process call its own functions again, and close the file.
fn detach(attached: &mut Attached, memory: &File) -> io::Result<()> {
    attached.modules.update(attached.process)?;
    attached.put_back(memory);
    let until = Instant::now() + PATIENCE;
    loop {
        let tracee = attached.modules.stop(attached.process)?;
        if tracee.call(attached.end, &[], |_| [0; 4])? as u32 == 0 {
            return Ok(());
        }
        drop(tracee);
        if Instant::now() > until {
            return Err(io::Error::other("its threads are busy in the recorder"));
        }
        thread::sleep(Duration::from_millis(3));
    }
}

/// Returns what the process's dynamic linker says of the last failure.
fn error_of(tracee: &Tracee, modules: &Modules) -> Option<String> {
    let text = tracee.call(modules.function("dlerror")?, &[], |_| [0; 4]).ok().filter(|&text| text != 0)?;
    let mut bytes = vec![0; 512];
    let size = tracee.memory().read_at(&mut bytes, text).ok()?;
    let text = bytes[..size].split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

fn string(path: &Path) -> Vec<u8> {
    [path.as_os_str().as_encoded_bytes(), b"\0"].concat()
}

/// Returns what the system says of a process under this name.
fn status(process: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().into())
}

/// Returns whether a system call might end the process: it has more filters than this tool, which may run in a container too.
fn is_confined(process: u32) -> bool {
    let number =
        |process, name| status(process, name).and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    let own = std::process::id();
    ["Seccomp:", "Seccomp_filters:"].into_iter().any(|name| number(process, name) > number(own, name))
}

/// Says what to do where the system does not let this tool attach.
fn why_refused(process: u32) -> String {
    let tracer = status(process, "TracerPid:").unwrap_or_else(|| "0".into());
    if tracer != "0" {
        return format!("the process {tracer} traces it, such as a debugger: end that first");
    }
    format!("the system does not let this user attach to it: run `sudo allotment record --pid {process}`")
}
