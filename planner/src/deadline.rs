//! The one clock that every search asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The moment at which a search has to return what it has, shared by all of its threads and phases.
///
/// It passes when its time is up, when [`Deadline::end`] is called, or when one of its flags is raised, and stays passed from
/// then on. Asking costs one reading of the clock, so loops ask through a [`Watch`].
#[derive(Debug)]
pub struct Deadline {
    clock: Clock,
    ended: AtomicBool,
    flags: Vec<Arc<AtomicBool>>,
    late: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Clock {
    Never,
    At(Instant),
    /// Passes after this many more looks: a clock for tests, which does not depend on the machine's speed.
    Looks(AtomicU64),
}

/// The longest limit that a clock is set to; longer ones count as no limit.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Deadline {
    fn with(clock: Clock) -> Self {
        Self { clock, ended: AtomicBool::new(false), flags: Vec::new(), late: Arc::default() }
    }

    /// Creates a deadline that never passes by itself.
    pub fn never() -> Self {
        Self::with(Clock::Never)
    }

    /// Creates a deadline that passes `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self::at(Instant::now() + limit.min(LONGEST))
    }

    /// Creates a deadline that passes at `moment`.
    pub fn at(moment: Instant) -> Self {
        Self::with(Clock::At(moment))
    }

    /// Creates a deadline that passes when it was asked `looks` times, whatever the time is.
    ///
    /// It makes tests independent of the machine's speed.
    pub fn after_looks(looks: u64) -> Self {
        Self::with(Clock::Looks(AtomicU64::new(looks)))
    }

    /// Also passes as soon as `flag` is true, for example because a signal handler has set it.
    #[must_use]
    pub fn or_when(mut self, flag: Arc<AtomicBool>) -> Self {
        self.flags.push(flag);
        self
    }

    /// Creates a deadline with the same flags that passes `limit` from now, and no later than this one does.
    pub fn within(&self, limit: Duration) -> Self {
        let moment = Instant::now() + limit.min(LONGEST);
        let clock = match &self.clock {
            Clock::Never => Clock::At(moment),
            Clock::At(own) => Clock::At(moment.min(*own)),
            Clock::Looks(looks) => Clock::Looks(AtomicU64::new(looks.load(Ordering::Relaxed))),
        };
        let ended = AtomicBool::new(self.ended.load(Ordering::Relaxed));
        Self { clock, ended, flags: self.flags.clone(), late: self.late.clone() }
    }

    /// Creates a deadline with the same flags that passes `grace` after this one.
    ///
    /// It is for what has to be done even if no time is left, such as a first plan.
    pub(crate) fn extended(&self, grace: Duration) -> Self {
        let clock = match &self.clock {
            Clock::Never => Clock::Never,
            Clock::At(own) => Clock::At((*own).max(Instant::now()) + grace),
            Clock::Looks(looks) => Clock::Looks(AtomicU64::new(looks.load(Ordering::Relaxed).max(64))),
        };
        Self { clock, ended: AtomicBool::new(false), flags: Vec::new(), late: self.late.clone() }
    }

    /// Returns the time that is left; `None` if there is no limit.
    pub fn left(&self) -> Option<Duration> {
        match &self.clock {
            Clock::At(moment) => Some(moment.saturating_duration_since(Instant::now())),
            _ => None,
        }
    }

    /// Returns the counter of looks that came after it had passed, which it shares with all deadlines made from it.
    ///
    /// Since a [`Watch`] looks once per interval of work, the counter tells how much work was done too late: what tests hold the
    /// phases to.
    pub fn late(&self) -> Arc<AtomicU64> {
        self.late.clone()
    }

    /// Makes it pass now.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Looks at the clock: true if the search has to stop.
    pub fn passed(&self) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            self.late.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let out_of_time = match &self.clock {
            Clock::Never => false,
            Clock::At(moment) => Instant::now() >= *moment,
            Clock::Looks(looks) => {
                looks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
            }
        };
        let passed = out_of_time || self.flags.iter().any(|flag| flag.load(Ordering::Relaxed));
        if passed {
            self.end();
        }
        passed
    }
}

/// A loop's view of a [`Deadline`]: counts the work that the loop says it has done and looks at the clock once per
/// [`Watch::INTERVAL`] of it.
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

    /// Bills `work` elementary steps; true if the loop has to stop, and from then on always.
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

    #[test]
    fn a_watch_looks_once_an_interval() {
        let deadline = Deadline::after_looks(3);
        let mut watch = Watch::new(&deadline);
        let work = (1_usize..).find(|_| watch.passed(1)).unwrap();
        assert_eq!(work as u64, 3 * Watch::INTERVAL + 1);
        // Large pieces of work are looked at one by one.
        let mut watch = Watch::new(&deadline);
        assert!(watch.passed(usize::MAX));
    }
}
