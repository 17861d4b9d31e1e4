//! The file formats of a profile.

#![forbid(unsafe_code)]

use super::{Estimate, Snapshot};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// A function at a return address: name, file, line.
type Function = (String, String, u32);

/// Returns the functions at a return address, innermost first.
fn functions(address: usize) -> Vec<Function> {
    let mut found = Vec::new();
    // A return address points past the call.
    ::backtrace::resolve(address.wrapping_sub(1) as *mut _, |symbol| {
        let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name}"));
        let file = symbol.filename().map_or_else(String::new, |file| format!("{}", file.display()));
        found.push((
            name.replace(['\n', '\r'], " "),
            file.replace(['\n', '\r'], " "),
            symbol.lineno().unwrap_or(0),
        ));
    });
    found
}

/// Numbers texts from 1; the empty text has 0.
#[derive(Default)]
struct Texts {
    numbers: BTreeMap<String, u64>,
    all: Vec<String>,
}

impl Texts {
    fn of(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(&known) = self.numbers.get(text) {
            return known;
        }
        self.all.push(text.to_owned());
        self.numbers.insert(text.to_owned(), self.all.len() as u64);
        self.all.len() as u64
    }
}

/// A message of Protocol Buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}

/// Functions that only pass requests on, which `pprof` should omit.
const PLUMBING: &str = "<?allotment::.*|_*rust_.*|__rustc.*|<?alloc::.*|<?backtrace::.*";

impl Snapshot {
    /// Returns the estimate for a stack's live blocks of these sizes.
    fn live(&self, sizes: &[usize]) -> Estimate {
        let mut live = Estimate::default();
        sizes.iter().for_each(|&size| live.add(size, self.mean));
        live
    }

    /// Returns the functions at all addresses of these stacks.
    fn names<'a>(frames: impl Iterator<Item = &'a [usize]>) -> BTreeMap<usize, Vec<Function>> {
        let mut names: BTreeMap<usize, Vec<Function>> =
            frames.flatten().map(|&address| (address, Vec::new())).collect();
        for (&address, found) in &mut names {
            *found = functions(address);
        }
        names
    }

    /// Writes `profile.proto`, compressed.
    pub(super) fn write_pprof(&self, out: impl Write) -> io::Result<()> {
        let (mut profile, mut texts) = (Message::default(), Texts::default());
        let kinds = [
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ];
        for (kind, unit) in kinds {
            let (kind, unit) = (texts.of(kind), texts.of(unit));
            profile.message(1, |value| {
                value.number(1, kind).number(2, unit);
            });
        }
        for (frames, asked, sizes) in &self.stacks {
            let live = self.live(sizes);
            profile.message(2, |sample| {
                for &frame in frames.iter() {
                    sample.number(1, frame as u64);
                }
                for value in [asked.blocks, asked.bytes, live.blocks, live.bytes] {
                    sample.number(2, value.round() as u64);
                }
            });
        }
        let mut known: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (address, found) in Self::names(self.stacks.iter().map(|(frames, ..)| &**frames)) {
            let lines: Vec<(u64, u32)> = found
                .iter()
                .map(|(name, file, line)| {
                    let key = (texts.of(name), texts.of(file));
                    let next = known.len() as u64 + 1;
                    (*known.entry(key).or_insert(next), *line)
                })
                .collect();
            profile.message(4, |location| {
                location.number(1, address as u64).number(3, address as u64);
                for (function, line) in lines {
                    location.message(4, |place| {
                        place.number(1, function).number(2, line.into());
                    });
                }
            });
        }
        for ((name, file), id) in known {
            profile.message(5, |function| {
                function.number(1, id).number(2, name).number(3, name).number(4, file);
            });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let (space, bytes, live, plumbing) =
            (texts.of("space"), texts.of("bytes"), texts.of("inuse_space"), texts.of(PLUMBING));
        profile.number(7, plumbing).number(9, now);
        profile.message(11, |period| {
            period.number(1, space).number(2, bytes);
        });
        profile.number(12, self.mean).number(14, live);
        profile.bytes(6, b"");
        texts.all.iter().for_each(|text| profile.bytes(6, text.as_bytes()));
        let mut gzip = GzEncoder::new(out, Compression::default());
        gzip.write_all(&profile.0)?;
        gzip.finish()?.flush()
    }

    /// Writes the text form of a trace.
    pub(super) fn write_trace(&self, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::new(out);
        let events: usize = self.stacks.iter().map(|(_, _, sizes)| sizes.len()).sum();
        writeln!(out, "# name=profile events={events} sample={}", self.mean)?;
        let mut nodes: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut block = 0;
        let live = || self.stacks.iter().filter(|(_, _, sizes)| !sizes.is_empty());
        for (frames, _, sizes) in live() {
            let mut node = 0;
            for &frame in frames.iter().rev() {
                let next = nodes.len() + 1;
                let parent = node;
                node = *nodes.entry((parent, frame)).or_insert(next);
                if node == next {
                    writeln!(out, "#^n {parent} 0 {frame:x}")?;
                }
            }
            for size in sizes {
                writeln!(out, "#^{node}\na {block} {size} 0")?;
                block += 1;
            }
        }
        let mut texts = Texts::default();
        for (address, found) in Self::names(live().map(|(frames, ..)| &**frames)) {
            let mut numbers = vec![format!("#^f 0 {address:x}")];
            let mut string = |text: &str| -> io::Result<u64> {
                let known = texts.all.len();
                let number = texts.of(text);
                if texts.all.len() > known {
                    writeln!(out, "#^s {text}")?;
                }
                Ok(number)
            };
            for (name, file, line) in &found {
                numbers.push(format!("{} {} {line}", string(name)?, string(file)?));
            }
            if !found.is_empty() {
                writeln!(out, "{}", numbers.join(" "))?;
            }
        }
        out.flush()
    }
}
