//! Finds the functions at the addresses of programs and libraries, by debug information or symbols.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::Loader;
use allotment_trace::{Frame, Module, Stacks};
use object::Object;
use object::read::ReadCache;

use crate::failure::Failure;

/// Longest name of a function in bytes; longer names are cut.
const LONGEST: usize = 4096;

/// Returns the build id of a program or a library in hexadecimal.
pub fn build_id(path: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(path).ok().filter(|_| path.is_file())?);
    let file = object::File::parse(&cache).ok()?;
    let id = file.build_id().ok()??;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Looks up the functions at all nodes without names whose files exist unchanged. Returns the lines that name them in a trace.
pub fn resolve(stacks: &mut Stacks) -> Vec<String> {
    Resolver::default().resolve(stacks)
}

/// The module of addresses in a device's memory.
const DEVICE: u32 = 0;

/// Looks up functions, and keeps the files open for the next time.
#[derive(Default)]
pub struct Resolver {
    /// The open files by the number of the module.
    files: HashMap<u32, Option<Loader>>,
    /// Number of nodes that it has looked up.
    seen: usize,
}

impl Resolver {
    /// Creates a resolver that finds the functions of a device's trace in `firmware`, if given.
    ///
    /// # Errors
    /// If the firmware cannot be read, or is not an object file.
    pub fn of_firmware(firmware: Option<&Path>) -> Result<Self, Failure> {
        let mut resolver = Self::default();
        if let Some(path) = firmware {
            File::open(path).map_err(Failure::file(path))?;
            let loader =
                Loader::new(path).map_err(|why| Failure::Other(format!("{}: {why}", path.display())))?;
            resolver.files.insert(DEVICE, Some(loader));
        }
        Ok(resolver)
    }

    /// Looks up the functions at new nodes, like [`resolve`].
    pub fn resolve(&mut self, stacks: &mut Stacks) -> Vec<String> {
        let mut wanted: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for &node in &stacks.nodes()[self.seen..] {
            if stacks.frames(node).is_empty() {
                wanted.entry(node.module).or_default().insert(node.address);
            }
        }
        self.seen = stacks.nodes().len();
        let mut names = Names::new(stacks.strings());
        for (module, addresses) in wanted {
            let path = (module as usize).checked_sub(1).and_then(|index| stacks.modules().get(index));
            let Some(file) = self.files.entry(module).or_insert_with(|| find(path?)) else { continue };
            for address in addresses {
                let frames = frames(file, address);
                if !frames.is_empty() {
                    names.add(module, address, &frames);
                    stacks.name(module, address, frames);
                }
            }
        }
        names.lines
    }
}

/// Opens the debug information of a module, where systems store it by build id, or else the module itself.
fn find(module: &Module) -> Option<Loader> {
    let path = PathBuf::from(&module.path);
    if let Some((first, rest)) = module.build_id.as_deref().and_then(|id| id.split_at_checked(2)) {
        let system = Path::new("/usr/lib/debug/.build-id").join(first).join(format!("{rest}.debug"));
        let home = |name: &str| env::var_os(name).map(PathBuf::from);
        let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
        let fetched = cache.map(|cache| cache.join(format!("debuginfod_client/{first}{rest}/debuginfo")));
        if let Some(found) = [Some(system), fetched].into_iter().flatten().find(|path| path.is_file())
            && let Ok(loader) = Loader::new(found)
        {
            return Some(loader);
        }
    }
    // Another build has other functions at these addresses.
    (build_id(&path) == module.build_id).then(|| Loader::new(&path).ok()).flatten()
}

/// Returns the functions at an address, the innermost first.
fn frames(file: &Loader, address: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    if let Ok(mut frames) = file.find_frames(address) {
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|name| Some(name.demangle().ok()?.into_owned()));
            let (path, line) = match &frame.location {
                Some(place) => (place.file, place.line.unwrap_or(0)),
                None => (None, 0),
            };
            let name = name.or_else(|| symbol(file, address).filter(|_| found.is_empty()));
            if name.is_some() || path.is_some() {
                let function = shortened(name.unwrap_or_else(|| "?".into()));
                found.push(Frame { function, file: path.map(Arc::from), line });
            }
        }
    }
    if found.is_empty() {
        found.extend(symbol(file, address).map(|name| Frame {
            function: shortened(name),
            file: None,
            line: 0,
        }));
    }
    found
}

/// Returns the symbol at an address.
fn symbol(file: &Loader, address: u64) -> Option<String> {
    let name = file.find_symbol(address)?;
    Some(addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned())
}

fn shortened(mut name: String) -> Arc<str> {
    if name.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        name.truncate(end);
    }
    name.into()
}

/// Writes names as lines, each string once.
struct Names {
    strings: HashMap<Arc<str>, usize>,
    count: usize,
    lines: Vec<String>,
}

impl Names {
    /// Creates a writer for a trace that already has `count` strings.
    fn new(count: usize) -> Self {
        Self { strings: HashMap::new(), count, lines: Vec::new() }
    }

    fn string(&mut self, text: &Arc<str>) -> usize {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        self.count += 1;
        self.lines.push(format!("s {text}"));
        self.strings.insert(text.clone(), self.count);
        self.count
    }

    fn add(&mut self, module: u32, address: u64, frames: &[Frame]) {
        let mut line = format!("f {module} {address:x}");
        for frame in frames {
            let function = self.string(&frame.function);
            let file = frame.file.as_ref().map_or(0, |file| self.string(file));
            line += &format!(" {function} {file} {}", frame.line);
        }
        self.lines.push(line);
    }
}
