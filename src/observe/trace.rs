//! An observer that records every event in a ring of bytes.

#![forbid(unsafe_code)]

use super::event::{Action, Encoder, Event, Header, Record};
use super::{Observation, Observer, number_of, shortened};
use heapless::{Deque, String, Vec};

/// Most bytes of a tag's name that are recorded.
const LONGEST_LABEL: usize = 32;
/// Bytes of the longest record that this observer writes.
const LONGEST: usize =
    if Encoder::MAX_EVENT > LONGEST_LABEL + 16 { Encoder::MAX_EVENT } else { LONGEST_LABEL + 16 };

/// An observer that records every event in the [binary form](super::event), in a ring of `N` bytes. An allocation
/// takes 3 to 6 bytes, a free 2 to 4.
///
/// Reading the ring ([`Trace::read`], [`Trace::drain`]) makes room for more events. While the ring is full, the observer only counts
/// events, and records the count when the ring has room again, so losses are always visible. With a [`sink`](Trace::sink) no event is
/// lost, because the sink gets the contents of the ring whenever the ring is full.
///
/// On Cortex-M and RISC-V without an operating system, the trace has up to `CALLERS` (at most 8) return addresses of each allocation,
/// which `allotment view --elf FIRMWARE` names. They take 4 bytes per allocation, and 64 bytes of memory per caller. The innermost calls
/// come first, some of them within the allocator. Code for Cortex-M always has the frame pointers that lead to them, and code for RISC-V
/// has them with `-C force-frame-pointers=yes`; without frame pointers, the addresses are words of the stack that look like return
/// addresses. The program needs the linker script of `cortex-m-rt` or `riscv-rt`.
///
/// The bytes read, in order, form one trace, starting with the header. Ids are addresses. At most 32 bytes of each tag's name are
/// recorded; the first `TAGS` tags keep their names, and all further ones are called `other tags`. O(1) per event, plus O(`TAGS`) if
/// there is a tag, plus the time of the sink.
///
/// ```
/// use allotment::{Heap, Memory, Observed, heap, observe::{Trace, event::{Action, Record, Records}}};
/// use std::alloc::Layout;
///
/// static HEAP: Observed<Heap, Trace<1024>> = Observed::new(heap!(16 * 1024), Trace::new());
///
/// let block = HEAP.try_allocate(Layout::new::<[u8; 100]>())?;
/// let mut bytes = vec![];
/// HEAP.observers(|trace| trace.drain(|part| bytes.extend(part)));
/// let id = block.addr().get() as u64;
/// let allocate = Action::Allocate { id, size: 100, align: 1 };
/// assert_eq!(Records::new(&bytes)?.1.next(), Some(Ok(allocate.into())));
/// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u8; 100]>())? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trace<const N: usize, const TAGS: usize = 8, const CALLERS: usize = 0> {
    ring: Deque<u8, N>,
    encoder: Encoder,
    labels: Vec<&'static str, TAGS>,
    /// Whether the common name of the tags beyond `TAGS` has been recorded.
    others_named: bool,
    /// Number of bytes of the header that have been read.
    header: usize,
    /// Number of lost events whose loss is not recorded yet.
    unrecorded: u64,
    lost: u64,
    clock: Option<fn() -> u64>,
    sink: Option<fn(&[u8])>,
    /// Hashes and numbers of the stacks recorded last, since most allocations come from a few places. Two stacks have the same hash in
    /// one case of 2^32.
    stacks: [[(u32, u32); 8]; CALLERS],
}

/// Distance from a return address back into the call before it. Return addresses of Thumb code are odd.
const BACK: usize = 1 + cfg!(target_arch = "arm") as usize;

impl<const N: usize, const TAGS: usize, const CALLERS: usize> Default for Trace<N, TAGS, CALLERS> {
    fn default() -> Self {
        // `new` checks `N`.
        Self::new()
    }
}

impl<const N: usize, const TAGS: usize, const CALLERS: usize> Trace<N, TAGS, CALLERS> {
    /// Creates an empty ring, without a clock or a sink.
    pub const fn new() -> Self {
        const { assert!(N >= 128, "the ring of a trace has at least 128 bytes") }
        const { assert!(CALLERS <= 8, "an event of a trace has at most 8 callers") }
        Self {
            ring: Deque::new(),
            encoder: Encoder::new(),
            labels: Vec::new(),
            others_named: false,
            header: 0,
            unrecorded: 0,
            lost: 0,
            clock: None,
            sink: None,
            stacks: [[(0, 0); 8]; CALLERS],
        }
    }

    /// Sets the clock that times events, in any unit. In a static, the address of the clock makes the compiler place the whole ring in
    /// `.data`, which takes flash on a microcontroller; [`Trace::set_clock`] avoids that.
    pub const fn clock(mut self, clock: fn() -> u64) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the clock after the program has started.
    pub const fn set_clock(&mut self, clock: fn() -> u64) {
        self.clock = Some(clock);
    }

    /// Sets the function that gets the contents of the ring when the ring is full, and the rest in [`Trace::flush`]. The sink runs inside
    /// the observers' lock, and must not use the observed memory, unless the feature `std` is on. In a static it takes flash like a
    /// [`clock`](Trace::clock); [`Trace::set_sink`] avoids that.
    pub const fn sink(mut self, sink: fn(&[u8])) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Sets the sink after the program has started.
    pub const fn set_sink(&mut self, sink: fn(&[u8])) {
        self.sink = Some(sink);
    }

    /// Returns the number of events lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Moves bytes of the trace from the ring to `out` until either ends, and returns their number. O(length of `out`). Use it instead of
    /// [`Trace::drain`] to hold the observers' lock only briefly.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let mut count = 0;
        for place in out {
            let Some(byte) = self.next_byte() else { break };
            *place = byte;
            count += 1;
        }
        count
    }

    /// Passes all bytes in the ring to `take`, in order and in several parts. `take` runs inside the observers' lock.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let mut part = [0; 64];
        loop {
            match self.read(&mut part) {
                0 => return,
                size => take(&part[..size]),
            }
        }
    }

    /// Passes all bytes in the ring to the sink, if there is one.
    pub fn flush(&mut self) {
        if let Some(sink) = self.sink {
            self.drain(sink);
        }
    }

    fn next_byte(&mut self) -> Option<u8> {
        if let Some(&byte) = Header::HERE.encode().get(self.header) {
            self.header += 1;
            return Some(byte);
        }
        if self.ring.is_empty() {
            self.record_loss();
        }
        self.ring.pop_front()
    }

    fn room(&self) -> usize {
        N - self.ring.len()
    }

    /// Appends a record, and returns whether there was room.
    fn push(&mut self, record: &Record<'_>) -> bool {
        let mut bytes = [0; LONGEST];
        let room = self.room().min(LONGEST);
        match self.encoder.encode(record, &mut bytes[..room]) {
            Ok(size) => {
                for &byte in &bytes[..size] {
                    // There is room, because the record was encoded into as many bytes as the ring has left.
                    let _ = self.ring.push_back(byte);
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Records how many events were lost, if any and if there is room. Returns whether no loss is left to record.
    fn record_loss(&mut self) -> bool {
        if self.unrecorded > 0 && self.push(&Record::Lost { events: self.unrecorded }) {
            self.unrecorded = 0;
        }
        self.unrecorded == 0
    }

    /// Returns the number of a tag, and records its name at the first use. Returns `None` if there is no room for the name.
    fn tag(&mut self, tag: Option<&'static str>) -> Option<u32> {
        let Some(label) = tag else { return Some(0) };
        if let Some(index) = number_of(label, &self.labels) {
            return Some(index as u32 + 1);
        }
        let number = self.labels.len() as u32 + 1;
        if self.labels.len() == TAGS {
            if !self.others_named {
                self.others_named = self.push(&Record::Name { tag: number, name: "other tags" });
            }
            return self.others_named.then_some(number);
        }
        if !self.push(&Record::Name { tag: number, name: shortened(label, LONGEST_LABEL) }) {
            return None;
        }
        let _ = self.labels.push(label);
        Some(number)
    }

    /// Flushes the ring if it has no room for two records. Returns whether it has room for them now.
    fn make_room(&mut self) -> bool {
        if self.room() < 2 * LONGEST {
            self.flush();
        }
        self.room() >= 2 * LONGEST
    }

    /// Records the stack of the next event: first its calls if they are new, and then its number. Returns whether there was room.
    fn stack(&mut self, callers: &[usize]) -> bool {
        let callers = &callers[..callers.len().min(CALLERS)];
        if callers.is_empty() {
            return true;
        }
        let hash =
            callers.iter().fold(0, |hash: usize, call| (hash ^ call).wrapping_mul(0x9e37_79b1)) as u32 | 1;
        let known = self.stacks.as_flattened();
        let mut number = 0;
        if let Some(stack) = known.iter().find(|stack| stack.0 == hash) {
            number = stack.1;
        } else {
            let mut last = known.iter().map(|stack| stack.1).max().unwrap_or(0);
            let free = known.iter().position(|stack| stack.1 == 0);
            let place = free.unwrap_or(hash as usize / 2 % known.len());
            for (distance, call) in callers.iter().enumerate().rev() {
                if !self.line(&[("^n ", number as usize, 10), (" 0 ", call - BACK, 16)]) {
                    return false;
                }
                last += 1;
                number = last;
                // Until the stack is complete, the entry has only its number.
                self.stacks.as_flattened_mut()[place] = (if distance > 0 { 0 } else { hash }, last);
            }
        }
        // The line leaves room for the event. Without the event, the stack would apply to the next one.
        self.line(&[("^", number as usize, 10)])
    }

    /// Records a line of texts, each followed by a number in a given base. Returns whether there was room.
    fn line(&mut self, words: &[(&str, usize, usize)]) -> bool {
        let mut line = String::<32>::new();
        for &(text, number, base) in words {
            let _ = line.push_str(text);
            let digits = number.checked_ilog(base).unwrap_or(0);
            for place in (0..=digits).rev() {
                let digit = (number / base.pow(place) % base) as u32;
                let _ = line.push(char::from_digit(digit, base as u32).unwrap_or('?'));
            }
        }
        self.make_room() && self.push(&Record::Note { text: &line })
    }

    fn record(&mut self, action: Action, observation: &Observation<'_>) -> bool {
        let time = self.clock.map(|clock| clock());
        self.record_loss()
            && match self.tag(observation.tag) {
                Some(tag) => {
                    self.stack(observation.backtrace)
                        && self.push(&Record::Event(Event { action, time, tag }))
                }
                None => false,
            }
    }
}

impl<const N: usize, const TAGS: usize, const CALLERS: usize> Observer for Trace<N, TAGS, CALLERS> {
    const BACKTRACES: u32 = (CALLERS > 0) as u32;

    fn observe(&mut self, observation: &Observation<'_>) {
        let action = Action::from(observation.operation);
        self.make_room();
        if !self.record(action, observation) {
            self.unrecorded = self.unrecorded.saturating_add(1);
            self.lost = self.lost.saturating_add(1);
        }
    }
}

/// A [`sink`](Trace::sink) that logs each part of the trace with `defmt::println!("allotment trace {=[u8]}",
/// part)`. The logged parts, in order, form one trace; `cargo xtask run --trace FILE` collects them.
#[cfg(feature = "defmt")]
pub fn to_defmt(part: &[u8]) {
    defmt::println!("allotment trace {=[u8]}", part);
}
