//! Sizes that are proven: how large a heap must be so that no program, however it allocates and frees, finds it
//! too small.
//!
//! A program is described by three numbers of bytes: the most that it has live at a time (the sum of what it
//! asks for), its smallest block, and its largest. Each placement that has a bound turns them into the size of
//! an arena, bookkeeping included, in a `const fn`: [`FirstFit`], [`BestFit`], [`Tlsf`] and [`Buddy`] have a
//! function `worst_case_arena`, [`Bump`] has one for the sum of all that is ever allocated.
//!
//! ```
//! use allotment::{FirstFit, Heap, heap};
//!
//! /// At most 4 KiB live, in blocks of 16 to 256 bytes.
//! static HEAP: Heap<FirstFit> = heap!(<FirstFit>::worst_case_arena(4096, 16, 256));
//! assert!(HEAP.free() > 2 * 4096);
//! ```
//!
//! What the bounds hold for: one region, and blocks aligned to a granule at most (with [`Buddy`], to their size
//! at most). A block that is resized in place breaks the order in which first fit and buddies fill memory:
//! it leaves a small block where only a large one would have been put, or makes one larger there. For programs
//! that do so (a `Vec` that grows or is shrunk does) `worst_case_arena_resizing` is the size that is proven; for
//! [`BestFit`] and [`Tlsf`] it makes no difference. A block that has to move is live in both places for
//! a moment. Headroom comes on top.
//!
//! | placement | granules for `M` live in blocks of `m` to `n` | theorem |
//! | --- | --- | --- |
//! | any, at least | `M (1 + log2(n) / 2) - n + 1` | Robson 1974 |
//! | [`FirstFit`] | `M H(n) / ln 2`, about `M (0.83 + log2 n)` | Robson 1977; Knuth, 2.5, exercise 43 |
//! | [`BestFit`] | about `(M - n) (1 + n / m)` | counting; Robson 1977 shows that it is nearly reached |
//! | [`Tlsf`], `CompactHeap` | the same with `n` rounded up to its class | counting |
//! | [`FirstFit`], resizing | as [`BestFit`] | counting |
//! | [`Buddy`] | `M' (1 + log2(n' / m'))`, where blocks are rounded up to powers of two | see there; the bound of half-fit (Ogasawara 1995) as o1heap uses it |
//! | [`Buddy`], resizing | `(M' - n') n' / m'`, the same | counting |
//!
//! * J. M. Robson, "Bounds for some functions concerning dynamic storage allocation", Journal of the ACM
//!   21 (3), 1974.
//! * J. M. Robson, "Worst case fragmentation of first fit and best fit storage allocation strategies", The
//!   Computer Journal 20 (3), 1977.
//! * D. E. Knuth, *The Art of Computer Programming*, vol. 1, 3rd ed., section 2.5.
//! * T. Ogasawara, "An algorithm with constant execution time for dynamic storage allocation", RTCSA 1995.

use crate::meta::{Meta, region_size};
use crate::placement::{BestFit, Buddy, Bump, FirstFit, Tlsf};
use crate::units::{Index, class_of, class_start};

/// A program, in granules.
#[derive(Clone, Copy)]
struct Demand {
    /// The most that is live at a time, each block rounded up.
    live: u128,
    /// The smallest block.
    least: u128,
    /// The largest block.
    most: u128,
}

impl Demand {
    const fn of<M: Meta>(max_live: usize, min_block: usize, max_block: usize) -> Self {
        assert!(min_block <= max_block, "the smallest block is larger than the largest");
        assert!(max_block <= max_live, "the largest block alone is more than is ever live");
        let granule = M::GRANULE as u128;
        let min_block = if min_block == 0 { 1 } else { min_block as u128 };
        let live = max_live as u128;
        // No block has less than a unit. Where none is smaller, rounding up to granules is all that is lost.
        let unit = M::UNIT as u128;
        let lost = if min_block >= unit * granule { granule } else { unit * granule } - 1;
        // A block loses up to `lost` bytes, and there are at most `live / min_block`.
        let rounded = (live + live / min_block * lost) / granule;
        let least = max(min_block.div_ceil(granule), unit);
        let most = max((max_block as u128).div_ceil(granule), unit);
        Self { live: if rounded > most { rounded } else { most }, least, most }
    }

    /// Granules with which a placement cannot fail that serves a request for `len` granules whenever a free
    /// block has `fit` of them.
    ///
    /// When a request for `len` fails, at most `live - len` granules are live, in at most that many divided by
    /// `least` blocks. There is at most one gap more than there are blocks, and none of them has `fit` granules.
    const fn counted(self, len: u128, fit: u128) -> u128 {
        let live = self.live - len;
        live + (live / self.least + 1) * (fit - 1) + 1
    }
}

/// Bytes of an arena that has at least `len` granules wherever it starts.
const fn arena<M: Meta>(len: u128) -> usize {
    // What exceeds the address space is refused by `heap!`, as what exceeds the index width.
    if len > (usize::MAX / 2 / M::GRANULE) as u128 {
        return usize::MAX;
    }
    // At either end up to a unit, or a word of edge bits, is lost to alignment.
    let ends = M::UNIT * M::GRANULE + size_of::<usize>();
    region_size::<M>((len as usize).next_multiple_of(M::UNIT)).saturating_add(ends)
}

const fn max(a: u128, b: u128) -> u128 {
    if a > b { a } else { b }
}

const fn min(a: u128, b: u128) -> u128 {
    if a < b { a } else { b }
}

/// `value / 2^20` times `H(n) / ln 2`, rounded up, where `H(n)` is the `n`th harmonic number.
const fn times_harmonic(value: u128, n: u128) -> u128 {
    const ONE: u128 = 1 << 20;
    /// `2^20 / ln 2`, rounded up.
    const PER_LN2: u128 = 1_512_776;
    // Doubling n adds less than ln 2 to H(n): only the first few terms need to be added up.
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

/// Bytes of blocks, without bookkeeping, that every placement needs at least in the worst case for programs
/// with up to `max_live` bytes live in blocks of powers of two from `granule` to `max_block` bytes: with less
/// there is a program that any of them fails. O(1).
///
/// Robson 1974: `M (1 + log2(n) / 2) - n + 1` granules, if `M` is a multiple of `n`, both in
/// granules; they are rounded down for that here.
pub const fn unavoidable(max_live: usize, max_block: usize, granule: usize) -> usize {
    let n = max_block / granule;
    if n == 0 {
        return max_live / granule * granule;
    }
    let log = n.ilog2() as usize;
    let n = 1 << log;
    let live = max_live / granule / n * n;
    if live == 0 {
        return 0;
    }
    (live + live / 2 * log - n + 1) * granule
}

impl<M: Meta, const LIMIT: usize> FirstFit<M, LIMIT> {
    /// Bytes of an arena in which first fit serves every program that has at most `max_live` bytes live, in
    /// blocks of `min_block` to `max_block` bytes. See [`bounds`](crate::bounds) for what is assumed. O(1).
    ///
    /// First fit in address order needs at most `M H(n) / ln 2` granules (Robson 1977; Knuth, 2.5, exercise 43) if no
    /// block is resized in place, or the count of [`BestFit`] if that is less, as it is where blocks differ
    /// little. With a `LIMIT` only the count holds.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`; in a `const`, when compiled.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let demand = Demand::of::<M>(max_live, min_block, max_block);
        let counted = best_fit(demand);
        let robson = if LIMIT == usize::MAX { times_harmonic(demand.live, demand.most) } else { counted };
        arena::<M>(min(robson, counted))
    }

    /// The same for programs that resize blocks in place: the count of [`BestFit`]. O(1).
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`; in a `const`, when compiled.
    pub const fn worst_case_arena_resizing(max_live: usize, min_block: usize, max_block: usize) -> usize {
        arena::<M>(best_fit(Demand::of::<M>(max_live, min_block, max_block)))
    }
}

/// The worst over all lengths of a request where every block that is long enough serves.
const fn best_fit(demand: Demand) -> u128 {
    let Demand { live, least, most } = demand;
    if least == most {
        return demand.counted(most, most);
    }
    // Longer requests need longer gaps but leave fewer live blocks to keep them apart. Without rounding off the
    // number of blocks, the count is a parabola that is largest where `len` is half of `live`.
    let len = min(max(live.div_ceil(2), least), most);
    (least * (live - len) + (live - len + least) * (len - 1)).div_ceil(least) + 1
}

impl<M: Meta> BestFit<M> {
    /// Bytes of an arena in which best fit serves every program that has at most `max_live` bytes live, in
    /// blocks of `min_block` to `max_block` bytes. See [`bounds`](crate::bounds) for what is assumed. O(1).
    ///
    /// The bound counts: when a request for `r` granules fails, the live blocks, of which there are no more
    /// than `(M - r) / m`, are separated by gaps of less than `r`. Best fit comes close to it (Robson 1977:
    /// `(M - 4 n + 11) (n - 2)` granules for `m = 1`), so where sizes differ much [`FirstFit`] needs far less.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`; in a `const`, when compiled.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        arena::<M>(best_fit(Demand::of::<M>(max_live, min_block, max_block)))
    }
}

impl<M: Meta, const ROWS: usize, const SL: usize> Tlsf<M, ROWS, SL> {
    /// Bytes of an arena in which TLSF serves every program that has at most `max_live` bytes live, in
    /// blocks of `min_block` to `max_block` bytes. See [`bounds`](crate::bounds) for what is assumed. O(classes).
    ///
    /// The bound of [`BestFit`], but for a request that is not the shortest of its class only a block of the next
    /// class is sure to be found.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`; in a `const`, when compiled.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        arena::<M>(good_fit::<M, SL>(max_live, min_block, max_block))
    }
}

/// Granules for a placement that finds a block of the next class, of `SL` per power of two, and one of the
/// request's own class if that is the shortest of it.
const fn good_fit<M: Meta, const SL: usize>(max_live: usize, min_block: usize, max_block: usize) -> u128 {
    let demand = Demand::of::<M>(max_live, min_block, max_block);
    if demand.most > <M::Index as Index>::MAX as u128 {
        return u128::MAX;
    }
    let mut worst = 0;
    let mut class = class_of::<SL>(demand.least as usize);
    let last = class_of::<SL>(demand.most as usize);
    while class <= last {
        let (start, next) = (class_start::<SL>(class) as u128, class_start::<SL>(class + 1) as u128);
        // Of requests that need the same block, the shortest leaves most live.
        let len = max(start, demand.least);
        worst = max(worst, demand.counted(len, if len == start { start } else { next }));
        if start + 1 < next && start < demand.most {
            worst = max(worst, demand.counted(max(start + 1, demand.least), next));
        }
        class += 1;
    }
    worst
}

/// Bytes of a [`CompactHeap`](crate::CompactHeap) that serves every program that has at most `max_live` bytes live,
/// in blocks of `min_block` to `max_block` bytes: the bound of [`Tlsf`], blocks resized in place or not.
///
/// ```
/// use allotment::{CompactHeap, bounds};
/// static HEAP: CompactHeap<{ bounds::compact_heap(1024, 16, 64) }> = CompactHeap::new();
/// assert!(size_of_val(&HEAP) < 8 * 1024);
/// ```
///
/// # Panics
///
/// Unless `min_block <= max_block <= max_live`; in a `const`, when compiled.
#[cfg(feature = "low-memory")]
pub const fn compact_heap(max_live: usize, min_block: usize, max_block: usize) -> usize {
    let len = good_fit::<crate::meta::InBand<u16, 8, 1>, 2>(max_live, min_block, max_block);
    // What exceeds the links is refused by the heap.
    if len > u16::MAX as u128 {
        return usize::MAX / 8 * 8;
    }
    crate::compact::bytes_for(len as usize)
}

impl<M: Meta, const ORDERS: usize> Buddy<M, ORDERS> {
    /// Bytes of an arena in which binary buddies serve every program that has at most `max_live` bytes live,
    /// in blocks of `min_block` to `max_block` bytes (or of that alignment). See
    /// [`bounds`](crate::bounds) for what is assumed. O(1).
    ///
    /// With blocks rounded up to powers of two of granules, `M'` live (less than `2 M`), from `m'` to `n'`, it
    /// is `M' (1 + log2(n' / m'))`, and up to `2 n'` for ends that are not aligned. This is the form of
    /// half-fit's bound (`2 M (1 + log2 n)`: Ogasawara 1995, and o1heap), for the same reason. Let `A(j)` be the
    /// most bytes ever in aligned places of size `2^j` that are not all free. A free place of size `2^(j+1)` is cut
    /// for a smaller block only when no smaller place is free, that is, when what is in places of that size
    /// that are not free is at most `A(j)`; what is added to that afterwards are blocks of that size or larger,
    /// at most `M'`. So `A(j+1) <= A(j) + M'`, and `A` at the smallest block is `M'`. A request fails only when
    /// every place of its size is in use.
    ///
    /// # Panics
    ///
    /// Unless `min_block <= max_block <= max_live`, and if the largest block has more than `ORDERS` allow; in
    /// a `const`, when compiled.
    pub const fn worst_case_arena(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let Demand { live, least, most } = Self::rounded(max_live, min_block, max_block);
        let levels = (most.ilog2() - least.ilog2()) as u128;
        arena::<M>(live * (1 + levels) + 2 * most)
    }

    /// The same for programs that resize blocks in place. O(1).
    ///
    /// The bound counts: when a request for `r` granules fails, every aligned place of that size holds a live
    /// block, of which there are no more than `(M' - r) / m'`.
    ///
    /// # Panics
    ///
    /// As [`Buddy::worst_case_arena`].
    pub const fn worst_case_arena_resizing(max_live: usize, min_block: usize, max_block: usize) -> usize {
        let Demand { live, least, most } = Self::rounded(max_live, min_block, max_block);
        let mut worst = 0;
        let mut len = least;
        while len <= most {
            worst = max(worst, ((live - len) / least + 1) * len);
            len *= 2;
        }
        arena::<M>(worst + 2 * most)
    }

    /// The program as it is when every block is rounded up to a power of two of granules.
    const fn rounded(max_live: usize, min_block: usize, max_block: usize) -> Demand {
        let Demand { live, least, most } = Demand::of::<M>(max_live, min_block, max_block);
        let rounded = most.next_power_of_two();
        assert!(rounded.ilog2() < ORDERS as u32, "the largest block has more than the placement's ORDERS");
        // Less than twice as much, and no block becomes larger than the largest.
        let live = max(min(2 * live, live / least * rounded), rounded);
        Demand { live, least: least.next_power_of_two(), most: rounded }
    }
}

impl<M: Meta> Bump<M> {
    /// Bytes of an arena in which a bump pointer serves `total` bytes in blocks of at least `min_block` bytes,
    /// all that is allocated until the program ends or the heap is reset, aligned to a granule at most. O(1).
    ///
    /// # Panics
    ///
    /// Unless `min_block <= total`; in a `const`, when compiled.
    pub const fn worst_case_arena(total: usize, min_block: usize) -> usize {
        arena::<M>(Demand::of::<M>(total, min_block, total).live)
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
            // Halving rounds n up by at most 1/32, and then less and less.
            let slack = if n <= 64 { 1e-4 } else { 0.07 };
            assert!(found >= exact && found < exact + slack, "{n}: {found} for {exact}");
        }
    }

    /// What `tests/core/bounds.rs` shows to be reached: pins of one granule with gaps of one granule keep two out.
    #[test]
    fn the_count_is_exact() {
        for live in 2..50 {
            assert_eq!(Demand { live, least: 1, most: 2 }.counted(2, 2), 2 * live - 2);
        }
        assert_eq!(Demand { live: 100, least: 7, most: 30 }.counted(30, 32), 70 + 11 * 31 + 1);
    }

    /// The closed form against all lengths of a request.
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

    /// The same for TLSF, whose classes decide what block a request is sure to find.
    #[test]
    fn the_count_of_tlsf_is_the_worst_of_all_lengths() {
        type Placement = Tlsf<crate::meta::InBand<u32>, 20, 4>;
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
                    // Sizes are multiples of a granule, yet some might not be: `Demand` cannot know.
                    assert!(found >= arena::<crate::meta::InBand<u32>>(worst), "{live} {least} {most}");
                }
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates() {
        assert_eq!(<BestFit>::worst_case_arena(usize::MAX, 1, usize::MAX / 2), usize::MAX);
        assert_eq!(<Tlsf>::worst_case_arena(usize::MAX, 1, usize::MAX / 2), usize::MAX);
        assert!(<FirstFit>::worst_case_arena(1 << 20, 16, 1 << 16) < 40 << 20);
    }
}
