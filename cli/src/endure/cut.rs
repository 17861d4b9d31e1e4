//! Cuts a recording into episodes.

use std::collections::HashMap;
use std::sync::Arc;

use allotment_trace::Record;

use crate::advise::run::Run;
use crate::failure::Failure;
use crate::input::Input;

/// The beginnings of the episodes.
pub struct Cuts {
    /// The first event of each episode, and of the last episode, which may be cut off and is not used.
    pub at: Vec<usize>,
    /// A description of how they were found.
    pub by: String,
}

/// The marks and times of a trace.
#[derive(Default)]
pub struct Notes {
    /// The number of the event after each mark.
    pub marks: Vec<usize>,
    /// The time from the first event to the last in seconds, if the clock is known.
    pub seconds: Option<f64>,
}

impl Notes {
    /// Reads times, and the marks named `mark`: comments `# mark NAME`, or notes `mark NAME` on the event before.
    ///
    /// # Errors
    /// If the trace cannot be read.
    pub fn read(input: &Input, mark: Option<&str>) -> Result<Self, Failure> {
        let mut records = input.records()?;
        let known = records.header().get("clock") == Some("ns") || records.is_binary();
        let (mut events, mut times, mut notes) = (0, None, Self::default());
        let is = |text: &str| text.strip_prefix("mark ").map(str::trim) == mark;
        for record in records.by_ref() {
            match record.map_err(Failure::trace(input.shown()))?.1 {
                Record::Event(event) => {
                    events += 1;
                    if let Some(time) = event.time {
                        times = Some((times.map_or(time, |(first, _)| first), time));
                    }
                }
                Record::Comment(text) | Record::Note(text) if mark.is_some() && is(&text) => {
                    notes.marks.push(events);
                }
                _ => {}
            }
        }
        notes.seconds = times
            .filter(|&(first, last)| known && last > first)
            .map(|(first, last)| (last - first) as f64 / 1e9);
        Ok(notes)
    }
}

/// Least number of episodes for a forecast.
const FEWEST: usize = 8;
/// A sufficient number of episodes; more would separate events that belong together.
const ENOUGH: usize = 100;
/// Number of signatures tried.
const TRIED: usize = 24;

/// Finds the beginnings of episodes: at marks, where a tag begins, or where a recurring request finds the fewest live bytes from before.
///
/// # Errors
/// If there are too few episodes.
pub fn cuts(run: &Run, notes: &Notes, mark: Option<&str>, tag: Option<&str>) -> Result<Cuts, Failure> {
    let (starts, by) = if let Some(mark) = mark {
        (notes.marks.clone(), format!("the mark {mark}"))
    } else if let Some(tag) = tag {
        (of_tag(run, tag), format!("where the tag {tag} begins"))
    } else {
        found(run)
    };
    let mut at: Vec<usize> = starts.into_iter().filter(|&at| at < run.end).collect();
    at.dedup();
    if at.len() <= FEWEST {
        return Err(Failure::Other(format!(
            "only {} whole episodes are in it ({by}), and a forecast needs at least {FEWEST}: record for longer, or say with --mark or --tag \
             where they begin",
            at.len().saturating_sub(1)
        )));
    }
    Ok(Cuts { at, by })
}

fn of_tag(run: &Run, tag: &str) -> Vec<usize> {
    let mut inside = false;
    let mut starts = Vec::new();
    for life in run.lives.iter().filter(|life| life.from < run.end) {
        let is = life.tag.as_deref() == Some(tag);
        if is && !inside {
            starts.push(life.from);
        }
        inside = is;
    }
    starts
}

/// Size, alignment and tag of a request.
type Signature = (usize, usize, Option<Arc<str>>);

/// Tries the most frequent requests, and the returns of the live bytes to a low level. Of the candidates with the fewest bytes live
/// across cuts, in blocks that end later, it uses the one with about [`ENOUGH`] episodes.
fn found(run: &Run) -> (Vec<usize>, String) {
    let mut by: HashMap<Signature, Vec<usize>> = HashMap::new();
    for life in run.lives.iter().filter(|life| life.from < run.end) {
        by.entry((life.sizes[0], life.align, life.tag.clone())).or_default().push(life.from);
    }
    let mut candidates: Vec<(Vec<usize>, String)> = Vec::new();
    let mut signatures: Vec<_> = by.into_iter().filter(|(_, starts)| starts.len() >= FEWEST).collect();
    signatures.sort_by(|a, b| (b.1.len(), &a.0).cmp(&(a.1.len(), &b.0)));
    // Try the most frequent signatures, and those with the most bytes.
    let mut large = signatures.clone();
    large.sort_by(|a, b| (b.0.0, &b.0).cmp(&(a.0.0, &a.0)));
    large.truncate(TRIED / 2);
    signatures.truncate(TRIED);
    for ((size, _, tag), starts) in signatures.into_iter().chain(large) {
        let tag = tag.map_or(String::new(), |tag| format!(" under the tag {tag}"));
        candidates.push((starts, format!("requests of {size} B{tag}")));
    }
    candidates.push((lows(run), "returns of the live bytes to a low level".into()));
    let mut measured: Vec<(f64, Vec<usize>, String)> = candidates
        .into_iter()
        .map(|(starts, by)| {
            let (starts, across) = quiet(run, starts);
            (across, starts, by)
        })
        .filter(|(_, starts, _)| starts.len() > FEWEST)
        .collect();
    let least = measured.iter().map(|one| one.0).fold(f64::INFINITY, f64::min);
    let close = least + 0.01 * run.program.peak as f64;
    measured.retain(|one| one.0 <= close);
    let key = |starts: &Vec<usize>| match starts.len() {
        enough if enough >= ENOUGH => (0, enough),
        fewer => (1, usize::MAX - fewer),
    };
    measured.sort_by(|a, b| (key(&a.1), &a.2).cmp(&(key(&b.1), &b.2)));
    measured.into_iter().next().map_or((Vec::new(), "none was found".into()), |(_, starts, by)| (starts, by))
}

/// Returns the first events after the live bytes fell from a high level to a low one.
fn lows(run: &Run) -> Vec<usize> {
    let mut levels = run.live[..run.end].to_vec();
    levels.sort_unstable();
    let at = |share: usize| levels[(levels.len() - 1) * share / 100];
    let (low, high) = (at(10), at(60));
    let mut starts = Vec::new();
    let mut was_high = false;
    for (event, &live) in run.live[..run.end].iter().enumerate() {
        if live >= high && high > low {
            was_high = true;
        } else if was_high && live <= low {
            was_high = false;
            starts.push(event + 1);
        }
    }
    starts
}

/// The first of this many parts of the cuts, by the bytes live across, defines the usual number of bytes.
const USUAL: usize = 4;

/// Returns the cuts with hardly more bytes live across than usual, and the mean of those bytes. It counts blocks that are freed within a
/// tenth of all cuts or live at the end. This rules out requests of equal size in the middle of an episode.
fn quiet(run: &Run, starts: Vec<usize>) -> (Vec<usize>, f64) {
    let mut changes = vec![0_i64; starts.len() + 1];
    for life in &run.lives {
        // A block that is live at the end crosses all cuts from its start, unless it started long before.
        let to = life.to.unwrap_or(run.end).min(run.end);
        let first = starts.partition_point(|&at| at <= life.from);
        let behind = starts.partition_point(|&at| at <= to);
        if behind - first <= (starts.len() / 10).max(2) {
            changes[first] += life.sizes[1] as i64;
            changes[behind] -= life.sizes[1] as i64;
        }
    }
    let mut across = 0;
    let crossed: Vec<(usize, i64)> = starts
        .into_iter()
        .zip(changes)
        .map(|(at, change)| {
            across += change;
            (at, across)
        })
        .collect();
    let mut sorted: Vec<i64> = crossed.iter().map(|one| one.1).collect();
    sorted.sort_unstable();
    let usual = sorted.get(sorted.len() / USUAL).copied().unwrap_or(0) + run.program.peak as i64 / 16;
    let kept: Vec<(usize, i64)> = crossed.into_iter().filter(|&(_, across)| across <= usual).collect();
    let mean = kept.iter().map(|one| one.1 as f64).sum::<f64>() / kept.len().max(1) as f64;
    (kept.into_iter().map(|one| one.0).collect(), mean)
}
