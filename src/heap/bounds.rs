//! Proven sizes: how large a heap must be to satisfy every program within given limits, in whatever order the program allocates and
//! frees.
//!
//! Three numbers of bytes describe a program: the most that it has live at a time (the sum of its requests), its smallest block, and its
//! largest block. For each placement with a bound, a `const fn` turns them into the size of an arena, bookkeeping included: [`FirstFit`],
//! [`BestFit`], [`Tlsf`] and [`Buddy`] have a function `worst_case_arena`, and [`Bump`] has one for the sum of everything that the
//! program ever allocates. The default heap of microcontrollers is a [`MicroTlsf`](crate::placement::MicroTlsf), so
//! `heap!(<MicroTlsf>::worst_case_arena(4096, 16, 256))` sizes a plain `Heap`.
//!
//! ```
//! use allotment::{FirstFit, Heap, heap};
//!
//! /// At most 4 KiB live, in blocks of 16 to 256 bytes.
//! static HEAP: Heap<FirstFit> = heap!(<FirstFit>::worst_case_arena(4096, 16, 256));
//! assert!(HEAP.free() > 2 * 4096);
//! ```
//!
//! The bounds assume one region, and blocks aligned to a granule at most (with [`Buddy`], to their size at most). Resizing a block in
//! place breaks the order in which first fit and buddies fill memory: it leaves a small block where they would have placed only a large
//! one, or enlarges a block there. For programs that resize, for instance with a `Vec` that grows or shrinks, use
//! `worst_case_arena_resizing`; for [`BestFit`] and [`Tlsf`] it makes no difference. A block that has to move is briefly live in both
//! places: add headroom as needed.
//!
//! | placement | granules for `M` live in blocks of `m` to `n` | theorem |
//! | --- | --- | --- |
//! | any, at least | `M (1 + log2(n) / 2) - n + 1` | Robson 1974 |
//! | [`FirstFit`] | `M H(n) / ln 2`, about `M (0.83 + log2 n)` | Robson 1977; Knuth, 2.5, exercise 43 |
//! | [`BestFit`] | about `(M - n) (1 + n / m)` | counting; Robson 1977 shows that it is nearly reached |
//! | [`Tlsf`], [`MicroTlsf`](crate::placement::MicroTlsf), `TinyHeap` | the same with `n` rounded up to its class | counting |
//! | [`FirstFit`], resizing | as [`BestFit`] | counting |
//! | [`Buddy`] | `M' (1 + log2(n' / m'))`, with blocks rounded up to powers of two | proof at [`Buddy::worst_case_arena`]; the bound of half-fit (Ogasawara 1995) as used by o1heap |
//! | [`Buddy`], resizing | `(M' - n') n' / m'`, with the same rounding | counting |
//!
//! * J. M. Robson, "Bounds for some functions concerning dynamic storage allocation", Journal of the ACM
//!   21 (3), 1974.
//! * J. M. Robson, "Worst case fragmentation of first fit and best fit storage allocation strategies", The
//!   Computer Journal 20 (3), 1977.
//! * D. E. Knuth, *The Art of Computer Programming*, vol. 1, 3rd ed., section 2.5.
//! * T. Ogasawara, "An algorithm with constant execution time for dynamic storage allocation", RTCSA 1995.

#![forbid(unsafe_code)]

use crate::placement::{BestFit, Buddy, BuddyMap, Bump, FirstFit, FirstFitMap, Placement, Tlsf};
use crate::units::{Index, class_of, class_start};

/// The limits of a program, in granules.
#[derive(Clone, Copy)]
struct Demand {
    /// Most granules live at a time, with each block rounded up.
    live: u128,
    /// The smallest block.
    least: u128,
    /// The largest block.
    most: u128,
}

impl Demand {
    /// Converts a demand in bytes to granules, for blocks of at least `shortest` granules.
    const fn in_granules(
        granule: usize,
        shortest: usize,
        max_live: usize,
        min_block: usize,
        max_block: usize,
    ) -> Self {
        assert!(min_block <= max_block, "the smallest block is larger than the largest");
        assert!(max_block <= max_live, "the largest block alone is more than is ever live");
        let granule = granule as u128;
        let min_block = if min_block == 0 { 1 } else { min_block as u128 };
        let live = max_live as u128;
        // No block is shorter than a minimum block. If no request is shorter either, only rounding to granules loses memory.
        let shortest = shortest as u128;
        let lost = if min_block >= shortest * granule { granule } else { shortest * granule } - 1;
        // A block loses up to `lost` bytes, and there are at most `live / min_block` blocks.
        let rounded = (live + live / min_block * lost) / granule;
        let least = max(min_block.div_ceil(granule), shortest);
        let most = max((max_block as u128).div_ceil(granule), shortest);
        Self { live: if rounded > most { rounded } else { most }, least, most }
    }

    /// Returns how many granules guarantee a request for `len` granules, with a placement that satisfies it whenever a free block has
    /// `fit` granules.
    ///
    /// When a request for `len` fails, at most `live - len` granules are live, in at most `(live - len) / least` blocks. At most one gap
    /// more than there are blocks separates them, and no gap has `fit` granules.
    const fn counted(self, len: u128, fit: u128) -> u128 {
        let live = self.live - len;
        live + (live / self.least + 1) * (fit - 1) + 1
    }
}

const fn max(a: u128, b: u128) -> u128 {
    if a > b { a } else { b }
}

const fn min(a: u128, b: u128) -> u128 {
    if a < b { a } else { b }
}

/// Returns `value / 2^20` times `H(n) / ln 2`, rounded up, where `H(n)` is the `n`th harmonic number.
const fn times_harmonic(value: u128, n: u128) -> u128 {
    const ONE: u128 = 1 << 20;
    /// `2^20 / ln 2`, rounded up.
    const PER_LN2: u128 = 1_512_776;
    // Doubling n adds less than ln 2 to H(n), so summing the first few terms is enough.
    let (mut few, mut doublings) = (n, 0);
    while few > 64 {
        few = few.div_ceil(2);
        doublings += 1;
    }
    let mut sum = doublings * ONE;
    let mut term = 1;
    while term <= few {
        sum += PER_LN2.div_ceil(term);
        term += 1;
    }
    (value * sum).div_ceil(ONE)
}

/// Returns the bytes of blocks, without bookkeeping, that every placement needs in the worst case for programs with up to `max_live`
/// bytes live in blocks of powers of two from `granule` to `max_block` bytes. With less memory, every placement fails some such program.
/// Saturates at [`usize::MAX`]. O(1).
///
/// Robson 1974: `M (1 + log2(n) / 2) - n + 1` granules, if `M` is a multiple of `n`, both in granules. Both are therefore rounded down.
pub const fn unavoidable(max_live: usize, max_block: usize, granule: usize) -> usize {
    let n = max_block / granule;
    if n == 0 {
        return max_live / granule * granule;
    }
    let log = n.ilog2();
    let n = 1 << log;
    let live = (max_live / granule / n * n) as u128;
    if live == 0 {
        return 0;
    }
    let bytes = (live + live / 2 * log as u128 - n as u128 + 1) * granule as u128;
    if bytes > usize::MAX as u128 { usize::MAX } else { bytes as usize }
}

impl<const R: usize, const C: bool> FirstFit<R, C> {
    /// Returns the bytes of an arena in which first fit satisfies every program that has at most `max_live` bytes
    /// live, in blocks of `min_block` to `max_block` bytes. See [`bounds`](crate::heap::bounds) for the assumptions.
    /// O(1).
    ///
    /// First fit in address order needs at most `M H(n) / ln 2` granules (Robson 1977; Knuth, 2.5, exercise 43) if no block is resized in
    /// place. The result uses the count of [`BestFit`] if it is less, as it is when blocks have similar sizes.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`. In a `const` this is a compiler error.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let demand = Demand::in_granules(8, 1, max_live, min_block, max_block);
        first_fit_arena::<C>(min(times_harmonic(demand.live, demand.most), best_fit(demand)))
    }

    /// Returns the same size for programs that resize blocks in place: the count of [`BestFit`]. O(1).
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`. In a `const` this is a compiler error.
    pub const fn worst_case_arena_resizing(max_live: usize, min_block: usize, max_block: usize) -> usize {
        first_fit_arena::<C>(best_fit(Demand::in_granules(8, 1, max_live, min_block, max_block)))
    }
}

/// Returns the bytes of an arena that holds at least `len` granules and the map of [`FirstFit`], at any start address.
const fn first_fit_arena<const CHECKED: bool>(len: u128) -> usize {
    if len > <FirstFit as Placement>::MAX_REGION as u128 / 8 {
        return usize::MAX;
    }
    let words = FirstFitMap::<crate::placement::MapLength, CHECKED>::words_for(len as usize);
    // Alignment can cost a granule at one end and a word at the other.
    len as usize * 8 + words * size_of::<u32>() + 8 + size_of::<u32>()
}

/// Returns the worst case over all request lengths, for a placement that can use every long enough block.
const fn best_fit(demand: Demand) -> u128 {
    let Demand { live, least, most } = demand;
    if least == most {
        return demand.counted(most, most);
    }
    // Longer requests need longer gaps, but leave fewer live blocks to separate them. Without rounding the number of blocks, the count is
    // a parabola with its maximum where `len` is half of `live`.
    let len = min(max(live.div_ceil(2), least), most);
    (least * (live - len) + (live - len + least) * (len - 1)).div_ceil(least) + 1
}

impl<W: Index, const R: usize, const SL: usize, const C: bool> BestFit<W, R, SL, C> {
    /// Returns the bytes of an arena in which best fit satisfies every program that has at most `max_live` bytes live,
    /// in blocks of `min_block` to `max_block` bytes. See [`bounds`](crate::heap::bounds) for the assumptions. O(1).
    ///
    /// The bound counts: when a request for `r` granules fails, at most `(M - r) / m` live blocks are separated by gaps of less than `r`.
    /// Best fit comes close to the bound (Robson 1977: `(M - 4 n + 11) (n - 2)` granules for `m = 1`), so if sizes differ much,
    /// [`FirstFit`] needs far less.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`. In a `const` this is a compiler error.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        Self::arena(best_fit(Demand::in_granules(8, Self::MIN, max_live, min_block, max_block)))
    }
}

impl<W: Index, const R: usize, const SL: usize, const C: bool> Tlsf<W, R, SL, C> {
    /// Returns the bytes of an arena in which TLSF satisfies every program that has at most `max_live` bytes live, in
    /// blocks of `min_block` to `max_block` bytes. See [`bounds`](crate::heap::bounds) for the assumptions. O(classes).
    ///
    /// This is the bound of [`BestFit`], except that a request that is not the shortest of its class is only sure to find a block of the
    /// next class.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`. In a `const` this is a compiler error.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let demand = Demand::in_granules(8, Self::MIN, max_live, min_block, max_block);
        Self::arena(good_fit::<SL>(demand, W::MAX))
    }
}

/// Returns the granules for a placement with `SL` classes per power of two that finds any block of the next class, and any block of the
/// request's class if the request is the shortest of that class.
const fn good_fit<const SL: usize>(demand: Demand, longest: usize) -> u128 {
    if demand.most > longest as u128 {
        return u128::MAX;
    }
    let mut worst = 0;
    let mut class = class_of::<SL>(demand.least as usize);
    let last = class_of::<SL>(demand.most as usize);
    while class <= last {
        let (start, next) = (class_start::<SL>(class) as u128, class_start::<SL>(class + 1) as u128);
        // Among requests that need the same block, the shortest leaves the most memory live.
        let len = max(start, demand.least);
        worst = max(worst, demand.counted(len, if len == start { start } else { next }));
        if start + 1 < next && start < demand.most {
            worst = max(worst, demand.counted(max(start + 1, demand.least), next));
        }
        class += 1;
    }
    worst
}

/// Returns the bytes of a [`TinyHeap`](crate::TinyHeap) that satisfies every program with at most `max_live`
/// bytes live, in blocks of `min_block` to `max_block` bytes. This is the bound of [`Tlsf`], whether blocks are
/// resized in place or not.
///
/// ```
/// use allotment::{TinyHeap, bounds};
/// static HEAP: TinyHeap<{ bounds::tiny_heap(1024, 16, 64) }> = TinyHeap::new();
/// assert!(size_of_val(&HEAP) < 8 * 1024);
/// ```
///
/// # Panics
///
/// Unless `min_block <= max_block <= max_live`. In a `const` this is a compiler error.
pub const fn tiny_heap(max_live: usize, min_block: usize, max_block: usize) -> usize {
    let demand = Demand::in_granules(8, 1, max_live, min_block, max_block);
    let len = good_fit::<2>(demand, u16::MAX as usize);
    // Return a size that does not compile, because its links cannot index that many granules.
    if len > u16::MAX as u128 {
        return usize::MAX / 8 * 8;
    }
    crate::heap::tiny::bytes_for(len as usize)
}

impl<const R: usize, const G: usize> Buddy<R, G> {
    /// Returns the bytes of an arena in which binary buddies satisfy every program that has at most `max_live` bytes
    /// live, in blocks of `min_block` to `max_block` bytes (or with that alignment). See [`bounds`](crate::heap::bounds)
    /// for the assumptions. O(1).
    ///
    /// Let all blocks be rounded up to a power-of-two number of granules, with `M'` live (less than `2 M`) in blocks of `m'` to `n'`. The
    /// bound is then `M' (1 + log2(n' / m'))`, plus up to `2 n'` for unaligned ends. It has the form of half-fit's bound (`2 M (1 + log2
    /// n)`: Ogasawara 1995, and o1heap), for the same reason. Let `A(j)` be the most bytes ever in aligned places of size `2^j` that are
    /// not entirely free. A free place of size `2^(j+1)` is split for a smaller block only when no smaller place is free: then the used
    /// places of size `2^(j+1)` hold at most `A(j)`. Afterwards, only blocks of that size or larger are added to them, at most `M'`. So
    /// `A(j+1) <= A(j) + M'`, and `A` at the smallest block is `M'`. A request fails only when every place of its size is in use.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`. In a `const` this is a compiler error.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let Demand { live, least, most } = Self::rounded(max_live, min_block, max_block);
        let levels = (most.ilog2() - least.ilog2()) as u128;
        Self::arena(live * (1 + levels) + 2 * most)
    }

    /// Returns the same size for programs that resize blocks in place. O(1).
    ///
    /// The bound counts: when a request for `r` granules fails, every aligned place of that size contains a live
    /// block, and there are at most `(M' - r) / m'` of them.
    ///
    /// # Panics
    ///
    /// Under the same conditions as [`Buddy::worst_case_arena`].
    pub const fn worst_case_arena_resizing(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let Demand { live, least, most } = Self::rounded(max_live, min_block, max_block);
        let mut worst = 0;
        let mut len = least;
        while len <= most {
            worst = max(worst, ((live - len) / least + 1) * len);
            len *= 2;
        }
        Self::arena(worst + 2 * most)
    }

    /// Returns the limits of the program with every block rounded up to a power-of-two number of granules.
    const fn rounded(max_live: usize, min_block: usize, max_block: usize) -> Demand {
        let Demand { live, least, most } = Demand::in_granules(G, 1, max_live, min_block, max_block);
        let rounded = most.next_power_of_two();
        // Rounding less than doubles a block, and makes no block longer than the rounded largest one.
        let live = max(min(2 * live, live / least * rounded), rounded);
        Demand { live, least: least.next_power_of_two(), most: rounded }
    }

    /// Returns the bytes of an arena of at least `len` granules and their map, at any start address.
    const fn arena(len: u128) -> usize {
        if len > BuddyMap::LONGEST as u128 {
            return usize::MAX;
        }
        // Alignment can cost a granule at one end and a word at the other.
        len as usize * G + BuddyMap::most_words(len as usize) * size_of::<u32>() + G + size_of::<u32>()
    }
}

impl<const R: usize, const G: usize> Bump<R, G> {
    /// Returns the bytes of an arena in which a bump pointer allocates `total` bytes in blocks of at least `min_block` bytes, aligned to
    /// a granule at most. `total` is everything that the program allocates before it ends or resets the heap. O(1).
    ///
    /// # Panics
    ///
    /// Unless `min_block <= total`. In a `const` this is a compiler error.
    pub const fn worst_case_arena(total: usize, min_block: usize) -> usize {
        let len = Demand::in_granules(G, 1, total, min_block, total).live;
        if len > u32::MAX as u128 {
            return usize::MAX;
        }
        // Alignment can cost a granule at either end.
        (len as usize).saturating_mul(G).saturating_add(2 * G)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmonic_numbers_are_rounded_up_and_no_further() {
        for n in (1..3000u32).chain([10_000, 65_535, 1_000_000]) {
            let exact = (1..=n).map(|i| 1.0 / f64::from(i)).sum::<f64>() / std::f64::consts::LN_2;
            let found = times_harmonic(1_000_000, n.into()) as f64 / 1e6;
            // Halving rounds n up by at most 1/32, and by less in later steps.
            let slack = if n <= 64 { 1e-4 } else { 0.07 };
            assert!(found >= exact && found < exact + slack, "{n}: {found} for {exact}");
        }
    }

    /// `tests/core/bounds.rs` shows that the count is tight: one-granule blocks with gaps of one granule between them leave no room for a
    /// block of two.
    #[test]
    fn the_count_is_exact() {
        for live in 2..50 {
            assert_eq!(Demand { live, least: 1, most: 2 }.counted(2, 2), 2 * live - 2);
        }
        assert_eq!(Demand { live: 100, least: 7, most: 30 }.counted(30, 32), 70 + 11 * 31 + 1);
    }

    /// Compares the closed form with all request lengths.
    #[test]
    fn the_count_of_best_fit_is_the_worst_of_all_lengths() {
        for live in 1..80 {
            for most in 1..=live {
                for least in 1..=most {
                    let demand = Demand { live, least, most };
                    let worst = (least..=most).map(|len| demand.counted(len, len)).max().unwrap();
                    let found = best_fit(demand);
                    assert!(found >= worst, "{live} {least} {most}: {found} < {worst}");
                    assert!(found <= worst + most, "{live} {least} {most}: {found} > {worst}");
                }
            }
        }
    }

    /// Compares with all request lengths for TLSF, where the class decides which block a request is sure to find.
    #[test]
    fn the_count_of_tlsf_is_the_worst_of_all_lengths() {
        type Placement = Tlsf<u16, 1, 4>;
        for live in 1..60u128 {
            for most in 1..=live {
                for least in 1..=most {
                    let demand = Demand { live, least, most };
                    let counted = |len: u128| {
                        let class = class_of::<4>(len as usize);
                        let start = class_start::<4>(class) as u128;
                        let fit = if start == len { len } else { class_start::<4>(class + 1) as u128 };
                        demand.counted(len, fit)
                    };
                    let worst = (least..=most).map(counted).max().unwrap();
                    let [live, least, most] = [live, least, most].map(|len| len as usize * 8);
                    let found = Placement::worst_case_arena(live, least, most);
                    // These sizes are multiples of a granule, but `Demand` must assume that others are not.
                    assert!(found >= Placement::arena(worst), "{live} {least} {most}");
                }
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates() {
        assert_eq!(<BestFit>::worst_case_arena(usize::MAX, 1, usize::MAX / 2), usize::MAX);
        assert_eq!(<Tlsf>::worst_case_arena(usize::MAX, 1, usize::MAX / 2), usize::MAX);
        assert!(<FirstFit>::worst_case_arena(1 << 20, 16, 1 << 16) < 40 << 20);
        assert_eq!(unavoidable(usize::MAX, usize::MAX / 2, 8), usize::MAX);
        assert_eq!(unavoidable(usize::MAX, 1 << (usize::BITS / 2), 8), usize::MAX);
        assert_eq!(unavoidable(1024 * 8, 16 * 8, 8), (1024 + 512 * 4 - 16 + 1) * 8);
    }
}
