//! `allotment advise`: finds the heap that a recorded run needs, and its size.

pub mod classes;
pub mod code;
mod fitted;
mod measure;
pub(crate) mod run;
mod suggest;
mod warn;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use allotment_planner::deadline::Deadline;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::Failure;
use crate::input::Input;
use crate::replay::arena::Arena;
use crate::replay::run::STEP;
use crate::replay::subject::{Entry, entry, tiny_above};
use crate::replay::{self, share, timing};
use crate::table;
use crate::units::parse_memory;
use classes::Classes;
use code::Choice;
use measure::{Addresses, Candidate};
pub(crate) use run::Gathering;
use run::Run;
use suggest::Bench;
pub use suggest::{Kinds, Suggestion};
use warn::{Growth, Leak};

/// Arguments of `allotment advise`.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// The trace: text or binary, a recording of heaptrack or a snapshot of PyTorch, also .zst or .gz; - is the standard input
    trace: PathBuf,
    /// Available RAM, such as 64K: advise the heap with the fewest instructions that fits, instead of the smallest
    #[arg(long, value_name = "BYTES", value_parser = parse_memory)]
    ram: Option<usize>,
    /// Where the program runs: on a microcontroller (mcu), only `Heap` and `TinyHeap` are tried, with `FixedPool` and `Kept` beside them
    #[arg(long, value_enum, default_value_t = Target::Any)]
    target: Target,
    /// Room in the arena beyond what this run needs, in percent
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(..=1000))]
    margin: u16,
    /// Number of rounds in which times are measured; 0 measures none
    #[arg(long, default_value_t = 5, value_name = "ROUNDS")]
    rounds: usize,
    /// Time limit, after which the best heap so far is advised
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    time_limit: Duration,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Anywhere: every placement is tried.
    Any,
    /// On a microcontroller.
    Mcu,
}

/// The printed advice, with sizes in bytes.
#[derive(Debug, Serialize)]
struct Advice {
    events: usize,
    /// The peak of the live requested bytes.
    peak: usize,
    /// Number of events that the recorder lost; if not 0, the figures are too low.
    lost: u64,
    placement: &'static str,
    /// The smallest arena that suffices at all `addresses`.
    smallest: usize,
    /// The start addresses at which the arena was tried.
    addresses: Addresses,
    /// The advised arena.
    arena: usize,
    /// The arena plus the heap's state on this machine.
    total: usize,
    /// Whether the total fits the given RAM; `None` if no RAM was given.
    fits: Option<bool>,
    /// The peak of bytes in use in the advised arena, with requests rounded up to block sizes.
    used_peak: Option<usize>,
    external_fragmentation: Option<f64>,
    internal_fragmentation: Option<f64>,
    /// The heap's type.
    heap_type: String,
    /// Rust code to paste into the program; `None` if the check found unsatisfied requests.
    code: Option<String>,
    /// Whether the blocks are so long that only their ends were checked.
    sparse: bool,
    /// Number of requests that failed in replays in the advised arena at different addresses.
    check_failures: usize,
    /// Placements and phases that the time limit cut short.
    unfinished: Vec<&'static str>,
    slab_classes: Option<Classes>,
    candidates: Vec<Candidate>,
    leaks: Vec<Leak>,
    growth: Option<Growth>,
    suggestions: Vec<Suggestion>,
}

/// Percentage above the least memory up to which placements count as equal; among these, the fewest instructions decide.
const CLOSE: usize = 2;

/// Runs `allotment advise`; returns true if the advised heap satisfies the run and fits the RAM.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn advise(args: &AdviseArgs) -> Result<bool, Failure> {
    let input = Input::new(&args.trace)?;
    let run = Run::read(&input)?;
    replay::affordable(input.shown(), &run.program)?;
    let deadline = Deadline::after(args.time_limit);
    let mut unfinished = Vec::new();
    // This is also large enough if an alignment or a suggestion makes the run larger.
    let mut memory = replay::memory(replay::run::most(&run.program, usize::MAX))?;
    let bar = crate::progress::spinner();
    let mut show = |text: &str| {
        bar.set_message(text.to_owned());
        bar.tick();
    };
    let chip = args.target == Target::Mcu;
    let mut late = |id| unfinished.push(id);
    let mut named = |which, memory: &mut Arena| {
        measure::named(&run.program, which, memory, &deadline, &mut show, &mut late)
    };
    let mut candidates = named(chip.then_some(measure::CHIP), &mut memory);
    if chip && candidates.iter().all(|one| one.smallest.is_none()) {
        candidates.extend(named(Some(measure::LARGE_CHIP), &mut memory));
    }
    show("slab-fitted");
    let phase = |memory: &mut Arena, parts| memory.until(deadline.within(share(&deadline, parts)()));
    phase(&mut memory, 4);
    let fitted = if chip { None } else { measure::fitted(&run, &mut memory) };
    let slab_classes = fitted.as_ref().and_then(|fitted| match &fitted.choice {
        Choice::Slab(classes) => Some(classes.clone()),
        _ => None,
    });
    candidates.extend(fitted);
    #[cfg(any(unix, windows))]
    if args.ram.is_none() && !chip {
        candidates.extend(measure::growing(&run.program, &deadline));
    }
    let mut late = |memory: &Arena, name| {
        if memory.deadline().passed() {
            unfinished.push(name);
        }
    };
    late(&memory, "slab-fitted");
    show("times");
    phase(&mut memory, 4);
    times(args.rounds, &run, &mut memory, &mut candidates);
    late(&memory, "times");
    show("addresses");
    phase(&mut memory, 3);
    let wanted = Wanted { ram: args.ram, margin: args.margin };
    let chosen = settle(&mut candidates, wanted, |one, smallest| {
        measure::anywhere(&one.choice, &run.program, &mut memory, smallest)
    });
    late(&memory, "addresses");
    let chosen = chosen.ok_or_else(|| {
        let path = input.shown().display();
        Failure::Other(if deadline.passed() || !unfinished.is_empty() {
            let limit = humantime::format_duration(args.time_limit);
            format!("{path}: no placement was tried to the end within the time limit of {limit}: give more with --time-limit")
        } else {
            format!("{path}: no placement serves it in four times its peak")
        })
    })?;
    show("check");
    let candidate = candidates[chosen].clone();
    candidates.sort_by_key(|one| (one.total().unwrap_or(usize::MAX), one.placement));
    let (smallest, arena) = candidate
        .least()
        .zip(wanted.arena(&candidate))
        .ok_or_else(|| Failure::Other("the chosen placement has no arena, please report this".into()))?;
    let mut larger;
    let checked_in = if arena > replay::run::most(&run.program, usize::MAX) {
        larger = replay::memory(arena)?;
        &mut larger
    } else {
        &mut memory
    };
    phase(checked_in, 2);
    let checked = measure::check(&candidate.choice, &run.program, checked_in, arena)
        .map_err(|error| Failure::Other(format!("the allocator is wrong, please report this: {error}")))?;
    if checked.unfinished {
        unfinished.push("check");
    }
    let mut leaks = warn::leaks(&run);
    show("suggestions");
    phase(&mut memory, 1);
    let mut suggestions = suggested(&run, &candidates, &candidate, &mut memory, &leaks);
    suggestions.extend(if chip { suggest::kept(&run, arena) } else { None });
    for leak in &mut leaks {
        let concerns =
            |one: &Suggestion| one.left.iter().any(|&number| leak.has(&run.lives[number as usize]));
        leak.suggestions = suggestions
            .iter()
            .enumerate()
            .filter(|(_, one)| concerns(one))
            .map(|(number, _)| number)
            .collect();
    }
    if memory.deadline().passed() {
        unfinished.push("suggestions");
    }
    bar.finish_and_clear();
    let total = arena + candidate.state;
    let advice = Advice {
        events: run.end,
        peak: run.program.peak,
        lost: run.lost,
        placement: candidate.placement,
        smallest,
        addresses: Addresses::of(&candidate.choice, &run.program),
        arena,
        total,
        fits: args.ram.map(|ram| total <= ram),
        used_peak: checked.used,
        external_fragmentation: checked.external,
        internal_fragmentation: checked.internal,
        heap_type: candidate.choice.code(arena),
        code: code(&candidate.choice, arena, checked.failures),
        sparse: replay::run::is_sparse(&run.program),
        check_failures: checked.failures,
        unfinished,
        slab_classes,
        growth: warn::growth(&run),
        leaks,
        suggestions,
        candidates,
    };
    print(&advice, args)?;
    Ok(advice.check_failures == 0 && !checked.unfinished && advice.fits != Some(false))
}

/// Returns suggestions that reduce a run's memory, all tried on `placement` within `limit`.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub(crate) fn tried(run: &Run, placement: &str, limit: Duration) -> Result<Vec<Suggestion>, Failure> {
    let mut memory = replay::memory(replay::run::most(&run.program, usize::MAX))?;
    memory.until(Deadline::after(limit));
    let memory = &mut memory;
    let smallest =
        |entry: &Entry, memory: &mut Arena| measure::smallest(entry.id, entry.limit, &run.program, memory);
    match entry(placement).and_then(|entry| Some((entry, smallest(entry, memory)?))) {
        Some((entry, smallest)) if !run.program.ops.is_empty() => {
            let leaks = warn::leaks(run);
            Ok(suggest::suggestions(&mut Bench { run, entry, smallest, memory }, &leaks))
        }
        _ => Ok(Vec::new()),
    }
}

/// Returns the code of the advised heap; `None` if the check found unsatisfied requests.
fn code(choice: &Choice, arena: usize, failures: usize) -> Option<String> {
    (failures == 0).then(|| choice.source(arena))
}

/// Returns the arena with its margin, at most as large as the placement can index. A growing heap has no arena and thus no margin.
fn margin(smallest: usize, percent: u16, choice: &Choice) -> usize {
    if *choice == Choice::Growing {
        return smallest;
    }
    let limit = entry(choice.name()).map_or(usize::MAX, |entry| entry.limit);
    let more = smallest.saturating_add(smallest / 100 * usize::from(percent));
    let more = more.checked_next_multiple_of(STEP).map_or(smallest, |more| more.min(limit).max(smallest));
    match choice {
        Choice::Tiny => tiny_above(more),
        _ => more,
    }
}

fn times(rounds: usize, run: &Run, memory: &mut Arena, candidates: &mut [Candidate]) {
    if rounds == 0 {
        return;
    }
    let can = |candidate: &&mut Candidate| {
        candidate.smallest.is_some() && matches!(candidate.choice, Choice::Named(..) | Choice::Tiny)
    };
    let ids: Vec<&str> = candidates.iter_mut().filter(can).map(|candidate| candidate.placement).collect();
    // Use one roomy arena for all placements.
    let arena = replay::run::usual(&run.program).min(replay::run::most(&run.program, usize::MAX));
    let ratios = timing::ratios(&ids, &run.program, memory, arena, rounds);
    for candidate in candidates {
        candidate.time = ratios.iter().find(|(id, _)| *id == candidate.placement).map(|&(_, time)| time);
    }
}

/// What the user asks of the advised heap.
#[derive(Clone, Copy)]
struct Wanted {
    /// Bytes of RAM.
    ram: Option<usize>,
    /// Room beyond the smallest arena, in percent.
    margin: u16,
}

impl Wanted {
    /// Returns a candidate's arena with the margin, from the least that it is known to need.
    fn arena(self, candidate: &Candidate) -> Option<usize> {
        Some(margin(candidate.least()?, self.margin, &candidate.choice))
    }

    /// Returns the bytes of RAM for that arena and the state together.
    fn total(self, candidate: &Candidate) -> Option<usize> {
        self.arena(candidate)?.checked_add(candidate.state)
    }
}

/// Chooses a placement by what it needs at every address, and returns its number; `None` if no placement is left.
///
/// Measuring that takes long, and it only adds to what the first address needs. So only the placements that decide the choice are measured,
/// by `anywhere`; those that satisfy the run at some addresses only drop out.
fn settle(
    candidates: &mut [Candidate],
    wanted: Wanted,
    mut anywhere: impl FnMut(&Candidate, usize) -> Option<usize>,
) -> Option<usize> {
    loop {
        let deciding = choose(candidates, wanted)?;
        let is_open = |&n: &usize| candidates[n].anywhere.is_none();
        let Some(next) = deciding.into_iter().find(is_open) else { return Some(deciding[1]) };
        candidates[next].anywhere = anywhere(&candidates[next], candidates[next].smallest?);
        if candidates[next].anywhere.is_none() {
            candidates[next].smallest = None;
        }
    }
}

/// Returns the numbers of two placements: of the one that needs the least memory, and of the one with the fewest instructions that fits
/// into the RAM or, if none was given, needs close to the least memory. Times do not count, because they differ in every run.
fn choose(candidates: &[Candidate], wanted: Wanted) -> Option<[usize; 2]> {
    let able = |limit: usize| {
        let total = move |(n, one): (usize, &Candidate)| Some((n, wanted.total(one)?));
        candidates.iter().enumerate().filter_map(total).filter(move |&(_, total)| total <= limit)
    };
    let by_memory = |&(n, total): &(usize, usize)| (total, candidates[n].placement);
    let (least, bytes) = able(usize::MAX).min_by_key(by_memory)?;
    let close = bytes.saturating_add(bytes / 100 * CLOSE);
    let limit = wanted.ram.filter(|&ram| ram >= bytes).unwrap_or(close);
    // Among equally fast candidates, take the one that needs the least memory.
    let by_speed = |one: &(usize, usize)| (candidates[one.0].instructions, by_memory(one));
    let (chosen, _) = able(limit).min_by_key(by_speed)?;
    Some([least, chosen])
}

/// Tries suggestions on the advised placement, or on `tlsf` (or `micro-tlsf`) if the advised heap has no named placement.
fn suggested(
    run: &Run,
    candidates: &[Candidate],
    best: &Candidate,
    memory: &mut Arena,
    leaks: &[Leak],
) -> Vec<Suggestion> {
    let id = match best.choice {
        Choice::Named(id, _) => id,
        Choice::Tiny if candidates.iter().all(|one| one.placement != "tlsf") => "micro-tlsf",
        _ => "tlsf",
    };
    let smallest = candidates.iter().find(|one| one.placement == id).and_then(|one| one.smallest);
    let (Some(entry), Some(smallest)) = (entry(id), smallest) else { return Vec::new() };
    suggest::suggestions(&mut Bench { run, entry, smallest, memory }, leaks)
}

fn print(advice: &Advice, args: &AdviseArgs) -> io::Result<()> {
    let mut out = crate::text::stdout();
    if args.json {
        return crate::output::json(&mut out, advice);
    }
    text(&mut out, advice, args)
}

fn text(mut out: impl Write, advice: &Advice, args: &AdviseArgs) -> io::Result<()> {
    let Advice { events, peak, placement, smallest, arena, total, .. } = advice;
    writeln!(out, "{events} events, at most {peak} B live")?;
    if advice.lost > 0 {
        writeln!(out, "warning: the recorder lost {} events; all figures are too low", advice.lost)?;
    }
    writeln!(out, "\n{}", candidates(&advice.candidates))?;
    match &advice.code {
        Some(code) => writeln!(
            out,
            "advice: {placement}, an arena of {arena} B (the smallest is {smallest} B), {total} B in all\n\n{code}"
        )?,
        None => writeln!(
            out,
            "no advice: {placement} does not serve the run in an arena of {arena} B at every address; --time-limit gives more time to \
             find one that does\n"
        )?,
    }
    if let Some(Classes { sizes }) = &advice.slab_classes {
        writeln!(out, "slab classes fitted to this run: {sizes:?}")?;
    }
    let percent = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
    writeln!(
        out,
        "expected: peak use {} B, fragmentation {} outside and {} inside the blocks",
        advice.used_peak.map_or("-".into(), |used| used.to_string()),
        percent(advice.external_fragmentation),
        percent(advice.internal_fragmentation)
    )?;
    match advice.check_failures {
        _ if advice.unfinished.contains(&"check") => {
            writeln!(out, "NOT checked to the end: the time limit came first")?;
        }
        0 if advice.placement == "growing" => writeln!(out, "replayed once; all requests were served")?,
        0 => {
            let what = if advice.sparse { "the ends of every block" } else { "every byte" };
            let Addresses { tried, all } = advice.addresses;
            let others = if all { "which stand for all" } else { "and others may need more" };
            writeln!(
                out,
                "checked: replayed at {tried} addresses, {others}, {what}; all requests were served"
            )?;
        }
        failures => writeln!(out, "checked: {failures} requests were NOT served")?,
    }
    if !advice.unfinished.is_empty() {
        let limit = humantime::format_duration(args.time_limit);
        let unfinished = advice.unfinished.join(", ");
        writeln!(out, "not finished within {limit}: {unfinished}; --time-limit gives more time")?;
    }
    if advice.fits == Some(false) {
        writeln!(
            out,
            "it does not fit: {} B are too little by {} B",
            args.ram.unwrap_or(0),
            total - args.ram.unwrap_or(0)
        )?;
    }
    warnings(&mut out, advice, args.ram)?;
    if !advice.suggestions.is_empty() {
        writeln!(out, "\nsuggestions, each tried on this run:")?;
    }
    for Suggestion { kind, bytes_saved, calls_saved, text, code, .. } in &advice.suggestions {
        match kind {
            Kinds::Kept => write!(out, "  saves no memory")?,
            _ => write!(out, "  saves {bytes_saved} B")?,
        }
        if *calls_saved > 0 {
            write!(out, " and {calls_saved} calls")?;
        }
        writeln!(out, ": {text}")?;
        for line in code.iter().flat_map(|code| code.lines()).filter(|line| !line.is_empty()) {
            writeln!(out, "    {line}")?;
        }
    }
    Ok(())
}

fn candidates(candidates: &[Candidate]) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let rows = candidates.iter().map(|candidate| {
        [
            candidate.placement.into(),
            or_dash(candidate.smallest.map(|bytes| bytes.to_string())),
            or_dash(candidate.anywhere.map(|bytes| bytes.to_string())),
            candidate.state.to_string(),
            or_dash(candidate.total().map(|bytes| bytes.to_string())),
            candidate.instructions.to_string(),
            or_dash(candidate.time.map(|time| format!("{time:.2}"))),
        ]
    });
    table::render(
        ["placement", "smallest arena", "all addresses", "state", "in all", "instructions", "time"],
        rows,
        &[1, 2, 3, 4, 5, 6],
    )
}

fn warnings(out: &mut impl Write, advice: &Advice, ram: Option<usize>) -> io::Result<()> {
    let left: usize = advice.leaks.iter().map(|leak| leak.blocks).sum();
    if left > 0 {
        let bytes: usize = advice.leaks.iter().map(|leak| leak.bytes).sum();
        writeln!(out, "\nwarning: {left} blocks of {bytes} B were never freed; most of them:")?;
    }
    for Leak { size, tag, blocks, bytes, growing, suggestions } in advice.leaks.iter().take(5) {
        let tag = tag.as_ref().map_or(String::new(), |tag| format!(", tag `{tag}`"));
        let growing = if *growing { ", more all the time" } else { "" };
        writeln!(out, "  {blocks} asked for {size} B{tag}: {bytes} B{growing}")?;
        for Suggestion { bytes_saved, text, .. } in
            suggestions.iter().map(|&number| &advice.suggestions[number])
        {
            writeln!(out, "    saves {bytes_saved} B: {text}")?;
        }
    }
    if let Some(Growth { floors, per_run }) = &advice.growth {
        let (first, last) = (floors[2], floors[floors.len() - 1]);
        write!(out, "warning: the live bytes rise all the time, from {first} to {last} B")?;
        match ram
            .and_then(|ram| u64::try_from(ram).ok())
            .map(|ram| ram.saturating_sub(last) / (*per_run).max(1))
        {
            Some(runs) => writeln!(out, "; the RAM is full after {runs} more runs of this length")?,
            None => writeln!(out)?,
        }
        if let Some(total) =
            advice.candidates.iter().find(|one| one.placement == "growing").and_then(Candidate::total)
        {
            writeln!(
                out,
                "  with an operating system, `Growing` takes more as it is needed: {total} B in this run"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AdviseArgs,
    }

    /// Returns the text printed for a heap whose check found `failures` unsatisfied requests.
    fn printed(failures: usize) -> String {
        let choice = Choice::Named("tlsf", "Tlsf");
        let advice = Advice {
            events: 2,
            peak: 8,
            lost: 0,
            placement: choice.name(),
            smallest: 4096,
            addresses: Addresses { tried: 16, all: true },
            arena: 4096,
            total: 5000,
            fits: None,
            used_peak: Some(8),
            external_fragmentation: None,
            internal_fragmentation: None,
            heap_type: choice.code(4096),
            code: code(&choice, 4096, failures),
            sparse: false,
            check_failures: failures,
            unfinished: vec![],
            slab_classes: None,
            candidates: vec![],
            leaks: vec![],
            growth: None,
            suggestions: vec![],
        };
        let mut out = Vec::new();
        text(&mut out, &advice, &Line::parse_from(["advise", "a.trace"]).args).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn there_is_no_code_for_a_heap_that_fails_its_check() {
        let good = printed(0);
        assert!(
            good.contains("advice: tlsf") && good.contains("static HEAP: Heap<Tlsf> = heap!(4096)"),
            "{good}"
        );
        let bad = printed(1);
        assert!(bad.contains("no advice: tlsf") && bad.contains("1 requests were NOT served"), "{bad}");
        assert!(!bad.contains("HEAP"), "{bad}");
    }

    fn one(placement: &'static str, smallest: usize, instructions: u16) -> Candidate {
        let choice = Choice::Named(placement, "Tlsf");
        let smallest = Some(smallest);
        Candidate { placement, choice, smallest, anywhere: None, state: 0, instructions, time: None }
    }

    /// Times differ in every run, so the choice ignores them.
    #[test]
    fn times_do_not_choose() {
        let timed = |one: Candidate, time| Candidate { time: Some(time), ..one };
        let candidates =
            [timed(one("a", 1008, 100), 1.0), timed(one("b", 1024, 90), 9.0), timed(one("c", 2000, 10), 1.0)];
        let chosen = |ram| candidates[choose(&candidates, Wanted { ram, margin: 0 }).unwrap()[1]].placement;
        assert_eq!(
            (chosen(None), chosen(Some(1030)), chosen(Some(4000)), chosen(Some(10))),
            ("b", "b", "c", "b")
        );
    }

    /// What a placement needs at the first address chooses nothing: `a` and `b` need more elsewhere, and `d` finds no size.
    #[test]
    fn needs_at_every_address_choose() {
        let chosen = |ram, margin| {
            let mut candidates =
                [one("a", 1024, 100), one("b", 1040, 90), one("c", 1200, 80), one("d", 1008, 10)];
            let anywhere = |one: &Candidate, smallest| match one.placement {
                "a" => Some(1600),
                "b" => Some(1400),
                "d" => None,
                _ => Some(smallest),
            };
            let chosen = settle(&mut candidates, Wanted { ram, margin }, anywhere).unwrap();
            (candidates[chosen].placement, candidates[chosen].least().unwrap())
        };
        assert_eq!(chosen(None, 0), ("c", 1200));
        assert_eq!(chosen(Some(1100), 0), ("c", 1200));
        assert_eq!(chosen(Some(1300), 0), ("c", 1200));
        // Of those that fit, the fastest.
        let fast = |ram, margin| {
            let mut candidates = [one("a", 1024, 50), one("b", 1200, 10)];
            let all = |_: &Candidate, smallest| Some(smallest);
            candidates[settle(&mut candidates, Wanted { ram: Some(ram), margin }, all).unwrap()].placement
        };
        // With its margin of a tenth, `b` no longer fits.
        assert_eq!((fast(1250, 0), fast(1250, 10)), ("b", "a"));
        assert!(settle(&mut [one("d", 8, 1)], Wanted { ram: None, margin: 0 }, |_, _| None).is_none());
    }
}
