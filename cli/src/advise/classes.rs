//! Size classes of a slab, fitted to the sizes that a program requests.

use serde::Serialize;

/// Bytes per granule.
pub const GRANULE: usize = 8;
/// The largest class in granules.
pub const LONGEST: usize = PAGE;
/// Granules per page.
pub const PAGE: usize = 64;
/// Bytes of a page's record, which lies outside the page.
pub const RECORD: usize = 12;
/// The largest number of objects per page.
const MOST_OBJECTS: usize = 32;
/// The largest number of classes of a slab.
const MOST_CLASSES: usize = 31;

/// The classes of a slab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Classes {
    /// Object sizes in bytes, in ascending order.
    pub sizes: Vec<usize>,
}

impl Classes {
    /// Returns the number of objects of `size` bytes that a page holds.
    pub fn held(size: usize) -> usize {
        (PAGE * GRANULE / size).min(MOST_OBJECTS)
    }
}

/// Returns the classes with the least waste for a histogram: `blocks[n]` blocks of `n` granules are live at once. Every size with
/// `used[n]` has a class at least as large; each class is one of these sizes.
///
/// The waste of a class is the bytes of its objects beyond the requests, the records and unused ends of its pages, and half a page,
/// because the last page is half full on average. Dynamic programming over the largest size so far: O(sizes² × classes).
///
/// Returns `None` if no size is used.
pub fn fit(blocks: &[u64; LONGEST + 1], used: &[bool; LONGEST + 1]) -> Option<Classes> {
    let sizes: Vec<usize> = (1..=LONGEST).filter(|&n| used[n]).collect();
    // The waste of a class of `sizes[to]` for the sizes `from..=to`.
    let cost = |from: usize, to: usize| -> f64 {
        let size = sizes[to] * GRANULE;
        let (page, held) = (PAGE * GRANULE + RECORD, Classes::held(size));
        let count: u64 = sizes[from..=to].iter().map(|&n| blocks[n]).sum();
        let asked: u64 = sizes[from..=to].iter().map(|&n| blocks[n] * (n * GRANULE) as u64).sum();
        let pages = count.div_ceil(held as u64);
        // All pages are full except the last, which is half full on average.
        (pages * page as u64) as f64 - asked as f64 + page as f64 / 2.0
    };
    // best[k][n]: the least waste of the first n sizes in k classes, and where the last class begins.
    let count = sizes.len();
    let most = count.min(MOST_CLASSES);
    let mut best = vec![vec![(f64::INFINITY, 0); count + 1]; most + 1];
    best[0][0].0 = 0.0;
    for classes in 1..=most {
        for to in 0..count {
            for from in 0..=to {
                let before = best[classes - 1][from].0;
                let waste = before + cost(from, to);
                if waste < best[classes][to + 1].0 {
                    best[classes][to + 1] = (waste, from);
                }
            }
        }
    }
    let mut classes = (1..=most)
        .filter(|&classes| best[classes][count].0.is_finite())
        .min_by(|&a, &b| best[a][count].0.total_cmp(&best[b][count].0))?;
    let mut chosen = Vec::new();
    let mut end = count;
    while classes > 0 {
        chosen.push(sizes[end - 1] * GRANULE);
        end = best[classes][end].1;
        classes -= 1;
    }
    chosen.reverse();
    Some(Classes { sizes: chosen })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the waste of a choice of classes independently of `fit`.
    fn waste(chosen: &[usize], blocks: &[u64; LONGEST + 1]) -> f64 {
        let mut total = 0.0;
        let mut below = 0;
        for &class in chosen {
            let (mut count, mut asked) = (0, 0);
            for (n, &live) in blocks.iter().enumerate().take(class + 1).skip(below + 1) {
                count += live;
                asked += live * n as u64 * 8;
            }
            let page = 512 + 12;
            let held = (64 / class).min(32) as u64;
            total += (count.div_ceil(held) * page as u64) as f64 - asked as f64 + page as f64 / 2.0;
            below = class;
        }
        total
    }

    #[test]
    fn no_other_choice_wastes_less() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let (mut blocks, mut used) = ([0; LONGEST + 1], [false; LONGEST + 1]);
            for _ in 0..random.usize(1..9) {
                let n = random.usize(1..40);
                (blocks[n], used[n]) = (random.u64(0..400), true);
            }
            let found = fit(&blocks, &used).unwrap();
            let sizes: Vec<usize> = (1..=LONGEST).filter(|&n| used[n]).collect();
            let last = sizes.len() - 1;
            // Every subset that contains the largest size.
            let best = (0..1_u32 << last)
                .map(|subset| {
                    let chosen: Vec<usize> =
                        (0..=last).filter(|&n| n == last || subset >> n & 1 != 0).map(|n| sizes[n]).collect();
                    waste(&chosen, &blocks)
                })
                .fold(f64::INFINITY, f64::min);
            let chosen: Vec<usize> = found.sizes.iter().map(|size| size / 8).collect();
            assert!((waste(&chosen, &blocks) - best).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn without_sizes_there_are_no_classes() {
        assert_eq!(fit(&[0; LONGEST + 1], &[false; LONGEST + 1]), None);
    }
}
