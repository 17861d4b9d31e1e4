//! Finds the smallest arena with a given chance of failure.

use allotment_trace::Program;
use indicatif::ProgressBar;
use serde::Serialize;

use super::history::{Plan, Point, survey};
use super::model::Model;
use super::risk::{self, Tail, chance, upper};
use crate::failure::Failure;
use crate::replay::arena::Arena;
use crate::replay::run::{STEP, smallest};
use crate::replay::subject::{Entry, Keep, Keeping, Make, Visitor, tiny, tiny_above, with};

/// Approximate number of arenas tried with all episodes.
pub const ROUNDS: u64 = 8;
/// The peak, divided by this, is the fine step between arenas.
const FINE: usize = 256;
/// Number of fine steps that the first search takes at once.
const COARSE: usize = 8;
/// Largest number of arenas in the first search.
const TRIED: usize = 64;
/// Largest number of arenas from the tail that are tried.
const CHECKED: usize = 6;

/// The method that found a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Failures in this arena were counted: the bound of a Poisson count or, without failures, the rule of three.
    Counted,
    /// Extrapolated from the failures in smaller arenas along an exponential tail.
    Tail,
}

impl Method {
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted, without failures the rule of three: 3 / episodes",
            Self::Tail => "extrapolated from smaller arenas: an exponential tail; none failed here",
        }
    }
}

/// The result for one way to keep blocks.
#[derive(Clone, Debug, Serialize)]
pub struct Searched {
    pub keep: Option<Keep>,
    pub arena: usize,
    pub chance: f64,
    pub upper: f64,
    pub method: Method,
    pub reached: bool,
    /// Bytes of the arena for episodes that need more than any drawn episode.
    pub unseen: usize,
    #[serde(rename = "curve")]
    pub points: Vec<Point>,
}

/// A search.
pub struct Search<'a> {
    pub entry: &'static Entry,
    pub model: &'a Model,
    pub memory: Arena,
    pub peak: usize,
    pub most: usize,
    pub plan: Plan,
    pub per_year: f64,
    pub risk: f64,
    pub bar: &'a ProgressBar,
}

struct Survey<'a, 'b> {
    search: &'a mut Search<'b>,
    arena: usize,
    keep: Option<Keep>,
}

impl Visitor for Survey<'_, '_> {
    type Out = Point;

    fn visit<M: Make>(self, make: &M) -> Point {
        let Search { model, memory, plan, bar, .. } = self.search;
        match self.keep {
            None => survey(make, model, memory, self.arena, plan, bar),
            Some(keep) => survey(&Keeping(make, keep), model, memory, self.arena, plan, bar),
        }
    }
}

struct Needed<'a> {
    program: &'a Program,
    memory: &'a mut Arena,
    limit: usize,
    keep: Option<Keep>,
}

impl Visitor for Needed<'_> {
    type Out = Option<usize>;

    fn visit<M: Make>(self, make: &M) -> Self::Out {
        let Self { program, memory, limit, keep } = self;
        match keep {
            None => smallest(make, program, memory, limit, 0),
            Some(keep) => smallest(&Keeping(make, keep), program, memory, limit, 0),
        }
    }
}

/// Returns the smallest arena that satisfies a run; `None` if none does.
pub fn needed(entry: &Entry, program: &Program, memory: &mut Arena, keep: Option<Keep>) -> Option<usize> {
    with(entry.id, Needed { program, memory, limit: entry.limit, keep })?
}

struct State;

impl Visitor for State {
    type Out = usize;

    fn visit<M: Make>(self, make: &M) -> usize {
        make.state()
    }
}

impl Search<'_> {
    /// Returns the bytes of the heap's state outside the arena.
    pub fn state(&self) -> usize {
        with(self.entry.id, State).unwrap_or(0)
    }

    /// Returns the next size of at least `bytes` that the heap can have.
    pub fn size(&self, bytes: usize) -> usize {
        match self.entry.id {
            "tiny-heap" => tiny_above(bytes),
            _ => bytes.next_multiple_of(STEP),
        }
    }

    /// Returns a smaller size, for `TinyHeap` the next smaller one.
    fn below(&self, bytes: usize) -> usize {
        match self.entry.id {
            "tiny-heap" => tiny(bytes - 1).unwrap_or(bytes),
            _ => (bytes - bytes / 32) / STEP * STEP,
        }
    }

    fn survey(&mut self, arena: usize, keep: Option<Keep>) -> Result<Point, Failure> {
        let entry = self.entry;
        with(entry.id, Survey { search: self, arena, keep })
            .ok_or_else(|| Failure::Other("no such heap".into()))
    }

    /// Looks for the smallest arena; `None` if even the largest has failures.
    ///
    /// # Errors
    /// If there is no such heap.
    pub fn search(&mut self, keep: Option<Keep>) -> Result<Option<Searched>, Failure> {
        let step = (self.peak / FINE).next_multiple_of(STEP).max(STEP);
        let mut points: Vec<Point> = Vec::new();
        // Search upwards until nothing fails.
        let mut arena = self.size(self.peak);
        loop {
            if points.len() == TRIED || arena > self.most {
                return Ok(None);
            }
            let point = self.survey(arena, keep)?;
            let served = point.failures == 0;
            points.push(point);
            if served {
                break;
            }
            arena = self.size(arena + COARSE * step);
        }
        // Then go in small steps from the last arena with failures, to measure the decrease.
        let mut lower = match points.len().checked_sub(2) {
            Some(before) => points[before].arena,
            None => {
                let lower = self.below(arena);
                points.push(self.survey(lower, keep)?);
                lower
            }
        };
        loop {
            lower = self.size(lower + step);
            if lower >= arena {
                break;
            }
            let point = self.survey(lower, keep)?;
            let served = point.failures == 0;
            points.push(point);
            if served {
                break;
            }
        }
        points.sort_by_key(|point| point.arena);
        points.dedup_by_key(|point| point.arena);
        self.answer(points, keep, step).map(Some)
    }

    /// Finds the smallest arena with at most the accepted chance.
    fn answer(
        &mut self,
        mut points: Vec<Point>,
        keep: Option<Keep>,
        step: usize,
    ) -> Result<Searched, Failure> {
        let wanted = risk::rate(self.risk, self.per_year);
        for _ in 0..CHECKED {
            let failing = points.iter().rposition(|point| point.failures > 0).map_or(0, |last| last + 1);
            let counted = |point: &Point| upper(point.failures) / point.episodes as f64;
            // All larger arenas must keep to the accepted chance as well.
            let enough = points.iter().rposition(|point| counted(point) > wanted).map_or(0, |last| last + 1);
            if let Some(point) = points.get(enough) {
                let chances = [point.failures as f64, upper(point.failures)]
                    .map(|failures| failures / point.episodes as f64);
                return Ok(self.searched(keep, point.arena, chances, Method::Counted, points));
            }
            let from = points.get(failing).map_or(0, |point| point.arena);
            let tail = Tail::fit(&points);
            let Some((tail, arena)) =
                tail.and_then(|tail| Some((tail, tail.arena(wanted, from, STEP, self.most)?)))
            else {
                break;
            };
            let arena = self.size(arena);
            if !points.iter().any(|point| point.arena == arena) {
                let point = self.survey(arena, keep)?;
                let failed = point.failures > 0;
                points.push(point);
                points.sort_by_key(|point| point.arena);
                if failed {
                    // Also try the arena just above, to know one without failures.
                    let above = self.size(arena + step);
                    points.push(self.survey(above.min(self.most), keep)?);
                    points.sort_by_key(|point| point.arena);
                    points.dedup_by_key(|point| point.arena);
                    continue;
                }
            }
            return Ok(self.searched(keep, arena, tail.rate(arena), Method::Tail, points));
        }
        let last = points.last().cloned().unwrap_or_default();
        let chances = [last.failures as f64, upper(last.failures)]
            .map(|failures| failures / last.episodes.max(1) as f64);
        Ok(self.searched(keep, last.arena, chances, Method::Counted, points))
    }

    fn searched(
        &self,
        keep: Option<Keep>,
        arena: usize,
        rates: [f64; 2],
        method: Method,
        points: Vec<Point>,
    ) -> Searched {
        let [chance, upper] = rates.map(|rate| chance(rate, self.per_year));
        let reached = upper <= self.risk * (1.0 + 1e-9);
        Searched { keep, arena, chance, upper, method, reached, unseen: 0, points }
    }
}
