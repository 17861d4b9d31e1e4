//! How a pool grows, reuses, trims and checks.

use core::fmt;
use core::time::Duration;
use std::vec::Vec;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The most that a pool may reserve.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Limit {
    /// What the source has.
    None,
    /// So many bytes.
    Bytes(usize),
    /// This part of the device's memory, above 0 and up to 1, of the capacity when the pool is made.
    Fraction(f64),
}

/// Sizes of the segments for large requests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Growth {
    /// All of one size.
    Fixed(usize),
    /// Each `percent` of the one before, from `first` up to `most`.
    Geometric {
        /// The first one.
        first: usize,
        /// 100 or more.
        percent: u32,
        /// The largest one.
        most: usize,
    },
    /// Each fitted to the request that it is for: of the multiples of that up to these bytes the one that leaves the least
    /// of the segment over when it is rounded up to the source's granularity, and among equals the shortest. As long as a
    /// tenth of what the pool has reserved is free, no more than the request itself.
    Fitted(usize),
}

/// What becomes of a block that is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reuse {
    /// It goes back to the source at once: every request is a call of the driver.
    None,
    /// It is kept for requests of its class, to which sizes are rounded up; no search, no coalescing.
    Basic,
    /// Blocks are split and coalesced. Memory moves to another stream when its last work there is known to be over.
    Advanced,
    /// And another stream takes what it needs before the work is over, and waits for it on the device; before a request
    /// fails, movable blocks are moved together.
    Aggressive,
}

/// How long a segment may stay empty before it goes back to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Age {
    /// This time, by the source's clock.
    Time(Duration),
    /// This many calls of [`Pool::step`](super::Pool::step).
    Steps(u64),
}

/// How a pool follows what the program asks for; see [`PoolOptions::follow_usage`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FollowUsage {
    /// Calls of [`Pool::step`](super::Pool::step) that are looked back at, 1 or more.
    pub window: u64,
    /// What is kept, over the most that was in use at once in the window: 1 or more.
    pub factor: f64,
}

/// What a pool checks beside what it always does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Checks {
    /// Fills what is freed with this byte, where the CPU sees the memory and its last work is over, and reports a
    /// write that came after that when the memory is used again.
    pub fill: Option<u8>,
    /// Keeps a granule free on both sides of every block, and where the CPU sees it, reports what was written there.
    pub guard: bool,
    /// Remembers where each block was asked for, for the list of leaks.
    pub sites: bool,
}

impl Checks {
    /// All of them.
    pub const ALL: Self = Self { fill: Some(0xdd), guard: true, sites: true };
}

/// How a [`Pool`](super::Pool) works. The default suits a GPU: small requests from segments of 2 MiB, larger ones from
/// segments of 20 MiB, those above 10 MiB from segments of their own; no limit, no trimming, no checks.
///
/// ```
/// use allotment::pool::{Limit, PoolOptions, Reuse};
/// let options = PoolOptions::new().limit(Limit::Fraction(0.8)).first_segment(512 << 20).reuse(Reuse::Aggressive);
/// assert!(options.check(256).is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct PoolOptions {
    pub(super) limit: Limit,
    pub(super) first_segment: usize,
    pub(super) small_limit: usize,
    pub(super) small_segment: usize,
    pub(super) growth: Growth,
    pub(super) exact_above: usize,
    pub(super) exact_step: usize,
    pub(super) granule: usize,
    pub(super) classes: Vec<usize>,
    pub(super) reuse: Reuse,
    pub(super) lean: bool,
    pub(super) trim_after: Option<Age>,
    pub(super) follow_usage: Option<FollowUsage>,
    pub(super) checks: Checks,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            limit: Limit::None,
            first_segment: 0,
            small_limit: MIB,
            small_segment: 2 * MIB,
            growth: Growth::Fixed(20 * MIB),
            exact_above: 10 * MIB,
            exact_step: 2 * MIB,
            granule: 0,
            classes: (8..30).map(|shift| 1 << shift).collect(),
            reuse: Reuse::Advanced,
            lean: false,
            trim_after: None,
            follow_usage: None,
            checks: Checks::default(),
        }
    }
}

impl PoolOptions {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most that the pool may reserve.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = limit;
        self
    }

    /// Bytes of the first segment, which is reserved when a stream is first used; 0 for none of its own.
    #[must_use]
    pub fn first_segment(mut self, bytes: usize) -> Self {
        self.first_segment = bytes;
        self
    }

    /// Requests of up to `limit` bytes get segments of their own of `segment` bytes, so that small blocks do not
    /// split large ones; a limit of 0 for no difference.
    #[must_use]
    pub fn small(mut self, limit: usize, segment: usize) -> Self {
        (self.small_limit, self.small_segment) = (limit, segment);
        self
    }

    /// Sizes of the segments for the other requests.
    #[must_use]
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    /// Requests above `bytes` bytes get a segment of just their size, rounded up to `step` bytes.
    #[must_use]
    pub fn exact_above(mut self, bytes: usize, step: usize) -> Self {
        (self.exact_above, self.exact_step) = (bytes, step);
        self
    }

    /// Rounds every request up to a multiple of `bytes`, a power of two not below the placement's granule; 0
    /// for that one.
    #[must_use]
    pub fn granule(mut self, bytes: usize) -> Self {
        self.granule = bytes;
        self
    }

    /// Sizes, rising, to which [`Reuse::Basic`] rounds requests up; what is larger has its own size. 22 powers of two
    /// from 256 bytes to 512 MiB by default.
    #[must_use]
    pub fn classes(mut self, sizes: &[usize]) -> Self {
        self.classes = sizes.to_vec();
        self
    }

    /// What becomes of freed blocks.
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// Reserves as little as it can, at the price of more calls of the driver: before the pool grows it uses free
    /// blocks of any kind and gives back what is empty and over, and requests above [`PoolOptions::exact_above`] keep
    /// their segments to themselves.
    #[must_use]
    pub fn lean(mut self, on: bool) -> Self {
        self.lean = on;
        self
    }

    /// Gives segments back that were empty for so long.
    #[must_use]
    pub fn trim_after(mut self, age: Age) -> Self {
        self.trim_after = Some(age);
        self
    }

    /// Keeps what the program uses, and no more. At every [`Pool::step`](super::Pool::step), segments go back that were
    /// empty for a whole window, and others that are empty, those first that are empty for longest, until
    /// `factor` times the most is reserved that was active at once in the window. Nothing is waited for.
    ///
    /// With [`Reuse::Basic`] the classes follow too: once in a window, to those that are given the same number is added,
    /// fitted to the sizes that were asked for in it so that the least is lost by rounding; and of each class no more
    /// blocks are kept than `factor` times the most that were live at once, in this window and the one before.
    #[must_use]
    pub fn follow_usage(mut self, follow: FollowUsage) -> Self {
        self.follow_usage = Some(follow);
        self
    }

    /// What is checked.
    #[must_use]
    pub fn checks(mut self, checks: Checks) -> Self {
        self.checks = checks;
        self
    }

    /// Whether a pool whose placement has granules of `granule` bytes can work so. O(classes).
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self, granule: usize) -> Result<(), OptionsError> {
        let wrong = |option| Err(OptionsError { option });
        match self.limit {
            Limit::Fraction(part) if !(part > 0.0 && part <= 1.0) => return wrong("limit"),
            Limit::Bytes(0) => return wrong("limit"),
            _ => {}
        }
        if self.small_limit > self.small_segment || self.small_limit > 0 && self.small_segment < 4 * KIB {
            return wrong("small");
        }
        match self.growth {
            Growth::Fixed(bytes) | Growth::Fitted(bytes) if bytes < 4 * KIB => return wrong("growth"),
            Growth::Geometric { first, percent, most }
                if first < 4 * KIB || percent < 100 || most < first =>
            {
                return wrong("growth");
            }
            _ => {}
        }
        if let Some(FollowUsage { window, factor }) = self.follow_usage {
            if window == 0 || !(factor >= 1.0 && factor.is_finite()) {
                return wrong("follow_usage");
            }
        }
        if self.exact_step == 0 || !self.exact_step.is_power_of_two() {
            return wrong("exact_above");
        }
        if self.granule != 0 && (!self.granule.is_power_of_two() || self.granule < granule) {
            return wrong("granule");
        }
        let rising = self.classes.windows(2).all(|pair| pair[0] < pair[1]);
        if self.classes.first().is_none_or(|&first| first == 0) || !rising {
            return wrong("classes");
        }
        Ok(())
    }
}

/// An option has a value that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionsError {
    /// The name of the option's method.
    pub option: &'static str,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pool's option `{}` has a value that cannot work", self.option)
    }
}

impl core::error::Error for OptionsError {}
