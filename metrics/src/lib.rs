//! Metrics of heaps and pools while a program runs, in the text format of Prometheus (OpenMetrics).
//!
//! [`Memory`] is a collector of the crate `prometheus-client`: it queries its sources for statistics when it is scraped, and costs
//! nothing in between. The names are those of OpenTelemetry, with `_` for `.` and the unit at the end, as in Prometheus.
//!
//! ```
//! use allotment::pool::PoolStats;
//! use allotment_metrics::Memory;
//! use prometheus_client::registry::Registry;
//!
//! let mut registry = Registry::default();
//! registry.register_collector(Box::new(Memory::default().pool("buffers", || PoolStats { hits: 7, ..PoolStats::default() })));
//! let mut text = String::new();
//! prometheus_client::encoding::text::encode(&mut text, &registry)?;
//! assert!(text.contains("allotment_memory_requests_total{heap=\"buffers\",result=\"hit\"} 7\n"));
//! # Ok::<(), std::fmt::Error>(())
//! ```
//!
//! | metric | heaps | growing | pools | |
//! | --- | --- | --- | --- | --- |
//! | `allotment_memory_used_bytes` | x | x | x | live blocks, including rounding |
//! | `allotment_memory_peak_bytes` | x | x | x | peak of the used bytes so far |
//! | `allotment_memory_requested_bytes` | | | x | live blocks, as requested |
//! | `allotment_memory_limit_bytes` | x | | | capacity of the heap |
//! | `allotment_memory_committed_bytes` | | x | x | memory obtained from the system or the device |
//! | `allotment_memory_reserved_bytes` | | x | | reserved addresses |
//! | `allotment_memory_free_bytes` | x | x | x | held, but in no live block |
//! | `allotment_memory_largest_free_bytes` | x | | x | the largest request that is sure to succeed, or the largest free block |
//! | `allotment_memory_blocks` | x | | x | live blocks |
//! | `allotment_memory_failures_total` | x | | x | requests that failed |
//! | `allotment_memory_allocated_bytes_total` | | | x | total bytes allocated |
//! | `allotment_memory_released_bytes_total` | | x | | memory returned to the system |
//! | `allotment_memory_requests_total` | | | x | requests by `result`: `hit`, or `miss` if the source was called |
//! | `allotment_memory_waits_total` | | | x | times that the caller was blocked for an event |
//! | `allotment_memory_source_seconds_total` | | | x | time in calls of the source |
//!
//! [`Memory::timings`] adds `allotment_memory_operation_duration_seconds`, a histogram for each `operation` (`allocate`, `free`, `resize`),
//! and [`Memory::contention`] adds `allotment_memory_lock_acquisitions_total` and `allotment_memory_lock_waits_total`.
//!
//! With the feature `tracing`, [`SpanTags`] tags a thread's allocations with its current span.

#[cfg(feature = "tracing")]
mod spans;

#[cfg(feature = "tracing")]
pub use spans::SpanTags;

use std::fmt;
use std::time::Duration;

use allotment::Stats;
use allotment::lock::Contention;
use allotment::observe::{Histogram, Timings};
use allotment::os::GrowingStats;
use allotment::pool::PoolStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// A metric for which each heap may have a value.
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
}

const fn gauge(name: &'static str, help: &'static str, unit: Option<Unit>) -> Family {
    Family { name, help, unit, kind: MetricType::Gauge }
}

const fn counter(name: &'static str, help: &'static str, unit: Option<Unit>) -> Family {
    Family { name, help, unit, kind: MetricType::Counter }
}

/// All metrics, in the order of output.
static FAMILIES: [Family; 20] = [
    gauge("used", "Live blocks, rounding included", Some(Unit::Bytes)),
    gauge("peak", "The most that was used so far", Some(Unit::Bytes)),
    gauge("mean", "The mean of what was requested, since the pool's start", Some(Unit::Bytes)),
    gauge("requested", "Live blocks, as requested", Some(Unit::Bytes)),
    gauge("limit", "What the heap can hold", Some(Unit::Bytes)),
    gauge("committed", "Memory that the system or the device has given", Some(Unit::Bytes)),
    gauge("reserved", "Addresses that were reserved", Some(Unit::Bytes)),
    gauge("free", "Memory that is held, and in no live block", Some(Unit::Bytes)),
    gauge("largest_free", "The largest free block", Some(Unit::Bytes)),
    gauge("blocks", "Live blocks", None),
    counter("failures", "Requests that failed", None),
    counter("allocated", "All that was ever allocated", Some(Unit::Bytes)),
    counter("released", "Memory that went back to the system", Some(Unit::Bytes)),
    counter("requests", "Requests, by whether the source was asked", None),
    counter("waits", "Events that the caller was blocked for", None),
    counter("source", "Time in calls of the source", Some(Unit::Seconds)),
    counter("recovery", "Time in requests without room, by what they did", Some(Unit::Seconds)),
    counter("lock_acquisitions", "How often the heap's lock was acquired", None),
    counter("lock_waits", "Acquisitions of the heap's lock that had to wait", None),
    Family {
        name: "operation_duration",
        help: "How long operations took",
        unit: Some(Unit::Seconds),
        kind: MetricType::Histogram,
    },
];

/// The value of a metric for one heap.
enum Value {
    Count(u64),
    /// With a second label.
    Labelled((&'static str, &'static str), u64),
    Time(Duration),
    /// With a second label.
    LabelledTime((&'static str, &'static str), Duration),
    /// The durations of an operation, and the ticks per second.
    Durations(&'static str, Histogram, f64),
}

/// Returns the upper end in seconds and the number of operations of each class of a histogram. The number of classes is constant, as
/// Prometheus requires.
fn buckets(histogram: &Histogram, ticks_per_second: f64) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> =
        (1..32).map(|log| (f64::from(1_u32 << log) / ticks_per_second, 0)).chain([(f64::MAX, 0)]).collect();
    for (ticks, count) in histogram.histogram() {
        buckets[ticks.ilog2() as usize].1 += u64::from(count);
    }
    buckets
}

/// The values of a heap, with the names of their metrics.
type Values = Vec<(&'static str, Value)>;

/// A heap's name, and the function that returns its values.
type Source = (String, Box<dyn Fn() -> Values + Send + Sync>);

/// Collects the statistics of heaps and pools, each with a name: the label `heap`.
#[derive(Default)]
pub struct Memory {
    sources: Vec<Source>,
}

impl Memory {
    /// Adds a heap with statistics from `stats`.
    #[must_use]
    pub fn heap(self, name: &str, stats: impl Fn() -> Stats + Send + Sync + 'static) -> Self {
        self.with(name, move || {
            let stats = stats();
            let count = |value: usize| Value::Count(value as u64);
            vec![
                ("used", count(stats.used)),
                ("peak", count(stats.peak)),
                ("limit", count(stats.capacity)),
                ("free", count(stats.free)),
                ("largest_free", count(stats.largest_free)),
                ("blocks", count(stats.live_blocks)),
                ("failures", count(stats.failed)),
            ]
        })
    }

    /// Adds a growing heap with statistics from `stats`.
    #[must_use]
    pub fn growing(self, name: &str, stats: impl Fn() -> GrowingStats + Send + Sync + 'static) -> Self {
        self.with(name, move || {
            let stats = stats();
            let count = |value: usize| Value::Count(value as u64);
            vec![
                ("used", count(stats.used)),
                ("peak", count(stats.peak)),
                ("committed", count(stats.committed)),
                ("reserved", count(stats.reserved)),
                ("free", count(stats.dirty)),
                ("released", Value::Count(stats.purged)),
            ]
        })
    }

    /// Adds a pool with statistics from `stats`.
    #[must_use]
    pub fn pool(self, name: &str, stats: impl Fn() -> PoolStats + Send + Sync + 'static) -> Self {
        self.with(name, move || {
            let stats = stats();
            let mut values = vec![
                ("used", Value::Count(stats.allocated.current)),
                ("peak", Value::Count(stats.allocated.peak)),
                ("requested", Value::Count(stats.requested.current)),
                ("committed", Value::Count(stats.reserved.current)),
                ("free", Value::Count(stats.inactive.current)),
                ("largest_free", Value::Count(stats.largest_free)),
                ("blocks", Value::Count(stats.blocks.current)),
                ("failures", Value::Count(stats.failures)),
                ("allocated", Value::Count(stats.allocated.total)),
                ("requests", Value::Labelled(("result", "hit"), stats.hits)),
                ("requests", Value::Labelled(("result", "miss"), stats.misses)),
                ("waits", Value::Count(stats.calls.synchronize)),
                ("source", Value::Time(stats.calls.time)),
                ("lock_waits", Value::Count(stats.lock_waits)),
            ];
            // The pool measures the rest only if its options request it.
            if stats.latency.count > 0 {
                values.push(("mean", Value::Count(stats.mean)));
                values.push(("operation_duration", Value::Durations("allocate", stats.latency, 1e9)));
                let stages = PoolStats::STAGES.into_iter().zip(stats.recovery);
                values.extend(
                    stages
                        .map(|(stage, (_, time))| ("recovery", Value::LabelledTime(("stage", stage), time))),
                );
            }
            values
        })
    }

    /// Adds the durations of a heap's operations, as measured by a [`Timed`](allotment::Timed) with a clock of `ticks_per_second`.
    #[must_use]
    pub fn timings(
        self,
        name: &str,
        ticks_per_second: f64,
        timings: impl Fn() -> Timings + Send + Sync + 'static,
    ) -> Self {
        self.with(name, move || {
            let Timings { allocate, free, resize, .. } = timings();
            [("allocate", allocate), ("free", free), ("resize", resize)]
                .map(|(operation, times)| {
                    ("operation_duration", Value::Durations(operation, times, ticks_per_second))
                })
                .into()
        })
    }

    /// Adds the acquisitions of a heap's lock, and the acquisitions that had to wait, as counted by a
    /// [`Counted`](allotment::lock::Counted) lock.
    #[must_use]
    pub fn contention(self, name: &str, contention: impl Fn() -> Contention + Send + Sync + 'static) -> Self {
        self.with(name, move || {
            let Contention { taken, waited } = contention();
            vec![
                ("lock_acquisitions", Value::Count(taken as u64)),
                ("lock_waits", Value::Count(waited as u64)),
            ]
        })
    }

    fn with(mut self, name: &str, values: impl Fn() -> Values + Send + Sync + 'static) -> Self {
        // `prometheus-client` does not escape labels.
        let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        self.sources.push((name, Box::new(values)));
        self
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.sources.iter().map(|(name, _)| name)).finish()
    }
}

impl Collector for Memory {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Query each source once, so that its values are of one moment.
        let all: Vec<(&str, Values)> =
            self.sources.iter().map(|(name, values)| (name.as_str(), values())).collect();
        for Family { name, help, unit, kind } in &FAMILIES {
            if !all.iter().any(|(_, values)| values.iter().any(|(own, _)| own == name)) {
                continue;
            }
            let full = format!("allotment_memory_{name}");
            let mut family = encoder.encode_descriptor(&full, help, unit.as_ref(), *kind)?;
            for (heap, values) in &all {
                for (_, value) in values.iter().filter(|(own, _)| own == name) {
                    let mut labels = vec![("heap", *heap)];
                    match value {
                        Value::Labelled(label, _) | Value::LabelledTime(label, _) => labels.push(*label),
                        Value::Durations(operation, ..) => labels.push(("operation", operation)),
                        Value::Count(_) | Value::Time(_) => {}
                    }
                    let mut metric = family.encode_family(&labels)?;
                    match (value, kind) {
                        (Value::Count(count) | Value::Labelled(_, count), MetricType::Gauge) => {
                            ConstGauge::new(i64::try_from(*count).unwrap_or(i64::MAX)).encode(metric)?;
                        }
                        (Value::Count(count) | Value::Labelled(_, count), _) => {
                            ConstCounter::new(*count).encode(metric)?;
                        }
                        (Value::Time(time) | Value::LabelledTime(_, time), _) => {
                            ConstCounter::new(time.as_secs_f64()).encode(metric)?
                        }
                        (Value::Durations(_, times, ticks), _) => metric.encode_histogram::<NoLabelSet>(
                            times.total as f64 / ticks,
                            times.count.into(),
                            &buckets(times, *ticks),
                            None,
                        )?,
                    }
                }
            }
        }
        Ok(())
    }
}
