//! Options of a pool: how it grows, reuses, trims and checks.

#![forbid(unsafe_code)]

use super::PoolError;
use core::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The most memory that a pool may reserve; see [`PoolOptions::limit`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Limit {
    /// As much as the source has.
    None,
    Bytes(usize),
    Fraction(f64),
}

impl Limit {
    /// Rejects a fraction that is not above 0 and at most 1, and a limit of 0 bytes.
    pub(super) fn check(self) -> Result<(), PoolError> {
        match self {
            Self::Fraction(part) if !(part > 0.0 && part <= 1.0) => Err(PoolError::Option("limit_fraction")),
            Self::Bytes(0) => Err(PoolError::Option("limit")),
            _ => Ok(()),
        }
    }
}

/// The sizes of segments for large requests, in bytes; see [`PoolOptions::segments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Growth {
    Fixed(usize),
    Geometric { first: usize, percent: u32, most: usize },
    Fitted(usize),
}

/// What a pool does with a freed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reuse {
    /// Freed memory returns to the source at once, so each request calls the driver.
    None,
    /// The pool keeps the block for later requests of its class. It rounds sizes up to classes, and never searches or coalesces blocks.
    Basic,
    /// The pool splits and coalesces free blocks. Memory moves to another stream once its last work is known to be done.
    Advanced,
    /// Like `Advanced`, but another stream may reuse memory while work on it still runs: the stream then waits for that work on the
    /// device. Before a request fails, the pool compacts movable blocks.
    Aggressive,
}

/// How long a segment may stay empty before the pool releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Age {
    /// This much time, by the source's clock.
    Time(Duration),
    /// This many calls of [`RawPool::step`](super::RawPool::step).
    Steps(u64),
}

/// How a pool follows the program's usage; see [`PoolOptions::adaptive`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Adaptive {
    /// The number of recent calls of [`RawPool::step`](super::RawPool::step) that count, 1 or more.
    pub window: u64,
    /// How much to keep, as a multiple of the highest usage within the window; 1 or more.
    pub factor: f64,
}

/// Optional checks of a pool, as [`PoolOptions`] describes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub(super) struct Checks {
    pub fill: Option<u8>,
    pub guard: bool,
    pub sites: bool,
}

/// Options of a [`RawPool`](super::RawPool). The defaults suit a GPU: segments of 2 MiB for requests up to 1 MiB, segments of 20 MiB for
/// larger ones, and a segment sized to each request above 10 MiB; no limit, no trimming, no checks.
///
/// ```
/// use allotment::pool::{PoolOptions, Reuse};
/// let options = PoolOptions::new().limit_fraction(0.8).first_segment(512 << 20).reuse(Reuse::Aggressive);
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
    pub(super) keep: usize,
    pub(super) adaptive: Option<Adaptive>,
    pub(super) notices_captures: bool,
    pub(super) timed: bool,
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
            keep: usize::MAX,
            adaptive: None,
            notices_captures: true,
            timed: false,
            checks: Checks::default(),
        }
    }
}

/// Defines the methods that set one option each and return the options: `name(arguments) statement`.
macro_rules! setters {
    ($this:ident: $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $set:expr;)+) => {
        impl PoolOptions {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self, $($argument: $type),*) -> Self {
                let mut $this = self;
                $set;
                $this
            }
        )+}
    };
}

setters! {
    this:
    /// Sets the most bytes that the pool may reserve. The default is as many as the source has.
    limit(bytes: usize) this.limit = Limit::Bytes(bytes);

    /// Sets the fraction of the device's total memory that the pool may reserve, above 0 and up to 1. The pool reads the total when it is
    /// made.
    limit_fraction(part: f64) this.limit = Limit::Fraction(part);

    /// Sets the size in bytes of the first segment, which the pool reserves on first use; 0 sizes it like all others.
    first_segment(bytes: usize) this.first_segment = bytes;

    /// Satisfies requests of up to `limit` bytes from separate segments of `segment` bytes, so that small blocks do
    /// not split large ones; a limit of 0 turns this off.
    small(limit: usize, segment: usize) (this.small_limit, this.small_segment) = (limit, segment);

    /// Sets the size in bytes of segments for requests above the [`small`](PoolOptions::small) limit.
    segments(bytes: usize) this.growth = Growth::Fixed(bytes);

    /// Makes each segment for requests above the [`small`](PoolOptions::small) limit `percent` percent, 100 or more, of the size of the
    /// previous one, from `first` up to `most` bytes.
    geometric_segments(first: usize, percent: u32, most: usize) this.growth = Growth::Geometric { first, percent, most };

    /// Fits each segment for requests above the [`small`](PoolOptions::small) limit to the request that needs it. Among the multiples of
    /// the request up to `most` bytes, the pool picks the one that wastes the smallest share when rounded to the source's granularity,
    /// and the shortest among equals. While more than a tenth of the reserved memory is free, it reserves only the request's size.
    fitted_segments(most: usize) this.growth = Growth::Fitted(most);

    /// Reserves a segment of the request's size, rounded up to a multiple of `step` bytes (a power of two), for each request above
    /// `bytes` bytes.
    exact_above(bytes: usize, step: usize) (this.exact_above, this.exact_step) = (bytes, step);

    /// Rounds every request up to a multiple of `bytes`, a power of two not below the placement's granule; 0 means
    /// the granule itself.
    granule(bytes: usize) this.granule = bytes;

    /// Sets the class sizes in bytes, ascending, to which [`Reuse::Basic`] rounds requests up. Requests above the largest class keep
    /// their size. The default is the 22 powers of two from 256 bytes to 512 MiB.
    classes(sizes: &[usize]) this.classes = sizes.to_vec();

    /// Sets what the pool does with freed blocks.
    reuse(reuse: Reuse) this.reuse = reuse;

    /// Reserves as little as possible, at the price of more driver calls: before the pool grows, it uses free blocks of the other size
    /// group and releases empty segments whose work is done. Requests above [`PoolOptions::exact_above`] do not share segments with
    /// smaller ones. Their segments are rounded up to the source's granularity only, and while there is room, a request reuses an empty
    /// one only if the excess is less than that option's step.
    lean(on: bool) this.lean = on;

    /// Releases segments that have been empty for this long, by the source's clock: at a step, and after a request or free, which skips
    /// segments whose work is not done. A program that makes none of these calls releases nothing.
    trim_after(time: Duration) this.trim_after = Some(Age::Time(time));

    /// Releases a segment at the call of [`RawPool::step`](super::RawPool::step) at which it has been empty for this many calls.
    trim_after_steps(steps: u64) this.trim_after = Some(Age::Steps(steps));

    /// Limits the bytes of empty segments that the pool keeps for later requests. It releases the rest after the request or free that
    /// leaves them empty, those empty the longest first. It never waits for work, so it releases segments still in use on the device
    /// later.
    keep_at_most(bytes: usize) this.keep = bytes;

    /// Keeps as much memory as the program uses, and no more. The window is the number of recent calls of
    /// [`RawPool::step`](super::RawPool::step) that count, 1 or more; the factor says how much to keep, as a multiple of the highest
    /// usage within the window, 1 or more. At every [`RawPool::step`](super::RawPool::step), the pool releases segments that were empty
    /// for a whole window, then further empty segments, those empty the longest first, until at most `factor` times the window's highest
    /// active memory is reserved. It never waits for work.
    ///
    /// With [`Reuse::Basic`], the classes adapt too. Once per window, the pool adds as many classes as it was given, fitted to the sizes
    /// requested in that window so that rounding wastes the least. Of each class, it keeps at most `factor` times the highest number of
    /// blocks that were live at once in this window and the previous one.
    adaptive(window: u64, factor: f64) this.adaptive = Some(Adaptive { window, factor });

    /// Makes the program declare captures: the pool asks streams whether they are being captured only while the program holds a handle
    /// from [`RawPool::graph_memory`](super::RawPool::graph_memory), which it calls at the start of each capture, instead of at every
    /// request and free. At other times, requests make no driver call at all. If a capture runs without the handle, launching the graph
    /// overwrites memory that the pool has since allocated to others.
    declared_captures() this.notices_captures = false;

    /// Measures the mean number of bytes in use, how long requests take, how long threads wait for the pool's locks, and the cost of the
    /// steps that a request without room takes: [`PoolStats::mean`](super::PoolStats::mean) and the fields after it. A request then reads
    /// the source's clock twice and a free once, and each takes one more lock of its stream; pools without this option pay nothing.
    timed(on: bool) this.timed = on;

    /// Fills freed memory with this byte and, when the memory is reused, reports bytes that changed while it was free. The CPU fills
    /// memory that it can access, once the last work on it is done. Device memory of CUDA and Vulkan is filled in the order of the
    /// stream, and a request waits for that stream and reads the block, with the pool locked; memory that a captured stream allocated or
    /// freed is not checked.
    fill(byte: u8) this.checks.fill = Some(byte);

    /// Keeps a guard granule on both sides of every block, and a free reports writes to them, in the kinds of memory that
    /// [`fill`](PoolOptions::fill) checks. Memory that the CPU can access is reused once the last work on it is done. In device memory, a
    /// free waits for the block's stream, and blocks of captured streams are not checked. If the guards of a dropped buffer were
    /// overwritten, debug builds panic and other builds print the error to standard error.
    guards(on: bool) this.checks.guard = on;

    /// Records the code location of each request, for the list of leaks.
    sites(on: bool) this.checks.sites = on;
}

impl PoolOptions {
    /// Makes the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks whether the options work for a placement with granules of `granule` bytes. O(classes).
    ///
    /// # Errors
    ///
    /// [`PoolError::Option`] with the first invalid option.
    pub fn check(&self, granule: usize) -> Result<(), PoolError> {
        let wrong = |option| Err(PoolError::Option(option));
        self.limit.check()?;
        if self.small_limit > self.small_segment || self.small_limit > 0 && self.small_segment < 4 * KIB {
            return wrong("small");
        }
        match self.growth {
            Growth::Fixed(bytes) if bytes < 4 * KIB => return wrong("segments"),
            Growth::Fitted(bytes) if bytes < 4 * KIB => return wrong("fitted_segments"),
            Growth::Geometric { first, percent, most }
                if first < 4 * KIB || percent < 100 || most < first =>
            {
                return wrong("geometric_segments");
            }
            _ => {}
        }
        if let Some(Adaptive { window, factor }) = self.adaptive {
            if window == 0 || !(factor >= 1.0 && factor.is_finite()) {
                return wrong("adaptive");
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
