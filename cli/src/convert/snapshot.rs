//! Writes snapshots in the format of `torch.cuda.memory._snapshot`, for the viewer at pytorch.org/memory_viz.
//!
//! Tags become the viewer's categories, except tags of `device` and a number, which name devices. A resize becomes a free and an
//! allocation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::sync::Arc;

use allotment_trace::{Action, Checked, Stacks};

use super::pickle::Pickler;
use crate::failure::Failure;
use crate::input::Input;
use crate::profile::labels;

/// Address of the first block without an address in the trace.
const BASE: u64 = 0x7000_0000_0000;

/// Blocks without an address occupy multiples of this many bytes, as in PyTorch.
const STEP: u64 = 512;

/// Segments begin and end at multiples of this many bytes.
const SEGMENT: u64 = 2 << 20;

/// Largest number of devices.
const DEVICES: usize = 64;

/// An allocation or a free.
struct Entry {
    is_free: bool,
    block: Block,
    time: u64,
}

#[derive(Clone)]
struct Block {
    device: usize,
    address: u64,
    /// The requested bytes, and the bytes that the block occupies.
    size: u64,
    taken: u64,
    /// Whether its address is made up, because the trace has none.
    placed: bool,
    stack: u32,
    category: Option<Arc<str>>,
}

/// A trace in the form of a snapshot.
pub struct Snapshot {
    entries: Vec<Entry>,
    live: HashMap<u64, Block>,
    stacks: Stacks,
    /// The free places by size, and the end of the last place.
    free: HashMap<u64, Vec<u64>>,
    end: u64,
    /// Refused requests: size and time.
    refused: Vec<(u64, u64)>,
    categories: bool,
}

impl Snapshot {
    /// Reads a trace.
    ///
    /// # Errors
    /// If it is invalid, empty or incomplete.
    pub fn read(input: &Input) -> Result<Self, Failure> {
        let mut reader = input.whole_trace()?.with_stacks();
        let scale = if reader.is_binary() || reader.header().get("clock") == Some("ns") { 1000 } else { 1 };
        let (entries, live, refused) = (Vec::new(), HashMap::new(), Vec::new());
        let (stacks, free) = (Stacks::default(), HashMap::new());
        let mut snapshot = Self { entries, live, stacks, free, end: BASE, refused, categories: false };
        let tail = reader.header().tail();
        let (mut events, mut time) = (0, None);
        for checked in &mut reader {
            let checked = checked.map_err(Failure::trace(input.shown()))?;
            // In the tail, the recorder itself freed the blocks that were still live.
            if tail.is_some_and(|tail| events >= tail) && checked.event.action == Action::Free {
                continue;
            }
            time = checked.event.time.map(|time| time / scale).or(time);
            snapshot.event(&checked, time.unwrap_or(events));
            events += 1;
        }
        if events == 0 {
            return Err(input.empty());
        }
        let refused = reader.failures().iter();
        snapshot.refused =
            refused.map(|one| (one.size, one.time.map_or(events, |time| time / scale))).collect();
        input.warn(reader.cut(), "the events before that are written");
        snapshot.stacks = reader.take_stacks();
        input.name(&mut snapshot.stacks)?;
        Ok(snapshot)
    }

    fn event(&mut self, checked: &Checked, time: u64) {
        let event = &checked.event;
        let known = self.live.remove(&event.id);
        if let Some(block) = &known {
            if block.placed {
                self.free.entry(block.taken).or_default().push(block.address);
            }
            self.entries.push(Entry { is_free: true, block: block.clone(), time });
        }
        let (Action::Allocate { size, .. } | Action::Reallocate { size }) = event.action else { return };
        let tag = event.tag.clone().or_else(|| known.as_ref()?.category.clone());
        let device = tag.as_deref().and_then(|tag| tag.strip_prefix("device")?.parse().ok());
        let device = device.filter(|&device| device < DEVICES);
        let category = tag.filter(|_| device.is_none());
        let device = device.or_else(|| known.as_ref().map(|block| block.device)).unwrap_or(0);
        let stack = if checked.stack > 0 { checked.stack } else { known.map_or(0, |block| block.stack) };
        self.categories |= category.is_some();
        let (address, taken) = match event.address {
            Some(address) => (address, size.max(1)),
            None => self.place(size),
        };
        let placed = event.address.is_none();
        let block = Block { device, address, size, taken, placed, stack, category };
        self.entries.push(Entry { is_free: false, block: block.clone(), time });
        self.live.insert(event.id, block);
    }

    /// Finds a place for a block without an address: a freed place or a new one.
    fn place(&mut self, size: u64) -> (u64, u64) {
        let taken = size.max(1).checked_next_multiple_of(STEP).unwrap_or(size);
        if let Some(address) = self.free.get_mut(&taken).and_then(Vec::pop) {
            return (address, taken);
        }
        let address = self.end;
        self.end = self.end.saturating_add(taken);
        (address, taken)
    }

    /// Returns the numbers of events and stacks.
    pub fn counts(&self) -> (u64, usize) {
        let stacks: HashSet<u32> = self.entries.iter().map(|entry| entry.block.stack).collect();
        (self.entries.len() as u64, stacks.iter().filter(|&&stack| stack > 0).count())
    }

    /// Returns the segments of a device: the end of each by its start.
    fn segments(&self, device: usize) -> BTreeMap<u64, u64> {
        let blocks = self.entries.iter().filter(|entry| !entry.is_free && entry.block.device == device);
        let mut ranges: Vec<(u64, u64)> = blocks
            .map(|Entry { block, .. }| {
                let end = block.address.saturating_add(block.taken);
                (block.address / SEGMENT * SEGMENT, end.checked_next_multiple_of(SEGMENT).unwrap_or(end))
            })
            .collect();
        ranges.sort_unstable();
        let mut segments: BTreeMap<u64, u64> = BTreeMap::new();
        for (start, end) in ranges {
            match segments.last_entry() {
                Some(mut last) if *last.get() >= start => {
                    let end = end.max(*last.get());
                    last.insert(end);
                }
                _ => {
                    segments.insert(start, end);
                }
            }
        }
        segments
    }

    /// Writes the snapshot.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let devices = self.entries.iter().map(|entry| entry.block.device + 1).max().unwrap_or(1);
        let segments: Vec<BTreeMap<u64, u64>> = (0..devices).map(|device| self.segments(device)).collect();
        let mut file = Pickler::new(output)?;
        let mut known = HashMap::new();
        file.dictionary(|file| {
            file.text("device_traces")?;
            file.list(0..devices, |file, device| self.trace(file, device, &segments[device], &mut known))?;
            file.text("segments")?;
            let all = (0..).zip(&segments).flat_map(|(device, segments)| {
                segments.iter().map(move |(&start, &end)| (device, start, end))
            });
            file.list(all, |file, segment| self.segment(file, segment, &mut known))
        })?;
        file.finish()
    }

    /// Writes the history of a device.
    fn trace<W: Write>(
        &self,
        file: &mut Pickler<W>,
        device: usize,
        segments: &BTreeMap<u64, u64>,
        known: &mut HashMap<u32, u32>,
    ) -> io::Result<()> {
        let first = self.entries.first().map_or(0, |entry| entry.time);
        let begin = segments.iter().map(|(&start, &end)| ("segment_alloc", start, end - start, first, None));
        let entries = self.entries.iter().filter(|entry| entry.block.device == device);
        let entries = entries.flat_map(|Entry { is_free, block, time }| {
            // The viewer joins both events.
            let actions: &[&str] = if *is_free { &["free_requested", "free_completed"] } else { &["alloc"] };
            actions.iter().map(move |&action| (action, block.address, block.size, *time, Some(block)))
        });
        let refused =
            self.refused.iter().filter(|_| device == 0).map(|&(size, time)| ("oom", 0, size, time, None));
        file.list(begin.chain(entries).chain(refused), |file, (action, address, size, time, block)| {
            file.dictionary(|file| {
                file.words(&[("action", action)])?;
                let name = if action == "oom" { "device_free" } else { "addr" };
                file.numbers(&[(name, address), ("size", size), ("stream", 0), ("time_us", time)])?;
                if self.categories {
                    // The viewer expects the category `unknown` if there is none.
                    let category =
                        block.filter(|_| action == "alloc").and_then(|block| block.category.as_deref());
                    file.words(&[("category", category.unwrap_or("unknown"))])?;
                }
                file.text("frames")?;
                self.frames(file, block.map_or(0, |block| block.stack), known)
            })
        })
    }

    /// Writes a segment with its blocks and the gaps between them.
    fn segment<W: Write>(
        &self,
        file: &mut Pickler<W>,
        (device, start, end): (usize, u64, u64),
        known: &mut HashMap<u32, u32>,
    ) -> io::Result<()> {
        let is_in = |block: &&Block| block.device == device && (start..end).contains(&block.address);
        let mut live: Vec<&Block> = self.live.values().filter(is_in).collect();
        live.sort_unstable_by_key(|block| block.address);
        let mut parts: Vec<(u64, u64, Option<&Block>)> = Vec::new();
        let mut at = start;
        for block in live {
            if block.address < at {
                continue;
            }
            if block.address > at {
                parts.push((at, block.address - at, None));
            }
            let taken = block.taken.min(end - block.address);
            parts.push((block.address, taken, Some(block)));
            at = block.address + taken;
        }
        if at < end {
            parts.push((at, end - at, None));
        }
        let (allocated, requested) =
            parts.iter().fold((0, 0), |(allocated, requested), (_, taken, block)| {
                block.map_or((allocated, requested), |block| (allocated + taken, requested + block.size))
            });
        file.dictionary(|file| {
            file.numbers(&[("device", device as u64), ("address", start), ("total_size", end - start)])?;
            file.numbers(&[("allocated_size", allocated), ("active_size", allocated)])?;
            file.numbers(&[("requested_size", requested), ("stream", 0)])?;
            file.words(&[("segment_type", "large")])?;
            file.text("frames")?;
            self.frames(file, 0, known)?;
            file.text("blocks")?;
            file.list(parts, |file, (address, size, block)| {
                file.dictionary(|file| {
                    let requested = block.map_or(0, |block| block.size);
                    file.numbers(&[("address", address), ("size", size), ("requested_size", requested)])?;
                    file.words(&[("state", if block.is_some() { "active_allocated" } else { "inactive" })])?;
                    file.text("frames")?;
                    self.frames(file, block.map_or(0, |block| block.stack), known)
                })
            })
        })
    }

    /// Writes the functions of a stack, or a reference if they were written before.
    fn frames<W: Write>(
        &self,
        file: &mut Pickler<W>,
        stack: u32,
        known: &mut HashMap<u32, u32>,
    ) -> io::Result<()> {
        if let Some(&known) = known.get(&stack) {
            return file.recall(known);
        }
        file.list(labels(&self.stacks, stack), |file, label| {
            file.dictionary(|file| {
                let name = label.file.as_deref().unwrap_or("");
                file.words(&[("name", &label.function), ("filename", name)])?;
                file.numbers(&[("line", label.line.into())])
            })
        })?;
        known.insert(stack, file.keep()?);
        Ok(())
    }
}
