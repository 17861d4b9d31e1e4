//! The clock that every search checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The moment at which a search has to return its best result so far, shared by all of its threads and phases.
///
/// It passes when its time is up, when a limit of work is reached, when [`Deadline::end`] is called, or when one of its flags is raised,
/// and stays passed from then on. Each look reads the clock, so loops look through a [`Watch`]. Work is counted in looks: a loop makes
/// one per [`Watch::INTERVAL`] elementary steps, on every machine alike.
#[derive(Debug)]
pub struct Deadline {
    moment: Option<Instant>,
    work: Option<Work>,
    ended: AtomicBool,
    flags: Vec<Arc<AtomicBool>>,
    late: Arc<AtomicU64>,
}

/// A limit of work, shared by all deadlines made from one.
#[derive(Clone, Debug)]
struct Work {
    done: Arc<AtomicU64>,
    until: u64,
}

impl Work {
    fn limit(looks: u64) -> Self {
        Self { done: Arc::default(), until: looks }
    }

    fn left(&self) -> u64 {
        self.until.saturating_sub(self.done.load(Ordering::Relaxed))
    }
}

/// Longest time limit; longer limits are cut to it.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Deadline {
    fn with(moment: Option<Instant>, work: Option<Work>) -> Self {
        Self { moment, work, ended: AtomicBool::new(false), flags: Vec::new(), late: Arc::default() }
    }

    /// Creates a deadline that never passes by itself.
    pub fn never() -> Self {
        Self::with(None, None)
    }

    /// Creates a deadline that passes `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self::with(Some(Instant::now() + limit.min(LONGEST)), None)
    }

    /// Creates a deadline that passes after `looks` looks, whatever the time, so that a single thread does the same work on every
    /// machine.
    pub fn after_looks(looks: u64) -> Self {
        Self::with(None, Some(Work::limit(looks)))
    }

    /// Makes it also pass after `looks` looks at it and at all deadlines made from it.
    #[must_use]
    pub fn or_after_looks(mut self, looks: u64) -> Self {
        self.work = Some(Work::limit(looks));
        self
    }

    /// Makes it also pass as soon as `flag` is true, for example because a signal handler has set it.
    #[must_use]
    pub fn or_when(mut self, flag: Arc<AtomicBool>) -> Self {
        self.flags.push(flag);
        self
    }

    /// Creates a deadline with the same flags that passes `limit` from now, but no later than this one.
    pub fn within(&self, limit: Duration) -> Self {
        let moment = Instant::now() + limit.min(LONGEST);
        self.made(Some(self.moment.map_or(moment, |own| own.min(moment))), self.work.clone())
    }

    /// Creates a deadline with the same flags that passes after one `parts`-th of the remaining time and work.
    pub fn part(&self, parts: u32) -> Self {
        let parts = parts.max(1);
        let moment = self.left().map(|left| Instant::now() + left / parts);
        let work = self.work.as_ref().map(|work| {
            let done = work.done.load(Ordering::Relaxed);
            Work { done: work.done.clone(), until: done.saturating_add(work.left() / u64::from(parts)) }
        });
        self.made(moment, work)
    }

    fn made(&self, moment: Option<Instant>, work: Option<Work>) -> Self {
        let ended = AtomicBool::new(self.ended.load(Ordering::Relaxed));
        Self { moment, work, ended, flags: self.flags.clone(), late: self.late.clone() }
    }

    /// Creates a deadline without flags that passes `grace` after this one.
    ///
    /// It is for work that must be done even if no time is left, such as a first plan.
    pub(crate) fn extended(&self, grace: Duration) -> Self {
        let moment = self.moment.map(|own| own.max(Instant::now()) + grace);
        let work = self.work.as_ref().map(|work| Work::limit(work.left().max(64)));
        Self { flags: Vec::new(), ended: AtomicBool::new(false), ..self.made(moment, work) }
    }

    /// Returns the time left; `None` if there is no limit.
    pub fn left(&self) -> Option<Duration> {
        self.moment.map(|moment| moment.saturating_duration_since(Instant::now()))
    }

    /// Returns whether neither time nor work is limited.
    pub fn is_never(&self) -> bool {
        self.moment.is_none() && self.work.is_none()
    }

    /// Returns the counter of looks after it had passed, shared with all deadlines made from it.
    ///
    /// Since a [`Watch`] looks once per interval of work, the counter shows how much work was done too late, which tests limit for each
    /// phase.
    pub fn late(&self) -> Arc<AtomicU64> {
        self.late.clone()
    }

    /// Makes it pass now.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Looks at the clock and returns whether the search has to stop.
    pub fn passed(&self) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            self.late.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let worked =
            self.work.as_ref().is_some_and(|work| work.done.fetch_add(1, Ordering::Relaxed) >= work.until);
        let out_of_time = worked || self.moment.is_some_and(|moment| Instant::now() >= moment);
        let passed = out_of_time || self.flags.iter().any(|flag| flag.load(Ordering::Relaxed));
        if passed {
            self.end();
        }
        passed
    }
}

/// A loop's view of a [`Deadline`]: counts the work that the loop reports and looks at the clock once per [`Watch::INTERVAL`] of it.
#[derive(Debug)]
pub struct Watch<'a> {
    deadline: &'a Deadline,
    left: u64,
    passed: bool,
}

impl<'a> Watch<'a> {
    /// Elementary steps between two looks at the clock. A step takes a few nanoseconds, so an interval takes about a millisecond.
    pub const INTERVAL: u64 = 1 << 17;

    /// Creates a watch that looks at the clock at its first [`Watch::passed`].
    pub fn new(deadline: &'a Deadline) -> Self {
        Self { deadline, left: 0, passed: false }
    }

    /// Counts `work` elementary steps; returns true once the loop has to stop, and always from then on.
    #[inline]
    pub fn passed(&mut self, work: usize) -> bool {
        let work = work as u64;
        if self.left > work {
            self.left -= work;
            return self.passed;
        }
        self.left = Self::INTERVAL;
        self.passed |= self.deadline.passed();
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_passed() {
        let deadline = Deadline::after_looks(2);
        assert_eq!([(); 4].map(|()| deadline.passed()), [false, false, true, true]);
        let flag = Arc::new(AtomicBool::new(false));
        let deadline = Deadline::never().or_when(flag.clone());
        assert!(!deadline.passed());
        flag.store(true, Ordering::Relaxed);
        assert!(deadline.passed());
        flag.store(false, Ordering::Relaxed);
        assert!(deadline.passed());
        assert!(Deadline::after(Duration::ZERO).passed());
        assert!(!Deadline::after(Duration::MAX).passed());
        assert!(Deadline::never().within(Duration::ZERO).passed());
    }

    /// Parts of a limit of work are counted together, and none goes beyond the whole.
    #[test]
    fn parts_share_their_work() {
        let whole = Deadline::after_looks(40);
        let part = whole.part(4);
        assert_eq!((0..20).filter(|_| !part.passed()).count(), 10);
        let rest = whole.part(1);
        assert_eq!((0..60).filter(|_| !rest.passed()).count(), 29);
        assert!(whole.passed());
        assert!(Deadline::never().part(3).is_never() && !Deadline::never().part(3).passed());
    }

    #[test]
    fn a_watch_looks_once_an_interval() {
        let deadline = Deadline::after_looks(3);
        let mut watch = Watch::new(&deadline);
        let work = (1_usize..).find(|_| watch.passed(1)).unwrap();
        assert_eq!(work as u64, 3 * Watch::INTERVAL + 1);
        // Every large piece of work causes a look.
        let mut watch = Watch::new(&deadline);
        assert!(watch.passed(usize::MAX));
    }
}
