//! The state of a pressure heap inside its lock.

use super::{Pressure, Watermarks, headroom::Headroom, reclaim::Registry};
use crate::error::out_of_memory::OutOfMemory;
use crate::heap::State;
use crate::observe::{Counters, Statistics, Stats};
use crate::placement::Placement;

/// A change of the pressure state, as passed to the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Transition {
    /// The state last reported to the hook.
    pub from: Pressure,
    /// The current state.
    pub to: Pressure,
    /// Free bytes, without the headroom.
    pub free: usize,
}

/// A hook that runs after transitions.
pub(super) type OnTransition = &'static (dyn Fn(Transition) + Sync);
/// A hook that runs after requests have finally failed.
pub(super) type OnOutOfMemory = &'static (dyn Fn(&OutOfMemory) + Sync);

/// The statistics of a [`PressureHeap`](super::PressureHeap): its counters, its pressure state and its hooks.
#[doc(hidden)] // Programs need not name it.
pub struct Monitor<const HOOKS: usize> {
    pub(super) counters: Counters,
    /// Bytes in use above which the pressure state changes. Like `below`, zero before the first update.
    above: usize,
    below: usize,
    pub(super) watermarks: Watermarks,
    /// The pressure according to the watermarks.
    own: Pressure,
    /// The pressure outside the heap, as the program reported it.
    pub(super) outside: Pressure,
    /// The state that was last reported to the hook.
    told: Pressure,
    telling: bool,
    saving: bool,
    /// Whether the placement saves no memory under pressure, so that a new value is all zero.
    pub(super) never_saves: bool,
    pub(super) on_transition: Option<OnTransition>,
    pub(super) on_out_of_memory: Option<OnOutOfMemory>,
    pub(super) lamenting: bool,
    pub(super) hooks: Registry<HOOKS>,
    pub(super) headroom: Headroom,
}

impl<const HOOKS: usize> Monitor<HOOKS> {
    /// Returns whether the use exceeds the band, or would with `more` bytes.
    #[inline(always)]
    pub(super) fn rises(&self, more: usize) -> bool {
        self.counters.used() + more > self.above
    }

    #[inline(always)]
    pub(super) fn has_fallen(&self) -> bool {
        self.counters.used() < self.below
    }

    pub(super) fn pressure(&self) -> Pressure {
        self.own.max(self.outside)
    }

    /// Returns the transition to report to the hook, unless the hook is running, which then gets it afterwards.
    pub(super) fn begin_telling(&mut self) -> Option<(OnTransition, Transition)> {
        let (from, to) = (self.told, self.pressure());
        if self.telling || from == to {
            return None;
        }
        self.told = to;
        let hook = self.on_transition?;
        self.telling = true;
        Some((hook, Transition { from, to, free: self.free().unwrap_or(0) }))
    }

    pub(super) fn end_telling(&mut self) {
        self.telling = false;
    }
}

impl<P: Placement, const HOOKS: usize> State<P, Monitor<HOOKS>> {
    /// Updates the pressure state, and reserves the headroom if it is missing. Called when the heap's use leaves the band. Returns
    /// whether the state differs from the last reported one.
    pub(super) fn look(&mut self) -> bool {
        if self.statistics.headroom.is_missing() {
            if let Some(bytes) = self.statistics.headroom.reserve_in(&mut self.placement) {
                self.statistics.counters.shrunk(bytes);
            }
        }
        let monitor = &mut self.statistics;
        let marks = monitor.watermarks.of(monitor.counters.capacity());
        // A heap without memory is not under pressure: it has none yet.
        if monitor.counters.capacity() > 0 {
            let largest = if marks.watches_block() { self.placement.largest_free() } else { usize::MAX };
            monitor.own = marks.next(monitor.own, monitor.free().unwrap_or(0), largest);
            (monitor.above, monitor.below) = marks.band(monitor.own);
        }
        let save = !monitor.never_saves && monitor.pressure() > Pressure::Normal;
        if save != monitor.saving {
            monitor.saving = save;
            self.placement.set_saving(save);
        }
        let monitor = &self.statistics;
        monitor.told != monitor.pressure()
    }

    /// Returns unused headroom to the heap. [`Self::look`] reserves it again.
    pub(super) fn return_headroom(&mut self) {
        if let Some(freed) = self.statistics.headroom.return_to(&mut self.placement) {
            self.statistics.counters.grown(freed);
        }
    }

    /// Returns the counters and the largest block that an ordinary request can get.
    pub(super) fn stats(&self) -> Stats {
        self.statistics.counters.stats(self.placement.largest_free())
    }
}

// SAFETY: counting neither allocates nor unwinds, and calls no hooks.
unsafe impl<const HOOKS: usize> Statistics for Monitor<HOOKS> {
    const EMPTY: Self = Self {
        counters: Counters::EMPTY,
        above: 0,
        below: 0,
        watermarks: Watermarks::NONE,
        own: Pressure::Normal,
        outside: Pressure::Normal,
        told: Pressure::Normal,
        telling: false,
        saving: false,
        never_saves: false,
        on_transition: None,
        on_out_of_memory: None,
        lamenting: false,
        hooks: Registry::EMPTY,
        headroom: Headroom::NONE,
    };

    #[inline(always)]
    fn allocated(&mut self, size: usize) {
        self.counters.allocated(size);
    }

    #[inline(always)]
    fn freed(&mut self, size: usize) {
        self.counters.freed(size);
    }

    #[inline(always)]
    fn resized(&mut self, old: usize, new: usize) {
        self.counters.resized(old, new);
    }

    #[inline(always)]
    fn found(&mut self, size: usize) {
        self.counters.found(size);
    }

    // The heap reports failed attempts here; `recover` counts requests that have finally failed.
    fn failed(&mut self, _: usize) {}

    fn grown(&mut self, size: usize) {
        self.counters.grown(size);
    }

    fn shrunk(&mut self, size: usize) {
        self.counters.shrunk(size);
    }

    fn reset(&mut self) {
        self.counters.reset();
    }

    fn free(&self) -> Option<usize> {
        self.counters.free()
    }

    fn snapshot(&self, largest_free: usize) -> Option<Stats> {
        self.counters.snapshot(largest_free)
    }
}
