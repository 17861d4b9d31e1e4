//! The files of the preload library: one for each process and program image, from which traces are made.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use allotment_event as device;
use allotment_trace::{Action, Event, Failure as Refused, Record};
use foldhash::HashMap;
use serde::Serialize;

use crate::failure::Failure;
use crate::symbols;

/// The contents of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub events: u64,
    /// Frees and reallocations of blocks whose allocation was not recorded; left out.
    pub unknown: u64,
    /// Live blocks whose address was allocated again: their frees were missed, and are added before.
    pub missed: u64,
    pub failures: u64,
    /// Blocks and bytes that are live at the end.
    pub live_blocks: u64,
    pub live_bytes: u64,
}

/// A file of the preload library.
pub struct Raw {
    pub path: PathBuf,
    pub process: u32,
    image: u32,
    /// `None` if recording could not begin.
    pub head: Option<RawHead>,
}

/// The first page of such a file (`head::Head` of the library).
pub struct RawHead {
    /// Bytes of the trace.
    pub length: u64,
    /// The system's error that ended the recording, or 0.
    stopped: u64,
    /// True if the recording ended at the wanted number of events.
    is_complete: bool,
    /// The program image that wrote it.
    pub image: Option<PathBuf>,
    /// The first program that was started without being recorded.
    pub unrecorded: Option<PathBuf>,
    /// The link `/proc/self/ns/pid`.
    namespace: Vec<u8>,
    /// Children that could create no file.
    pub without_file: u64,
}

impl RawHead {
    /// Bytes before the trace.
    const SIZE: usize = 4096;

    fn read(path: &Path) -> Option<Self> {
        Self::of(&File::open(path).ok()?)
    }

    fn of(file: &File) -> Option<Self> {
        let mut head = [0; Self::SIZE];
        file.read_exact_at(&mut head, 0).ok()?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |&bytes| u64::from_ne_bytes(bytes));
        let text =
            |at: usize, most: usize| head[at..at + most].split(|&byte| byte == 0).next().unwrap_or_default();
        let path = |text: &[u8]| (!text.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(text)));
        head.starts_with(b"ALLOTREC").then(|| Self {
            length: word(8),
            stopped: word(16),
            is_complete: word(24) != 0,
            image: path(text(40, usize::try_from(word(32)).unwrap_or(0).min(1024))),
            unrecorded: path(text(1072, 1024)).filter(|_| word(1064) > 0),
            namespace: text(2096, 64).to_vec(),
            without_file: word(2168),
        })
    }
}

/// Returns whether a process has recorded the wanted number of events; `files` is the beginning of the files' names.
pub fn is_complete(files: &Path, process: u32) -> bool {
    RawHead::read(&files.with_extension(format!("{process}.0"))).is_some_and(|head| head.is_complete)
}

/// Returns the trace of the program: `exec` starts several images of it, and the last one is the requested one. If it has none and those
/// of its children are wanted, the longest.
pub fn main_of(raws: &[Raw], process: u32, children: bool) -> Option<usize> {
    // A process in a namespace of its own may have the same number.
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let is_near =
        |raw: &Raw| raw.head.as_ref().is_none_or(|head| head.namespace == namespace.as_os_str().as_bytes());
    let own = raws.iter().rposition(|raw| raw.process == process && is_near(raw));
    let length = |(_, raw): &(usize, &Raw)| raw.head.as_ref().map_or(0, |head| head.length);
    own.or_else(|| raws.iter().enumerate().max_by_key(length).filter(|_| children).map(|(number, _)| number))
}

impl Raw {
    /// Says why recording could not begin.
    pub fn why_not(&self) -> String {
        format!(
            "recording could not begin in the process {}: the disk is full, or a limit on the size of files (`ulimit -f`) is below 256 KiB",
            self.process
        )
    }

    /// Returns the output's name with this process and image in it.
    pub fn beside(&self, output: &Path) -> PathBuf {
        let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (stem, rest) = name.split_once('.').unwrap_or((&name, "trace"));
        output.with_file_name(format!("{stem}.{}.{}.{rest}", self.process, self.image))
    }
}

/// Returns all files of the preload library, by process and image.
pub fn raws(folder: &Path) -> Result<Vec<Raw>, Failure> {
    let mut raws = Vec::new();
    for entry in fs::read_dir(folder).map_err(Failure::file(folder))? {
        let path = entry.map_err(Failure::file(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut parts = name.split('.').skip(1).map(|part| part.parse().ok());
        if let (Some(Some(process)), Some(Some(image))) = (parts.next(), parts.next()) {
            let head = RawHead::read(&path);
            raws.push(Raw { path, process, image, head });
        }
    }
    raws.sort_by_key(|raw| (raw.process, raw.image));
    Ok(raws)
}

/// A part of a recording.
pub enum Item {
    Record(Record),
    /// The stack of the next event.
    Stack(u32),
}

impl From<Record> for Item {
    fn from(record: Record) -> Self {
        Self::Record(record)
    }
}

/// Makes the trace of a recording, in which addresses stand for blocks, and corrects what can be wrong in that of a real program.
struct Repair {
    counts: Counts,
    /// The live blocks by their addresses: number and size.
    live: HashMap<u64, (u64, u64)>,
    /// Blocks so far.
    blocks: u64,
    /// The first time, which becomes 0.
    begin: Option<u64>,
    /// The last time.
    time: Option<u64>,
    addresses: bool,
    stacks: Option<Raws>,
    /// The tags of threads by their numbers, and that of the one whose events follow: none of the first thread.
    threads: HashMap<u32, Arc<str>>,
    thread: Option<Arc<str>>,
}

/// The last thread with a number in its tag: programs that start very many would have too many tags.
const NUMBERED: u32 = 1000;

/// The stacks of a recording, whose addresses are those of the process.
#[derive(Default)]
struct Raws {
    /// Start, end, bias of each module, by number; the last one to be named lies where they say.
    modules: Vec<[u64; 3]>,
    /// The first node's number less one.
    before: Option<u32>,
}

impl Raws {
    /// Returns the trace's line for a module.
    fn module(&mut self, text: &str, image: Option<&Path>) -> Option<String> {
        let mut words = text.strip_prefix("m ")?.splitn(4, ' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        self.modules.push([number()?, number()?, number()?]);
        let path = words.next().filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = path.or_else(|| image.map(Path::to_owned)).unwrap_or_default();
        let id = symbols::build_id(&path).unwrap_or_else(|| "-".into());
        Some(format!("m {id} {}", path.display()))
    }

    /// Returns the trace's line for a node.
    fn node(&mut self, number: u32, text: &str) -> Option<String> {
        let (parent, address) = text.split_once(' ')?;
        let before = *self.before.get_or_insert(number.saturating_sub(1));
        // How far it is from its caller repeats itself, which numbers do not.
        let parent = match u32::from_str_radix(parent, 16).ok()?.saturating_sub(before) {
            0 => 0,
            parent => i64::from(parent) - i64::from(number - before),
        };
        let address = u64::from_str_radix(address, 16).ok()?;
        let holds = |&(_, &[start, end, _]): &(usize, &[u64; 3])| (start..end).contains(&address);
        let module = self.modules.iter().enumerate().rev().find(holds);
        let (module, bias) = module.map_or((0, 0), |(module, &[_, _, bias])| (module + 1, bias));
        Some(format!("n {parent} {module} {:x}", address.wrapping_sub(bias)))
    }
}

impl Repair {
    fn new(addresses: bool, stacks: bool) -> Self {
        Self {
            counts: Counts::default(),
            live: HashMap::default(),
            blocks: 0,
            begin: None,
            time: None,
            addresses,
            stacks: stacks.then(Raws::default),
            threads: HashMap::default(),
            thread: None,
        }
    }

    /// Reads whose events follow, or what a thread is called; returns whether the note says that.
    fn thread(&mut self, text: &str) -> bool {
        let Some(text) = text.strip_prefix("t ") else { return false };
        let (number, name) = text.split_once(' ').map_or((text, None), |(number, name)| (number, Some(name)));
        let number = u32::from_str_radix(number, 16).unwrap_or(0);
        match name {
            None => self.thread = self.threads.get(&number).cloned(),
            Some(name) => {
                let name = if name.is_empty() { "thread" } else { name };
                let tag = if number > NUMBERED { name.into() } else { format!("{name}/{number}").into() };
                let before = self.threads.insert(number, tag);
                if before.is_some() && before == self.thread {
                    self.thread = self.threads.get(&number).cloned();
                }
            }
        }
        true
    }

    /// Passes on the trace's records for a record of the library.
    fn record(
        &mut self,
        record: device::Record<'_>,
        image: Option<&Path>,
        mut give: impl FnMut(Item) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let line = match record {
            device::Record::Event(event) => return self.event(&event, give),
            device::Record::Lost { events } => return give(Record::Lost(events).into()),
            device::Record::Note { text } if self.thread(text) => None,
            device::Record::Note { text } => {
                self.stacks.as_mut().and_then(|stacks| stacks.module(text, image))
            }
            device::Record::Name { tag, name } => {
                self.stacks.as_mut().and_then(|stacks| stacks.node(tag, name))
            }
        };
        line.map_or(Ok(()), |line| give(Record::Stack(line).into()))
    }

    /// Passes on the trace's records for an event, in order.
    fn event(
        &mut self,
        event: &device::Event,
        mut give: impl FnMut(Item) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // The library writes a time where it changes.
        if let Some(time) = event.time {
            self.time = Some(time.saturating_sub(*self.begin.get_or_insert(time)));
        }
        // With stacks it is in the trace where it changes, too.
        let time = if self.stacks.is_none() || event.time.is_some() { self.time } else { None };
        let (id, action, address) = match event.action {
            device::Action::Fail { size, align } => {
                self.counts.failures += 1;
                return give(Record::Failure(Refused { size, align, time, tag: self.thread.clone() }).into());
            }
            device::Action::Allocate { id: at, size, align } => {
                let number = self.blocks;
                self.blocks += 1;
                self.place(at, (number, size), &mut give)?;
                (number, Action::Allocate { size, align }, Some(at))
            }
            device::Action::Reallocate { id: at, to, size } => {
                let Some((number, _)) = self.live.remove(&at) else {
                    self.counts.unknown += 1;
                    return Ok(());
                };
                self.place(to, (number, size), &mut give)?;
                (number, Action::Reallocate { size }, (to != at).then_some(to))
            }
            device::Action::Free { id: at } => {
                let Some((number, _)) = self.live.remove(&at) else {
                    self.counts.unknown += 1;
                    return Ok(());
                };
                (number, Action::Free, None)
            }
        };
        self.counts.events += 1;
        let before = self.stacks.as_ref().and_then(|stacks| stacks.before);
        if let Some(before) = before.filter(|_| event.tag > 0 && action != Action::Free) {
            give(Item::Stack(event.tag.saturating_sub(before)))?;
        }
        let address = address.filter(|_| self.addresses);
        give(Record::Event(Event { id, action, time, tag: self.thread.clone(), address }).into())
    }

    /// Notes a block, and frees the block that was there if its free is missing.
    fn place(
        &mut self,
        at: u64,
        block: (u64, u64),
        mut give: impl FnMut(Item) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some((missed, _)) = self.live.insert(at, block) else { return Ok(()) };
        self.counts.missed += 1;
        self.counts.events += 1;
        let tag = self.thread.clone();
        give(Record::Event(Event { time: self.time, tag, ..Event::new(missed, Action::Free) }).into())
    }
}

impl RawHead {
    /// Warns if the recording ended before the program did.
    pub fn warn(&self) {
        if self.stopped > 0 {
            let why = match i32::try_from(self.stopped) {
                Ok(error) => io::Error::from_raw_os_error(error).to_string(),
                // `Head::CONFINED` of the library.
                Err(_) => {
                    "it allows itself few system calls (seccomp), and the recorder makes none then".into()
                }
            };
            say!("allotment: warning: recording ended before the program did: {why}");
        }
    }
}

/// Bytes that are read at a time: more than the longest record.
const CHUNK: usize = 1 << 20;

/// Reads the new part of a recording, again and again while the program runs.
pub struct Follower {
    path: PathBuf,
    file: File,
    image: Option<PathBuf>,
    /// `None` until the header is there.
    decoder: Option<device::Decoder>,
    /// Bytes of the trace that were read.
    at: u64,
    repair: Repair,
}

impl Follower {
    /// Opens a file of the preload library.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn new(path: &Path, addresses: bool, stacks: bool) -> Result<Self, Failure> {
        let file = File::open(path).map_err(Failure::file(path))?;
        let repair = Repair::new(addresses, stacks);
        Ok(Self { path: path.into(), file, image: None, decoder: None, at: 0, repair })
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the counts of what was read.
    pub fn counts(&self) -> Counts {
        let live = self.repair.live.values();
        let (blocks, bytes) = live.fold((0, 0), |(n, sum), &(_, size)| (n + 1, sum + size));
        Counts { live_blocks: blocks, live_bytes: bytes, ..self.repair.counts.clone() }
    }

    /// Returns the program image that is recorded, once that is known.
    pub fn image(&self) -> Option<&Path> {
        self.image.as_deref()
    }

    /// Passes on the new records.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read, and those of `give`.
    pub fn step(&mut self, mut give: impl FnMut(Item) -> Result<(), Failure>) -> Result<(), Failure> {
        let wrong = Failure::file(&self.path);
        let damaged = |why: device::DecodeError| Failure::Other(format!("{}: {why}", self.path.display()));
        let Some(head) = RawHead::of(&self.file) else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        loop {
            let size = head.length.saturating_sub(self.at).min(CHUNK as u64) as usize;
            let size =
                self.file.read_at(&mut chunk[..size], RawHead::SIZE as u64 + self.at).map_err(&wrong)?;
            let mut rest = &chunk[..size];
            if self.decoder.is_none() {
                if size < device::Header::SIZE {
                    return Ok(());
                }
                let header = device::Header::decode(rest).map_err(damaged)?;
                self.decoder = Some(device::Decoder::new(&header));
                self.image.clone_from(&head.image);
                rest = &rest[device::Header::SIZE..];
                if header.lost > 0 {
                    give(Record::Lost(header.lost).into())?;
                }
            }
            let Some(decoder) = &mut self.decoder else { return Ok(()) };
            while !rest.is_empty() {
                match decoder.decode(rest) {
                    Ok((record, size)) => {
                        self.repair.record(record, self.image.as_deref(), &mut give)?;
                        rest = &rest[size..];
                    }
                    // It goes on in the next part.
                    Err(device::DecodeError::Truncated) => break,
                    Err(why) => return Err(damaged(why)),
                }
            }
            let used = size - rest.len();
            self.at += used as u64;
            if used == 0 || self.at >= head.length {
                return Ok(());
            }
        }
    }
}
