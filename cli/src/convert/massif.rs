//! Writes the output format of Valgrind's Massif, for `ms_print` and other viewers (Valgrind's manual, "Massif": snapshots with `time`,
//! `mem_heap_B`, and a `heap_tree` at the peak). Blocks are grouped by tag.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use allotment_trace::{Action, Event, Header, Record};

use super::Sink;
use super::live::Live;

/// Number of snapshots at which every second one is dropped.
const SNAPSHOTS: usize = 200;

/// Collects snapshots.
pub struct Massif<W: Write> {
    output: W,
    name: String,
    /// Whether the trace's times are in nanoseconds, and the first time.
    clock: bool,
    begin: Option<u64>,
    live: Live,
    /// From this event on the recorder itself frees what is still live.
    tail: Option<u64>,
    events: u64,
    /// Milliseconds since the first event with a time.
    now: u64,
    snapshots: Vec<Snapshot>,
    /// Number of events between snapshots.
    every: u64,
    peak: Peak,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Snapshot {
    events: u64,
    milliseconds: u64,
    bytes: u64,
}

#[derive(Default)]
struct Peak {
    at: Snapshot,
    tags: HashMap<Option<Arc<str>>, u64>,
    /// Whether the live tags are still those of the peak.
    pending: bool,
}

impl<W: Write> Massif<W> {
    /// Creates a collector that writes to `output` at the end.
    pub fn new(output: W, header: &Header) -> Self {
        Self {
            output,
            name: header.get("name").unwrap_or("(unknown)").into(),
            clock: header.get("clock") == Some("ns"),
            begin: None,
            live: Live::new(header),
            tail: header.tail(),
            events: 0,
            now: 0,
            snapshots: Vec::new(),
            every: 1,
            peak: Peak::default(),
        }
    }

    fn state(&self) -> Snapshot {
        Snapshot { events: self.events, milliseconds: self.now, bytes: self.live.bytes }
    }

    fn snapshot(&mut self, number: usize, time: u64, bytes: u64, tree: &str) -> io::Result<()> {
        write!(
            self.output,
            "#-----------\nsnapshot={number}\n#-----------\ntime={time}\nmem_heap_B={bytes}\n\
             mem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree={tree}\n"
        )
    }

    /// Writes the tree of the peak, with one leaf for each tag.
    fn tree(&mut self) -> io::Result<()> {
        let mut tags: Vec<_> = self.peak.tags.drain().collect();
        tags.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        writeln!(
            self.output,
            "n{}: {} (heap allocation functions) malloc/new/new[], --alloc-fns, etc.",
            tags.len(),
            self.peak.at.bytes
        )?;
        for (tag, bytes) in tags {
            // A line break in a tag would end the entry.
            let tag = tag.map_or_else(|| "(no tag)".into(), |tag| tag.escape_debug().to_string());
            writeln!(self.output, " n0: {bytes} 0x0: {tag} (tag)")?;
        }
        Ok(())
    }
}

impl<W: Write> Sink for Massif<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        let Record::Event(event) = record else { return Ok(()) };
        if event.action == Action::Free && self.tail.is_some_and(|tail| self.events >= tail) {
            return Ok(());
        }
        let Event { time, .. } = event;
        let before = self.live.bytes;
        let falls = |live: &Live| live.bytes < before;
        if self.peak.pending && !matches!(event.action, Action::Allocate { .. }) {
            // Copy the tags only once the live bytes fall, since most new peaks are followed by another.
            let tags = self.live.tags.clone();
            self.live.follow(event);
            if falls(&self.live) {
                (self.peak.tags, self.peak.pending) = (tags, false);
            }
        } else {
            self.live.follow(event);
        }
        self.events += 1;
        if let Some(time) = *time {
            let begin = *self.begin.get_or_insert(time);
            self.now = time.saturating_sub(begin) / 1_000_000;
        }
        let at = self.state();
        if at.bytes > self.peak.at.bytes {
            (self.peak.at, self.peak.pending) = (at, true);
        }
        if self.events.is_multiple_of(self.every) {
            self.snapshots.push(at);
            if self.snapshots.len() == SNAPSHOTS {
                let mut keep = false;
                self.snapshots.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.every *= 2;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.peak.pending {
            self.peak.tags = self.live.tags.clone();
        }
        // Milliseconds are too coarse for a short run, so use the numbers of the events as times.
        let end = self.state();
        if self.snapshots.last() != Some(&end) {
            self.snapshots.push(end);
        }
        let timed = self.clock && self.now >= SNAPSHOTS as u64;
        let unit = if timed { "ms" } else { "i" };
        let name = self.name.escape_debug().to_string();
        writeln!(self.output, "desc: (none)\ncmd: {name}\ntime_unit: {unit}")?;
        let when = |at: Snapshot| if timed { at.milliseconds } else { at.events };
        let (peak, mut number) = (self.peak.at, 1);
        let mut peaked = peak.bytes == 0;
        self.snapshot(0, 0, 0, "empty")?;
        for at in std::mem::take(&mut self.snapshots) {
            if !peaked && at.events >= peak.events {
                self.snapshot(number, when(peak), peak.bytes, "peak")?;
                self.tree()?;
                (peaked, number) = (true, number + 1);
            }
            if at != peak {
                self.snapshot(number, when(at), at.bytes, "empty")?;
                number += 1;
            }
        }
        if !peaked {
            self.snapshot(number, when(peak), peak.bytes, "peak")?;
            self.tree()?;
        }
        Ok(())
    }
}
