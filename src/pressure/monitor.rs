//! What a heap under watch keeps beside its counters, inside its lock.

use super::headroom::Headroom;
use super::reclaim::Registry;
use super::watermarks::{Pressure, Watermarks};
use crate::heap::{OutOfMemory, State};
use crate::observe::{Counters, Statistics, Stats};
use crate::placement::Placement;

/// A change of state, as the hook on it learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Transition {
    /// The state that the hook heard of last.
    pub from: Pressure,
    /// The state now.
    pub to: Pressure,
    /// Bytes that are free, headroom not included.
    pub free: usize,
}

/// A hook on transitions.
pub type OnTransition = &'static (dyn Fn(Transition) + Sync);
/// A hook on requests that have failed for good.
pub type OnOutOfMemory = &'static (dyn Fn(&OutOfMemory) + Sync);

/// The statistics of a [`PressureHeap`](super::PressureHeap): its counters, the state of
/// pressure, and the hooks.
pub struct Monitor<const HOOKS: usize> {
    counters: Counters,
    /// In use beyond this, or below that, the state changes. All zero before the first look.
    above: usize,
    below: usize,
    pub(super) watermarks: Watermarks,
    /// The state by the watermarks.
    own: Pressure,
    /// The state that the world outside reports.
    outside: Pressure,
    /// The state that the hook was told last.
    told: Pressure,
    telling: bool,
    saving: bool,
    pub(super) may_save: bool,
    pub(super) on_transition: Option<OnTransition>,
    pub(super) on_out_of_memory: Option<OnOutOfMemory>,
    pub(super) lamenting: bool,
    pub(super) hooks: Registry<HOOKS>,
    pub(super) headroom: Headroom,
}

impl<const HOOKS: usize> Monitor<HOOKS> {
    /// Whether `more` bytes in use lead, or led, beyond the band.
    #[inline(always)]
    pub(super) fn rises(&self, more: usize) -> bool {
        self.counters.used + more > self.above
    }

    #[inline(always)]
    pub(super) fn has_fallen(&self) -> bool {
        self.counters.used < self.below
    }

    pub(super) fn pressure(&self) -> Pressure {
        self.own.max(self.outside)
    }

    pub(super) fn set_outside(&mut self, pressure: Pressure) {
        self.outside = pressure;
    }

    pub(super) fn gave_up(&mut self, size: usize) {
        self.counters.failed(size);
    }

    pub(super) fn reset_peak(&mut self) {
        self.counters.peak = self.counters.used;
    }

    /// The transition that the hook has not heard of, unless it is running: then it hears of it next.
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

    fn stats(&self, largest_free: usize) -> Stats {
        self.counters.stats(largest_free)
    }
}

impl<P: Placement, const HOOKS: usize> State<P, Monitor<HOOKS>> {
    /// Brings the state of pressure up to date, and reserves the headroom if it is not there yet. What
    /// to do when the heap's use leaves the band.
    pub(super) fn look(&mut self) {
        if self.statistics.headroom.is_missing() {
            if let Some(taken) = self.statistics.headroom.take_from(&mut self.placement) {
                self.statistics.counters.shrunk(taken);
            }
        }
        let monitor = &mut self.statistics;
        let marks = monitor.watermarks.of(monitor.counters.capacity);
        // A heap without memory is not short of it: it has none.
        if monitor.counters.capacity > 0 {
            monitor.own = marks.next(monitor.own, monitor.free().unwrap_or(0));
            (monitor.above, monitor.below) = marks.band(monitor.own);
        }
        let save = monitor.may_save && monitor.pressure() > Pressure::Normal;
        if save != monitor.saving {
            monitor.saving = save;
            self.placement.set_saving(save);
        }
    }

    /// Gives unused headroom back to the heap, to be reserved again by [`Self::look`].
    pub(super) fn return_headroom(&mut self) {
        if let Some(freed) = self.statistics.headroom.return_to(&mut self.placement) {
            self.statistics.counters.grown(freed);
        }
    }

    /// The counters and the largest block that an ordinary request can get.
    pub(super) fn stats(&self) -> Stats {
        self.statistics.stats(self.placement.largest_free())
    }
}

// SAFETY: counting neither allocates nor unwinds; hooks are not called in here.
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
        may_save: true,
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

    // An attempt only: `gave_up` counts what has failed for good.
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
        Some(self.stats(largest_free))
    }
}
