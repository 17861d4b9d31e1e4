//! `cargo xtask mutants`: how many small changes of the library's code its tests notice.
//!
//! cargo-mutants proposes the changes (`change`). All of them are put into one copy of the library, each behind a switch (`weave`);
//! those that do not compile are taken out (`copy`). Every test runs once by itself and notes which changes it passes
//! (`suite`); then each change is switched on, and those tests run until one fails (`trial`). A change of what is computed when the library
//! is built, such as the value of a constant, needs a build of its own.

mod change;
mod copy;
mod results;
mod suite;
mod trial;
mod weave;
mod workers;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::{firmware, progress};
use change::Change;
use copy::Copy;
use results::{Counts, Fate, Results};
use suite::Suite;

/// The code that is changed if no file is named.
const FILES: [&str; 10] = [
    "src/units/mod.rs",
    "src/region/**",
    "src/meta/**",
    "src/placement/**",
    "src/harden/**",
    "src/heap/**",
    "src/heap/tiny/**",
    "src/os/**",
    "src/pool/**",
    "src/gpu/**",
];

/// What to change.
#[derive(clap::Args)]
pub struct Options {
    /// Only code in these files, as globs [default: regions, metadata, placements, levels, heaps, caches, pools and GPUs]
    #[arg(long = "file", value_name = "GLOB")]
    files: Vec<String>,
    /// Only every Nth change, from the Kth on, such as 0/8
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Do not build the library anew for each change of a constant; these changes are not counted
    #[arg(long)]
    no_constants: bool,
    /// Run the tests of a change for at most so many seconds, the shortest first: what these do not notice counts as missed
    #[arg(long)]
    seconds: Option<u64>,
}

/// Runs the tests with each change, names the changes that no test notices, and fails if they are too many.
///
/// # Errors
/// If cargo-mutants is missing, or the tests fail without any change.
pub fn run(options: &Options) -> Result<ExitCode> {
    let named: Vec<&str> = options.files.iter().map(String::as_str).collect();
    let files = if named.is_empty() { &FILES[..] } else { &named[..] };
    let (changes, equivalent) = change::without_equivalent(change::list(files, options.shard.as_deref())?)?;
    let folder = firmware::root().join("target/mutants");
    fs::create_dir_all(&folder)?;
    let code = copy::fingerprint()?;
    let results = Results::open(&folder.join(format!("results-{code:x}.txt")))?;
    let survey = folder.join(format!("survey-{:x}.txt", change::fingerprint(&changes, code)));
    let left = changes.iter().filter(|change| results.of(&change.name).is_none()).count();
    eprintln!("xtask: {} changes, {left} of them to be tried", changes.len());
    let results = Mutex::new(results);
    if left > 0 {
        Run { changes: &changes, results: &results, options }.all(&folder, &survey)?;
    }
    report(&changes, equivalent, &results.into_inner()?)
}

struct Run<'a> {
    /// They are numbered from 1.
    changes: &'a [Change],
    results: &'a Mutex<Results>,
    options: &'a Options,
}

impl Run<'_> {
    fn all(&self, folder: &Path, survey: &Path) -> Result<()> {
        let mut copy = Copy::new(folder, false)?;
        let compiled: Vec<_> =
            self.numbered().filter(|(_, change)| self.fate(change) != Some(Fate::Refused)).collect();
        let [refused, elsewhere] = copy.weave(&compiled)?;
        self.note(&refused, &Fate::Refused)?;
        self.note(&elsewhere, &Fate::Elsewhere)?;
        let programs = copy.programs()?;
        let most = self.options.seconds.map_or(Duration::MAX, Duration::from_secs);
        let mut suite = Suite::new(programs, &copy.root, copy.driver()?, most);
        suite.survey(self.changes.len(), survey)?;
        let (tests, time) = suite.size();
        eprintln!("xtask: {tests} tests take {} s of a processor", time.as_secs());

        let (constants, perhaps) = copy.constants();
        let left = self.numbered().filter(|(_, change)| self.fate(change).is_none());
        let (mut constants, others): (Vec<_>, Vec<_>) =
            left.map(|(number, _)| number).partition(|number| constants.contains(number));
        let trying = progress::show(format!("trying {} changes", others.len()));
        // What is also called when the library is built may be noticed there only.
        let also = Mutex::new(Vec::new());
        workers::each(&others, |_, &number| match suite.notices(number)? {
            None if perhaps.contains(&number) => {
                also.lock().map_err(|_| anyhow!("a worker panicked"))?.push(number);
                Ok(())
            }
            noticed => self.tell(number, noticed),
        })?;
        constants.append(&mut also.into_inner()?);
        drop(trying);
        if self.options.no_constants {
            return Ok(());
        }
        let _trying = progress::show(format!("trying {} changes of constants", constants.len()));
        let mut copy = Copy::new(folder, true)?;
        constants.into_iter().try_for_each(|number| self.build_and_try(number, &mut copy, &mut suite))
    }

    /// Tries a change of what is computed when the library is built: it builds one test program after the other and runs it,
    /// until one notices the change.
    fn build_and_try(&self, number: u32, copy: &mut Copy, suite: &mut Suite) -> Result<()> {
        let of = |number: u32| &self.changes[number as usize - 1];
        let same_file = self.numbered().filter(|(_, change)| change.file == of(number).file);
        for program in suite.by_relevance(&same_file.map(|(number, _)| number).collect::<Vec<_>>()) {
            let Some(path) = copy.program_with((number, of(number)), &program)? else {
                return self.note(&BTreeSet::from([number]), &Fate::Refused);
            };
            let noticed = suite.notices_built(&program, path)?;
            if noticed.is_some() {
                return self.tell(number, noticed);
            }
        }
        self.tell(number, None)
    }

    fn numbered(&self) -> impl Iterator<Item = (u32, &Change)> {
        (1..).zip(self.changes)
    }

    fn fate(&self, change: &Change) -> Option<Fate> {
        let results = self.results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        results.of(&change.name).cloned()
    }

    fn tell(&self, number: u32, noticed: Option<String>) -> Result<()> {
        self.note(&BTreeSet::from([number]), &noticed.map_or(Fate::Missed, Fate::Noticed))
    }

    fn note(&self, numbers: &BTreeSet<u32>, fate: &Fate) -> Result<()> {
        let mut results = self.results.lock().map_err(|_| anyhow!("a worker panicked"))?;
        for (number, change) in self.numbered().filter(|(number, _)| numbers.contains(number)) {
            if *fate == Fate::Missed {
                eprintln!("xtask: missed: {} (change {number} of {})", change.name, self.changes.len());
            }
            results.note(&change.name, fate.clone())?;
        }
        Ok(())
    }
}

/// Prints what came of the changes.
fn report(changes: &[Change], equivalent: usize, results: &Results) -> Result<ExitCode> {
    let fates = || changes.iter().filter_map(|change| Some((change, results.of(&change.name)?)));
    for (change, _) in fates().filter(|(_, fate)| **fate == Fate::Missed) {
        println!("missed: {}", change.name);
    }
    let counts = Counts::of(fates().map(|(_, fate)| fate));
    let Counts { noticed, missed, refused, elsewhere } = counts;
    let untried = changes.len() - fates().count();
    println!(
        "{noticed} of {} changes noticed; not counted: {refused} that do not compile, {elsewhere} in code for other systems, \
        {equivalent} that alter no result, {untried} of constants that were not tried",
        noticed + missed,
    );
    Ok(if counts.suffice() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
