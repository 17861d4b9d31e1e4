//! The targets of the default types on hosts, held against the figures of the CSV files.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::measures::{instructions, pathological, smallest, threads, throughput};
use crate::results::{self, Results};
use crate::statistics::geometric_mean;
use crate::table::escape;
use crate::trace::Set;

/// What is wanted of a figure.
#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// No more than the best peer of the same run.
    BestOfPeers,
    /// More than every peer of the same run.
    AheadOfPeers,
}

/// What becomes of the figures of several cases.
#[derive(Clone, Copy)]
enum Sum {
    /// The geometric mean over a set of traces.
    Mean(Set),
    /// The least of all cases.
    Least,
    /// One case.
    Case(&'static str),
}

/// A line of the table.
struct Target {
    /// What is measured.
    name: &'static str,
    /// The measure's file and metric.
    measure: &'static str,
    metric: &'static str,
    /// The subject.
    subject: &'static str,
    /// Another subject, whose figure is subtracted.
    beyond: Option<&'static str>,
    /// Its peers.
    peers: &'static [&'static str],
    sum: Sum,
    goal: Goal,
    digits: usize,
}

const COUNTED: Target = Target {
    name: "",
    measure: "instructions",
    metric: instructions::METRIC,
    subject: "Heap, no lock",
    beyond: None,
    peers: &["talc-5, no lock", "rlsf, no lock", "mimalloc"],
    sum: Sum::Mean(Set::Given),
    goal: Goal::AtMost(42.0),
    digits: 1,
};
const FURTHER: Sum = Sum::Mean(Set::Further);
const ALIGNED: Sum = Sum::Mean(Set::Aligned);
/// What the look-up of regions (at most 6 instructions) and statistics (at most 3) cost.
const EXTRAS: Target =
    Target { beyond: Some("Heap, stripped"), peers: &[], goal: Goal::AtMost(9.0), ..COUNTED };
const LOCKED: &[&str] = &["talc-5", "rlsf", "mimalloc"];
const TIMED: Target = Target {
    measure: "throughput",
    metric: throughput::PLAIN,
    peers: &["rlsf, no lock"],
    digits: 2,
    ..COUNTED
};
/// The same without what the loop around the calls takes.
const TIMED_ALONE: Target = Target { metric: throughput::SUBTRACTED, ..TIMED };
const TIMED_LOCKED: Target =
    Target { subject: "Heap", peers: &["mimalloc", "snmalloc", "jemalloc", "system"], ..TIMED };
const TIMED_ALONE_LOCKED: Target = Target { metric: throughput::SUBTRACTED, ..TIMED_LOCKED };
const DENSE: Target = Target {
    measure: "smallest",
    metric: smallest::METRIC,
    subject: "Heap",
    peers: &["linked-list, no lock", "talc-5, no lock", "rlsf, no lock"],
    goal: Goal::AtMost(1.085),
    digits: 3,
    ..COUNTED
};
const RANDOM: Target =
    Target { measure: "random", peers: &[], sum: Sum::Least, goal: Goal::AtLeast(1.0), ..TIMED };
const FAILING: Target = Target {
    measure: "pathological",
    metric: pathological::FAILING,
    peers: &["rlsf, no lock", "talc-5, no lock"],
    sum: Sum::Case("30,000 gaps"),
    goal: Goal::AtMost(4.0),
    ..COUNTED
};
const THREADS: Target = Target {
    measure: "threads",
    metric: threads::METRIC,
    subject: "Cached",
    peers: &["mimalloc", "snmalloc"],
    goal: Goal::AheadOfPeers,
    digits: 1,
    ..COUNTED
};

const TARGETS: &[Target] = &[
    Target { name: "instructions per operation, given traces", ..COUNTED },
    Target { name: "instructions, further traces", sum: FURTHER, ..COUNTED },
    Target { name: "instructions, given traces, with locks", subject: "Heap", peers: LOCKED, ..COUNTED },
    Target {
        name: "instructions, further traces, with locks",
        subject: "Heap",
        peers: LOCKED,
        sum: FURTHER,
        ..COUNTED
    },
    Target {
        name: "instructions, 64-byte alignments (ffmpeg)",
        sum: ALIGNED,
        goal: Goal::AtMost(50.0),
        ..COUNTED
    },
    Target {
        name: "instructions, 64-byte alignments, with locks",
        subject: "Heap",
        peers: LOCKED,
        sum: ALIGNED,
        goal: Goal::AtMost(50.0),
        ..COUNTED
    },
    Target {
        name: "instructions, given traces",
        subject: "Heap<Tlsf>, no lock",
        goal: Goal::AtMost(90.0),
        ..COUNTED
    },
    Target {
        name: "instructions, further traces",
        subject: "Heap<Tlsf>, no lock",
        sum: FURTHER,
        goal: Goal::AtMost(90.0),
        ..COUNTED
    },
    Target {
        name: "instructions with merging deferred, given traces",
        subject: "Heap<QuickLists>, no lock",
        goal: Goal::AtMost(60.0),
        ..COUNTED
    },
    Target {
        name: "instructions with merging deferred, further traces",
        subject: "Heap<QuickLists>, no lock",
        sum: FURTHER,
        goal: Goal::AtMost(60.0),
        ..COUNTED
    },
    Target { name: "regions and statistics: instructions, given traces", ..EXTRAS },
    Target { name: "regions and statistics: instructions, further traces", sum: FURTHER, ..EXTRAS },
    Target {
        name: "regions and statistics: instructions, given traces",
        subject: "Heap<Tlsf>, no lock",
        beyond: Some("Heap<Tlsf>, stripped"),
        ..EXTRAS
    },
    Target {
        name: "regions and statistics: instructions, further traces",
        subject: "Heap<Tlsf>, no lock",
        beyond: Some("Heap<Tlsf>, stripped"),
        sum: FURTHER,
        ..EXTRAS
    },
    Target {
        name: "instructions, given traces, with locks",
        subject: "Heap<Tlsf>",
        peers: LOCKED,
        goal: Goal::AtMost(90.0),
        ..COUNTED
    },
    Target {
        name: "instructions, further traces, with locks",
        subject: "Heap<Tlsf>",
        peers: LOCKED,
        sum: FURTHER,
        goal: Goal::AtMost(90.0),
        ..COUNTED
    },
    Target {
        name: "instructions with merging deferred and locks, given traces",
        subject: "Heap<QuickLists>",
        peers: LOCKED,
        goal: Goal::AtMost(60.0),
        ..COUNTED
    },
    Target {
        name: "instructions with merging deferred and locks, further traces",
        subject: "Heap<QuickLists>",
        peers: LOCKED,
        sum: FURTHER,
        goal: Goal::AtMost(60.0),
        ..COUNTED
    },
    Target { name: "throughput ÷ talc 5, given traces", goal: Goal::AtLeast(2.0), ..TIMED },
    Target { name: "throughput, further traces", sum: FURTHER, goal: Goal::AtLeast(1.8), ..TIMED },
    Target { name: "throughput, worst trace of all", sum: Sum::Least, goal: Goal::AtLeast(1.0), ..TIMED },
    Target { name: "throughput without the harness, given traces", goal: Goal::AtLeast(2.0), ..TIMED_ALONE },
    Target {
        name: "throughput without the harness, further traces",
        sum: FURTHER,
        goal: Goal::AtLeast(1.8),
        ..TIMED_ALONE
    },
    Target { name: "throughput, given traces, with locks", goal: Goal::AtLeast(2.0), ..TIMED_LOCKED },
    Target {
        name: "throughput, further traces, with locks",
        sum: FURTHER,
        goal: Goal::AtLeast(1.8),
        ..TIMED_LOCKED
    },
    Target {
        name: "throughput, worst trace of all, with locks",
        sum: Sum::Least,
        goal: Goal::AtLeast(1.0),
        ..TIMED_LOCKED
    },
    Target {
        name: "throughput without the harness, given traces, with locks",
        subject: "Heap",
        goal: Goal::AtLeast(2.0),
        ..TIMED_ALONE_LOCKED
    },
    Target {
        name: "throughput without the harness, further traces, with locks",
        subject: "Heap",
        sum: FURTHER,
        goal: Goal::AtLeast(1.8),
        ..TIMED_ALONE_LOCKED
    },
    Target {
        name: "throughput, given traces, with caches",
        subject: "Cached",
        goal: Goal::AheadOfPeers,
        ..TIMED_LOCKED
    },
    Target {
        name: "throughput, further traces, with caches",
        subject: "Cached",
        sum: FURTHER,
        goal: Goal::AheadOfPeers,
        ..TIMED_LOCKED
    },
    Target { name: "smallest arena ÷ peak, given traces", ..DENSE },
    Target { name: "smallest arena, further traces", sum: FURTHER, ..DENSE },
    Target {
        name: "smallest arena, given traces",
        subject: "Heap<Tlsf>",
        peers: &["linked-list, no lock"],
        goal: Goal::BestOfPeers,
        ..DENSE
    },
    Target {
        name: "smallest arena, further traces",
        subject: "Heap<Tlsf>",
        peers: &["linked-list, no lock"],
        sum: FURTHER,
        goal: Goal::BestOfPeers,
        ..DENSE
    },
    Target { name: "a request that fails among 30,000 gaps, ns", subject: "Heap, no lock", ..FAILING },
    Target { name: "a request that fails among 30,000 gaps, ns", subject: "Heap<Tlsf>, no lock", ..FAILING },
    Target {
        name: "a request that fails among 30,000 gaps, with locks, ns",
        subject: "Heap",
        peers: &["talc-5"],
        ..FAILING
    },
    Target { name: "talc's random actions ÷ talc 5, worst column", ..RANDOM },
    Target { name: "talc's random actions, worst column, with locks", subject: "Heap", ..RANDOM },
    Target { name: "larson, 2 threads, ÷ talc 5", sum: Sum::Case("larson, 2 threads"), ..THREADS },
    Target {
        name: "producer-consumer, 2 threads",
        sum: Sum::Case("producer-consumer, 2 threads"),
        ..THREADS
    },
    Target { name: "mixed, 2 threads", sum: Sum::Case("mixed, 2 threads"), ..THREADS },
    Target { name: "large, 2 threads", sum: Sum::Case("large, 2 threads"), ..THREADS },
];

impl Target {
    fn value(&self, results: &Results, subject: &str) -> Option<f64> {
        let get = |case: &str| results.get(self.metric, case, subject);
        match self.sum {
            Sum::Case(case) => get(case),
            Sum::Least => {
                let values: Option<Vec<f64>> =
                    results.cases(self.metric).iter().map(|case| get(case)).collect();
                values?.into_iter().reduce(f64::min)
            }
            Sum::Mean(set) => {
                let cases = results.cases(self.metric);
                let values: Option<Vec<f64>> =
                    cases.iter().filter(|case| Set::of(case) == set).map(|case| get(case)).collect();
                values.filter(|values| !values.is_empty()).map(|values| geometric_mean(&values))
            }
        }
    }

    /// A row of the table; `None` if the figure is not there.
    fn row(&self, results: &Results) -> Option<String> {
        let digits = self.digits;
        let mut value = self.value(results, self.subject)?;
        if let Some(other) = self.beyond {
            value -= self.value(results, other)?;
        }
        let peers: Vec<(&str, f64)> =
            self.peers.iter().filter_map(|&id| Some((id, self.value(results, id)?))).collect();
        let values = || peers.iter().map(|peer| peer.1);
        let (goal, distance) = match self.goal {
            Goal::AtMost(most) => (format!("≤ {most}"), value - most),
            Goal::AtLeast(least) => (format!("≥ {least}"), least - value),
            Goal::BestOfPeers => ("≤ the peer's".into(), value - values().reduce(f64::min)?),
            Goal::AheadOfPeers => ("> each peer's".into(), values().reduce(f64::max)? - value),
        };
        let met = if distance <= 0.0 { "met".into() } else { format!("missed by {distance:.digits$}") };
        let peers: Vec<_> =
            peers.iter().map(|(id, value)| format!("{} {value:.digits$}", escape(id))).collect();
        let (subject, peers) = (escape(self.subject), peers.join(", "));
        Some(format!("| {} | {subject} | {goal} | **{value:.digits$}** | {met} | {peers} |", self.name))
    }
}

const HEAD: &str = "| measure | type | target | now | | peers |\n|---|---|---|---|---|---|\n";

fn rows(folder: &Path) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for target in TARGETS {
        let results = results::read(folder, target.measure)?;
        rows.extend(results.and_then(|results| target.row(&results)));
    }
    Ok(rows)
}

/// Every target.
pub fn table(folder: &Path) -> Result<String> {
    Ok(format!(
        "## Targets on hosts\n\nThe default types as programs register them; *no lock* is the same type without its lock, \
         beside peers without theirs. Instructions are those beyond the harness.\n\n{HEAD}{}\n",
        rows(folder)?.join("\n")
    ))
}

/// The targets that are missed, and how many are met.
pub fn section(folder: &Path) -> Result<String> {
    let rows = rows(folder)?;
    let (missed, met): (Vec<String>, Vec<String>) =
        rows.into_iter().partition(|row| row.contains("| missed by "));
    let mut text = format!(
        "\n## Targets on hosts\n\n{} of {} are met; these are not. Table: `targets`, with the peers' figures.\n\n\
         | measure | type | target | now | |\n|---|---|---|---|---|\n",
        met.len(),
        met.len() + missed.len()
    );
    for row in &missed {
        // Without the last cell, the peers'.
        let cells: Vec<&str> = row.split('|').take(6).collect();
        writeln!(text, "{}|", cells.join("|"))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Row;
    #[cfg(feature = "peers")]
    use crate::subjects;

    #[test]
    fn a_miss_is_a_miss_and_a_hit_a_hit() {
        let rows = |value: f64| {
            vec![
                Row::new("larson, 2 threads", "Cached", threads::METRIC, value),
                Row::new("larson, 2 threads", "mimalloc", threads::METRIC, 5.0),
                Row::new("larson, 2 threads", "snmalloc", threads::METRIC, 7.0),
            ]
        };
        let row = |value| {
            let target = Target { name: "larson", sum: Sum::Case("larson, 2 threads"), ..THREADS };
            target.row(&Results { origin: vec![], rows: rows(value) }).unwrap()
        };
        assert_eq!(
            row(6.0),
            "| larson | Cached | > each peer's | **6.0** | missed by 1.0 | mimalloc 5.0, snmalloc 7.0 |"
        );
        assert!(row(7.5).contains("| met |"));
    }

    #[test]
    fn means_are_over_all_traces_of_a_set_or_not_at_all() {
        let rows = vec![
            Row::new("cc1", "Heap, no lock", instructions::METRIC, 20.0),
            Row::new("redis", "Heap, no lock", instructions::METRIC, 80.0),
            Row::new("cc1", "mimalloc", instructions::METRIC, 50.0),
            Row::new("git_gc", "Heap, no lock", instructions::METRIC, 1000.0),
        ];
        let row = Target { name: "n", ..COUNTED }.row(&Results { origin: vec![], rows }).unwrap();
        assert_eq!(row, "| n | Heap, no lock | ≤ 42 | **40.0** | met |  |");
    }

    #[test]
    fn the_figure_of_another_subject_is_subtracted() {
        let row = |subject, value| Row::new("cc1", subject, instructions::METRIC, value);
        let rows = vec![row("Heap, no lock", 42.0), row("Heap, stripped", 31.0)];
        let row = Target { name: "n", ..EXTRAS }.row(&Results { origin: vec![], rows }).unwrap();
        assert_eq!(row, "| n | Heap, no lock | ≤ 9 | **11.0** | missed by 2.0 |  |");
    }

    #[cfg(feature = "peers")]
    #[test]
    fn subjects_are_known_where_there_is_a_registry_of_them() {
        for target in TARGETS.iter().filter(|target| target.measure != "threads") {
            let native = ["mimalloc", "snmalloc", "jemalloc"];
            let subjects = target.peers.iter().chain([&target.subject]).chain(&target.beyond);
            for id in subjects.filter(|id| !native.contains(id)) {
                assert!(subjects::entry(id).is_some(), "{id}");
            }
        }
    }
}
