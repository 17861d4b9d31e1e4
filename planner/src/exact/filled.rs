//! Nearly perfect packings: adds the missing buffers to make them perfect.
//!
//! If a buffer is missing from a perfect packing, the load falls by its size when it should start, and rises by as much when it should
//! end. So the steps of the load give buffers that complete the packing, and `perfect` places all of them. If two steps fall on one
//! moment, or two sizes are equal, these buffers are a guess, and others are tried.

use std::collections::BTreeMap;

use super::perfect;
use crate::bounds::load_changes;
use crate::deadline::Deadline;
use crate::model::{Buffer, Instance};

/// Number of guesses tried.
const TRIES: u64 = 64;

/// Places a plain instance in `capacity` bytes if it finds buffers that complete it to a perfect packing; `None` if it finds none, or
/// `deadline` passes. O(tries · n · live) expected.
pub fn pack(instance: &Instance, capacity: u64, deadline: &Deadline) -> Option<Vec<u64>> {
    let changes = load_changes(instance).into_iter();
    let mut steps: BTreeMap<i64, i128> = changes.map(|(time, change)| (time, -change)).collect();
    let (&from, step) = steps.iter_mut().next()?;
    *step += i128::from(capacity);
    let (&end, _) = steps.iter().next_back()?;
    (from < end).then_some(())?;
    for seed in 0..TRIES {
        if deadline.passed() {
            break;
        }
        let fillers = fillers(&steps, end, &mut fastrand::Rng::with_seed(seed), seed == 0)?;
        // Too many fillers are noise rather than missing buffers.
        if fillers.len() > instance.len() / 2 + 8 {
            return None;
        }
        let all = instance.buffers().iter().cloned().chain(fillers).collect();
        if let Some(mut offsets) = perfect::pack(&Instance::unchecked(all), deadline) {
            offsets.truncate(instance.len());
            return Some(offsets);
        }
    }
    None
}

/// Makes buffers that together fill the free memory after each step; `None` if it would be negative.
fn fillers(
    steps: &BTreeMap<i64, i128>,
    end: i64,
    random: &mut fastrand::Rng,
    sure: bool,
) -> Option<Vec<Buffer>> {
    let mut falls: BTreeMap<i128, Vec<i64>> = BTreeMap::new();
    for (&time, &step) in steps.range(..end).filter(|(_, step)| **step < 0) {
        falls.entry(-step).or_default().push(time);
    }
    // Sizes and starts of fillers that have not ended.
    let mut open: Vec<(i128, i64)> = Vec::new();
    let mut made = Vec::new();
    for (&time, &step) in steps.range(..end).filter(|(_, step)| **step != 0) {
        // Whether the free memory falls by this size at a later step.
        let ends_later =
            |size: i128| falls.get(&size).and_then(|times| times.last()).is_some_and(|&last| last > time);
        let mut likely = || sure || random.u8(..8) > 0;
        let (mut closed, mut rest) = (Vec::new(), step);
        let equal = open.iter().position(|&(size, _)| size == -step);
        let turned = open.iter().position(|&(size, _)| size + step > 0 && ends_later(size + step));
        let two = || {
            (0..open.len()).find_map(|a| {
                let other = |b: &usize| open[a].0 + open[*b].0 == -step;
                (a + 1..open.len()).find(other).map(|b| (a, b))
            })
        };
        // Two fillers that start together and end apart.
        let parts = || {
            falls
                .keys()
                .copied()
                .find(|&size| 2 * size <= step && ends_later(size) && ends_later(step - size))
        };
        if let Some(one) = equal.filter(|_| likely()) {
            closed.push(one);
        } else if step > 0 && ends_later(step) && likely() {
            // One filler starts.
        } else if let Some(size) = parts().filter(|_| step > 0 && likely()) {
            open.push((size, time));
            rest -= size;
        } else if let Some((a, b)) = two().filter(|_| step < 0 && likely()) {
            closed.extend([b, a]);
        } else if let Some(one) = turned.filter(|_| likely()) {
            closed.push(one);
        } else if step < 0 {
            // End the smallest filler that is large enough, or as many of the latest as needed.
            let enough = (0..open.len()).filter(|&n| open[n].0 >= -step).min_by_key(|&n| open[n].0);
            match enough {
                Some(one) => closed.push(one),
                None => {
                    let mut left = -step;
                    for n in (0..open.len()).rev() {
                        if left > 0 {
                            left -= open[n].0;
                            closed.push(n);
                        }
                    }
                }
            }
        }
        for n in closed {
            let (size, start) = open.remove(n);
            rest += size;
            made.push((size, start, time));
        }
        match rest {
            0 => {}
            1.. => open.push((rest, time)),
            _ => return None,
        }
    }
    made.extend(open.into_iter().map(|(size, start)| (size, start, end)));
    let buffer = |(size, start, end)| Some(Buffer::new("", u64::try_from(size).ok()?, start, end));
    made.into_iter().map(buffer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{mosaic_packing, perfect_packing, pinwheel_packing};
    use crate::validate::validate;

    /// Perfect packings without three in a hundred of their buffers.
    #[test]
    fn what_is_missing_is_found() {
        let mut packed = [0; 3];
        for seed in 0..3 {
            let height = 1 << 20;
            let steps = 4000;
            let made = [
                perfect_packing(1000, steps, height, seed),
                pinwheel_packing(1000, steps, height, seed),
                mosaic_packing(1000, steps, height, seed),
            ];
            for (kind, whole) in made.iter().enumerate() {
                let mut left: Vec<usize> = (0..whole.len()).collect();
                fastrand::Rng::with_seed(seed).shuffle(&mut left);
                left.truncate(whole.len() * 97 / 100);
                let instance = whole.part(&left);
                if let Some(offsets) = pack(&instance, height, &Deadline::after_looks(4000)) {
                    validate(&instance, &offsets, Some(height)).unwrap();
                    packed[kind] += 1;
                }
            }
        }
        println!("{packed:?} of 3");
        assert!(packed.iter().all(|&count| count >= 1), "{packed:?}");
    }
}
