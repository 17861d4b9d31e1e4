//! The distributions of sizes and lifetimes, in powers of two.

use foldhash::HashMap;
use serde::Serialize;

use super::trace::{Action, Trace};

/// Values from `from` up to, but not including, `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Class {
    /// The first value.
    pub from: u64,
    /// The value behind the last one.
    pub to: u64,
    /// The number of values.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of values of blocks that were live at the end.
    pub live: u64,
}

/// One exact size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// In bytes.
    pub size: u64,
    /// Requests for it.
    pub count: u64,
    /// The most blocks of it that were live at once.
    pub most: u64,
}

/// Returns the number of the class of `value`: 0 for 0, else one more than its logarithm.
fn class(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// Returns the classes from the first to the last that is not empty.
fn classes(values: impl Iterator<Item = (u64, u64, bool)>) -> Vec<Class> {
    let empty = |class: u32| Class {
        from: if class == 0 { 0 } else { 1 << (class - 1) },
        to: 1_u64.checked_shl(class).unwrap_or(u64::MAX),
        count: 0,
        bytes: 0,
        live: 0,
    };
    let mut all: Vec<Class> = (0..=u64::BITS).map(empty).collect();
    for (value, bytes, live) in values {
        let class = &mut all[class(value)];
        class.count += 1;
        class.bytes = class.bytes.saturating_add(bytes);
        class.live += u64::from(live);
    }
    let used = |class: &Class| class.count > 0;
    let first = all.iter().position(used).unwrap_or(0);
    let last = all.iter().rposition(used).map_or(0, |last| last + 1);
    all.get(first..last).unwrap_or_default().to_vec()
}

/// Returns the sizes of all requests, resizing ones included.
pub fn sizes(trace: &Trace) -> Vec<Class> {
    let requests = trace.events.iter().filter(|event| event.action != Action::Free);
    classes(requests.map(|event| {
        let block = &trace.blocks[event.block as usize];
        (event.size, event.size, block.to.is_none() && block.size == event.size)
    }))
}

/// Returns the lifetimes of all blocks in events.
pub fn lifetimes(trace: &Trace) -> Vec<Class> {
    let events = trace.events.len();
    classes(trace.blocks.iter().map(|block| (block.lifetime(events), block.size, block.to.is_none())))
}

/// Returns the median of the lifetimes in events; 0 without blocks.
pub fn median_lifetime(trace: &Trace) -> u64 {
    let events = trace.events.len();
    let mut all: Vec<u64> = trace.blocks.iter().map(|block| block.lifetime(events)).collect();
    let middle = all.len() / 2;
    if all.is_empty() { 0 } else { *all.select_nth_unstable(middle).1 }
}

/// Returns every requested size, the most frequent first.
pub fn exact(trace: &Trace) -> Vec<Size> {
    let mut sizes: HashMap<u64, (Size, u64)> = HashMap::default();
    let mut now = vec![None; trace.blocks.len()];
    for event in &trace.events {
        if let Some(old) = now[event.block as usize].take() {
            sizes.entry(old).and_modify(|(_, live)| *live -= 1);
        }
        if event.action != Action::Free {
            let none = (Size { size: event.size, count: 0, most: 0 }, 0);
            let (size, live) = sizes.entry(event.size).or_insert(none);
            *live += 1;
            size.count += 1;
            size.most = size.most.max(*live);
            now[event.block as usize] = Some(event.size);
        }
    }
    let mut sizes: Vec<Size> = sizes.into_values().map(|(size, _)| size).collect();
    sizes.sort_unstable_by_key(|size| (std::cmp::Reverse(size.count), size.size));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_where_classes_begin() {
        let values = [1, 2, 3, 4, 7, 8];
        let found = classes(values.iter().map(|&value| (value, 10, value == 3)));
        let expected = [(1, 2, 1, 0), (2, 4, 2, 1), (4, 8, 2, 0), (8, 16, 1, 0)];
        let expected =
            expected.map(|(from, to, count, live)| Class { from, to, count, bytes: 10 * count, live });
        assert_eq!(found, expected);
        assert_eq!(classes([(u64::MAX, 0, false)].into_iter())[0].from, 1 << 63);
        assert_eq!(
            classes([(0, 0, false)].into_iter())[0],
            Class { from: 0, to: 1, count: 1, bytes: 0, live: 0 }
        );
    }
}
