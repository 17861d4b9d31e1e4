//! Reads recordings of heaptrack 1.2 to 1.5 (file formats 2 and 3): lines of a letter and numbers in hexadecimal.
//!
//! A free names the size and the stack of its block, not the block itself: of several equal blocks, the newest is freed. A resize is a
//! free and an allocation.

use std::io::{self, BufRead, Read as _, Write};

use super::damaged;
use super::lines::{Lines, Place};

/// Longest line in bytes.
const LONGEST: u64 = 1 << 20;

/// Returns whether a file begins like such a recording.
pub fn is_at(start: &[u8]) -> bool {
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let is_word = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_hexdigit);
    line.strip_prefix(b"v ").is_some_and(|rest| rest.split(|&byte| byte == b' ').all(is_word))
}

/// A size and a stack, with the live blocks that have both.
struct Kind {
    size: u64,
    node: usize,
    live: Vec<u64>,
}

#[derive(Default)]
struct File {
    /// The version of the file format; version 3 has lengths before strings.
    version: u64,
    strings: Vec<String>,
    /// The node of each `t`.
    traces: Vec<usize>,
    /// The address of each `i`.
    addresses: Vec<u64>,
    kinds: Vec<Kind>,
    time: u64,
    blocks: u64,
}

/// Writes the trace of a recording.
///
/// # Errors
/// If it is damaged, or cannot be read or written.
pub fn convert(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    writeln!(output, "# name=heaptrack clock=ns")?;
    let (mut file, mut lines) = (File::default(), Lines::new(output));
    let (mut line, mut number) = (Vec::new(), 0_u64);
    loop {
        line.clear();
        number += 1;
        match (&mut *input).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The recorded program was killed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                say!("allotment: warning: line {number}: {error}; the events before that are used");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let text = String::from_utf8_lossy(&line);
        let read = file.line(text.trim_end_matches(['\n', '\r']), &mut lines)?;
        read.ok_or_else(|| damaged(format!("line {number} is not one of heaptrack's")))?;
    }
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16).ok()
}

impl File {
    fn string(&self, number: u64) -> String {
        let known = (number as usize).checked_sub(1).and_then(|index| self.strings.get(index));
        known.cloned().unwrap_or_default()
    }

    /// Reads a line; `None` if it is damaged.
    fn line(&mut self, line: &str, lines: &mut Lines<'_>) -> io::Result<Option<()>> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if kind == "s" {
            let text =
                if self.version >= 3 { rest.split_once(' ').map_or("", |(_, text)| text) } else { rest };
            self.strings.push(text.into());
            return Ok(Some(()));
        }
        if !["v", "i", "t", "a", "+", "-", "c"].contains(&kind) {
            return Ok(Some(()));
        }
        let Some(words) = rest.split(' ').map(hex).collect::<Option<Vec<u64>>>() else { return Ok(None) };
        let index = |word: u64| usize::try_from(word).ok();
        match (kind, &words[..]) {
            ("v", [_]) => self.version = 1,
            ("v", [_, version, ..]) => self.version = *version,
            ("i", [address, module, functions @ ..]) => {
                let places = functions.chunks(3).map(|place| {
                    let at = |n: usize| place.get(n).copied().unwrap_or(0);
                    let function = Some(self.string(at(0))).filter(|name| !name.is_empty());
                    (function, self.string(at(1)), at(2))
                });
                let module = self.string(*module);
                let module = module.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("?");
                let unknown = format!("{module}+{address:#x}");
                let mut places: Vec<Place> = places
                    .map(|(name, file, line)| (name.unwrap_or_else(|| unknown.clone()), file, line))
                    .collect();
                if places.is_empty() {
                    places.push((unknown.clone(), String::new(), 0));
                }
                lines.name(*address, &places)?;
                self.addresses.push(*address);
            }
            ("t", [address, parent]) => {
                let before = |number: u64| index(number)?.checked_sub(1);
                let parent = before(*parent).and_then(|parent| self.traces.get(parent)).copied().unwrap_or(0);
                let Some(&address) = before(*address).and_then(|address| self.addresses.get(address)) else {
                    return Ok(None);
                };
                self.traces.push(lines.node(parent, address)?);
            }
            ("a", [size, trace]) => {
                let node = index(*trace).and_then(|trace| self.traces.get(trace.checked_sub(1)?)).copied();
                self.kinds.push(Kind { size: *size, node: node.unwrap_or(0), live: Vec::new() });
            }
            ("+", [kind]) => {
                let Some(kind) = index(*kind).and_then(|kind| self.kinds.get_mut(kind)) else {
                    return Ok(None);
                };
                kind.live.push(self.blocks);
                let (node, size) = (kind.node, kind.size);
                writeln!(lines.output, "#^{node}\na {} {size} 0 @{}", self.blocks, self.time)?;
                self.blocks += 1;
            }
            ("-", [kind]) => {
                let Some(kind) = index(*kind).and_then(|kind| self.kinds.get_mut(kind)) else {
                    return Ok(None);
                };
                // A block from before the recording is not in the list.
                if let Some(block) = kind.live.pop() {
                    writeln!(lines.output, "f {block} @{}", self.time)?;
                }
            }
            // The file's times are in milliseconds.
            ("c", [time]) => self.time = self.time.max(time.saturating_mul(1_000_000)),
            _ => return Ok(None),
        }
        Ok(Some(()))
    }
}
