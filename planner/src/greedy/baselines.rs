//! The rules of planners in other projects, re-implemented for comparison.

use std::cmp::Reverse;

use super::{Conflicts, Fit, place};
use crate::model::Instance;

/// A planner of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// TensorFlow Lite's arena planner: buffers that are always live first, then by decreasing size, best fit.
    TfLite,
    /// TensorFlow Lite Micro's greedy planner: by decreasing size, first fit.
    TfLiteMicro,
    /// TVM's unified static memory planner, greedy by size: by decreasing size, then by conflicts, first fit.
    TvmBySize,
    /// TVM's planner, greedy by conflicts: by decreasing number of conflicts, then by size, first fit.
    TvmByConflicts,
    /// By decreasing size, later buffers first among equals, best fit.
    SizeBestFit,
    /// First fit in the order of starts, like an allocator at run time.
    FirstFitByBirth,
    /// First fit, longest lifetime first.
    FirstFitByDuration,
}

impl Baseline {
    /// All baselines, the often good ones first, and the first few unlike each other.
    pub const ALL: [Self; 7] = [
        Self::TvmBySize,
        Self::FirstFitByDuration,
        Self::TfLiteMicro,
        Self::TvmByConflicts,
        Self::SizeBestFit,
        Self::TfLite,
        Self::FirstFitByBirth,
    ];

    /// Returns a short name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::TfLite => "TFLite",
            Self::TfLiteMicro => "TFLite Micro",
            Self::TvmBySize => "TVM by size",
            Self::TvmByConflicts => "TVM by conflicts",
            Self::SizeBestFit => "size, best fit",
            Self::FirstFitByBirth => "birth, first fit",
            Self::FirstFitByDuration => "duration, first fit",
        }
    }
}

/// Plans the buffers by `rule`.
pub fn baseline(instance: &Instance, conflicts: &Conflicts, rule: Baseline) -> Vec<u64> {
    let (order, fit) = baseline_order(instance, conflicts, rule);
    place(instance, conflicts, &order, fit)
}

/// Returns the order in which `rule` places buffers, and how it chooses offsets.
pub(crate) fn baseline_order(
    instance: &Instance,
    conflicts: &Conflicts,
    rule: Baseline,
) -> (Vec<usize>, Fit) {
    let buffers = instance.buffers();
    let (start, end) = buffers
        .iter()
        .fold((i64::MAX, i64::MIN), |(start, end), buffer| (start.min(buffer.start), end.max(buffer.end)));
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    let size = |n: usize| Reverse(buffers[n].size);
    let most = |n: usize| Reverse(conflicts.degree(n));
    let part = |n: usize| buffers[n].start != start || buffers[n].end != end;
    match rule {
        Baseline::TfLite => order.sort_by_key(|&n| (part(n), size(n))),
        Baseline::TfLiteMicro => order.sort_by_key(|&n| size(n)),
        Baseline::TvmBySize => order.sort_by_key(|&n| (size(n), most(n))),
        Baseline::TvmByConflicts => order.sort_by_key(|&n| (most(n), size(n))),
        Baseline::SizeBestFit => order.sort_by_key(|&n| (size(n), Reverse(n))),
        Baseline::FirstFitByBirth => order.sort_by_key(|&n| buffers[n].start),
        Baseline::FirstFitByDuration => order.sort_by_key(|&n| Reverse(buffers[n].steps())),
    }
    // Fixed buffers cannot move, so they go first.
    order.sort_by_key(|&n| buffers[n].fixed.is_none());
    let best = matches!(rule, Baseline::TfLite | Baseline::SizeBestFit);
    (order, if best { Fit::Best } else { Fit::First })
}
