//! Figures over time, in a fixed number of buckets.

use serde::Serialize;

/// The most buckets that a trace is divided into.
pub const BUCKETS: usize = 4096;

/// Returns where bucket `bucket` of `buckets` begins, in a trace of `events`.
pub fn start(bucket: usize, buckets: usize, events: usize) -> usize {
    (bucket as u128 * events as u128 / buckets.max(1) as u128) as usize
}

/// Returns the bucket that event number `event` falls into.
pub fn bucket_of(event: usize, buckets: usize, events: usize) -> usize {
    // The last bucket that begins at the event or before it.
    (((event as u128 + 1) * buckets as u128).div_ceil(events.max(1) as u128) - 1) as usize
}

/// The least and the greatest value in each bucket.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Range {
    /// The least values.
    pub min: Vec<u64>,
    /// The greatest values.
    pub max: Vec<u64>,
}

impl Range {
    /// Takes the values of the events in order: `bucket` never decreases and skips none.
    pub fn add(&mut self, bucket: usize, value: u64) {
        if bucket == self.min.len() {
            self.min.push(value);
            self.max.push(value);
        } else {
            self.min[bucket] = self.min[bucket].min(value);
            self.max[bucket] = self.max[bucket].max(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_the_bucket_that_holds_it() {
        for (events, buckets) in [(1, 1), (7, 7), (10, 3), (1000, 64), (4097, 4096)] {
            for event in 0..events {
                let bucket = bucket_of(event, buckets, events);
                assert!(start(bucket, buckets, events) <= event, "{event} of {events} in {buckets}");
                assert!(event < start(bucket + 1, buckets, events), "{event} of {events} in {buckets}");
            }
        }
    }

    #[test]
    fn extremes_survive() {
        let mut range = Range::default();
        for (event, value) in [5, 9, 1, 4, 4, 7].into_iter().enumerate() {
            range.add(bucket_of(event, 2, 6), value);
        }
        assert_eq!((range.min, range.max), (vec![1, 4], vec![9, 7]));
    }
}
