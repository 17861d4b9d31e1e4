//! Cuts time into sections.

/// Lifetimes mapped onto the maximal sets of buffers that are live at once.
///
/// Which buffers conflict depends only on these sets (cliques of the interval graph), so a section is kept only
/// where a start follows an end: every other moment's set is contained in a neighbour's. Buffer `n` covers the
/// sections `first[n]..last[n]`; an empty lifetime covers none.
#[derive(Clone, Debug)]
pub struct Sections {
    /// First section of each buffer.
    pub first: Vec<u32>,
    /// The section after each buffer's last.
    pub last: Vec<u32>,
    /// Number of sections.
    pub count: usize,
    /// A moment in each section: the latest start of a buffer in it.
    pub times: Vec<i64>,
}

impl Sections {
    /// Cuts the time of half-open lifetimes. O(n log n).
    pub fn new(lifetimes: impl Iterator<Item = (i64, i64)>) -> Self {
        let mut events = Vec::new();
        let mut n = 0_u32;
        for (start, end) in lifetimes {
            if start < end {
                events.push((start, true, n));
                events.push((end, false, n));
            }
            n += 1;
        }
        // Ends before starts: lifetimes are half-open.
        events.sort_unstable();
        let (mut first, mut last) = (vec![0; n as usize], vec![0; n as usize]);
        let mut times = Vec::new();
        let mut ended = true;
        for (time, starts, n) in events {
            if starts {
                if ended {
                    times.push(time);
                }
                *times.last_mut().expect("the first event is a start") = time;
                first[n as usize] = times.len() as u32 - 1;
            } else {
                last[n as usize] = times.len() as u32;
            }
            ended = !starts;
        }
        Self { first, last, count: times.len(), times }
    }

    /// Returns the sum of `weight` over the live buffers of each section.
    pub fn load(&self, weight: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut load = vec![0_u64; self.count + 1];
        for (n, (&first, &last)) in self.first.iter().zip(&self.last).enumerate() {
            load[first as usize] = load[first as usize].wrapping_add(weight(n));
            load[last as usize] = load[last as usize].wrapping_sub(weight(n));
        }
        let mut sum = 0_u64;
        for value in &mut load {
            sum = sum.wrapping_add(*value);
            *value = sum;
        }
        load.truncate(self.count);
        load
    }
}
