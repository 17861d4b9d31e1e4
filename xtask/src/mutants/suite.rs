//! All tests of the library: how long each takes, and which changes it passes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::copy::{LIBRARY, Programs};
use super::trial::{self, Outcome};
use super::workers;
use crate::child;

/// The least time that tests may take with a change before they count as hanging, and how many times as long as without.
const LEAST_LIMIT: Duration = Duration::from_secs(10);
const FACTOR: u32 = 5;
/// The time that a test may take without a change.
const SURVEY_LIMIT: Duration = Duration::from_secs(600);

/// Tests are run in groups, the shortest first; those of a group take so long in all.
const GROUPS: [Duration; 4] =
    [Duration::from_millis(300), Duration::from_secs(3), Duration::from_secs(30), Duration::MAX];

pub struct Suite {
    folder: PathBuf,
    driver: PathBuf,
    programs: Programs,
    /// The shortest first.
    tests: Vec<Test>,
    /// The tests of one change take no longer.
    most: Duration,
}

/// A test, and what was seen of it.
struct Test {
    program: usize,
    name: String,
    /// Of a processor.
    time: Duration,
    /// One byte for each change: 1 if the test passes it.
    passes: Vec<u8>,
}

impl Suite {
    /// Tests that are run in `folder`, those of one change for at most `most`.
    pub fn new(mut programs: Programs, folder: &Path, driver: PathBuf, most: Duration) -> Self {
        // Cargo names them in another order when it has built them; a survey counts on one.
        programs.sort();
        Self { folder: folder.into(), driver, programs, tests: Vec::new(), most }
    }

    /// Runs every test by itself without any change, unless `file` has what was seen before.
    ///
    /// # Errors
    /// If one of them fails.
    pub fn survey(&mut self, changes: usize, file: &Path) -> Result<()> {
        let known = fs::read_to_string(file).ok().and_then(|text| text.lines().map(Test::parse).collect());
        self.tests = match known {
            Some(tests) => tests,
            None => self.see(changes, file)?,
        };
        self.tests.sort_by_key(|test| test.time);
        let text: String = self.tests.iter().map(Test::text).collect();
        fs::write(file, text).context("the survey's file")
    }

    fn see(&self, changes: usize, file: &Path) -> Result<Vec<Test>> {
        let mut names = Vec::new();
        for (program, (_, path)) in self.programs.iter().enumerate() {
            names.extend(list(path)?.into_iter().map(|name| (program, name)));
        }
        let (tests, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        workers::each(&names, |number, (program, name)| {
            let passed = file.with_extension(number.to_string());
            fs::write(&passed, vec![0; changes + 1])?;
            let environment = self.environment("ALLOTMENT_SURVEY", passed.display().to_string());
            let (file, path) = &self.programs[*program];
            let (outcome, time) = trial::run(path, &self.folder, &[name], &environment, SURVEY_LIMIT)?;
            if outcome == Outcome::Passed {
                let test = Test { program: *program, name: name.clone(), time, passes: fs::read(&passed)? };
                lock(&tests).push(test);
            } else {
                lock(&failures).push(format!("{file}: {name}: {outcome:?}"));
            }
            fs::remove_file(&passed).context("a survey's file")
        })?;
        let failures = failures.into_inner()?;
        ensure!(failures.is_empty(), "these tests fail without a change:\n{}", failures.join("\n"));
        Ok(tests.into_inner()?)
    }

    /// The number of tests, and the time that they take one after the other.
    pub fn size(&self) -> (usize, Duration) {
        (self.tests.len(), self.tests.iter().map(|test| test.time).sum())
    }

    /// Runs the tests that pass a change, with the change. Returns what notices it.
    ///
    /// # Errors
    /// If a program does not start.
    pub fn notices(&self, change: u32) -> Result<Option<String>> {
        let passing = self.tests.iter().filter(|test| test.passes[change as usize] != 0);
        self.fails(passing, &self.environment("ALLOTMENT_CHANGE", change.to_string()))
    }

    /// Returns the names of the programs: first the library's own, which is built soonest, then those that have most tests which
    /// pass one of these changes.
    pub fn by_relevance(&self, changes: &[u32]) -> Vec<String> {
        let passes = |test: &&Test| changes.iter().any(|&change| test.passes[change as usize] != 0);
        let relevant =
            |program| self.tests.iter().filter(|test| test.program == program).filter(passes).count();
        let mut numbers: Vec<usize> = (0..self.programs.len()).collect();
        numbers
            .sort_by_cached_key(|&program| (self.programs[program].0 != LIBRARY, Reverse(relevant(program))));
        numbers.into_iter().map(|program| self.programs[program].0.clone()).collect()
    }

    /// Runs all tests of a program that was built with a change, and lies at `path`. Returns what notices it.
    ///
    /// # Errors
    /// If there is no such program, or it does not start.
    pub fn notices_built(&mut self, program: &str, path: PathBuf) -> Result<Option<String>> {
        let mut names = self.programs.iter().map(|(name, _)| name);
        let program = names.position(|name| name == program).context("no such program")?;
        self.programs[program].1 = path;
        let all: Vec<&Test> = self.tests.iter().collect();
        let tests = split(&all, self.most).0.iter().filter(|test| test.program == program).copied();
        self.fails(tests, &self.environment("ALLOTMENT_NOTHING", String::new()))
    }

    fn environment(&self, name: &'static str, value: String) -> [(&'static str, String); 2] {
        [(name, value), ("ALLOTMENT_STAND_IN", self.driver.display().to_string())]
    }

    fn fails<'a>(
        &self,
        tests: impl Iterator<Item = &'a Test>,
        environment: &[(&str, String)],
    ) -> Result<Option<String>> {
        let tests: Vec<&Test> = tests.collect();
        let (tests, _) = split(&tests, self.most);
        for group in groups(tests) {
            let mut by_program: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
            for test in group {
                by_program.entry(test.program).or_default().push(test);
            }
            for (program, tests) in by_program {
                let (name, path) = &self.programs[program];
                let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
                let usual: Duration = tests.iter().map(|test| test.time).sum();
                match trial::run(path, &self.folder, &names, environment, LEAST_LIMIT + usual * FACTOR)?.0 {
                    Outcome::Passed => {}
                    Outcome::Failed(test) => return Ok(Some(format!("{name} {test}"))),
                    Outcome::TooLong => return Ok(Some(format!("{name} takes too long"))),
                }
            }
        }
        Ok(None)
    }
}

impl Test {
    fn text(&self) -> String {
        let passes: String = self.passes.iter().map(|&passes| if passes == 0 { '0' } else { '1' }).collect();
        format!("{} {} {} {passes}\n", self.program, self.name, self.time.as_micros())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(' ');
        Some(Self {
            program: parts.next()?.parse().ok()?,
            name: parts.next()?.into(),
            time: Duration::from_micros(parts.next()?.parse().ok()?),
            passes: parts.next()?.bytes().map(|byte| byte - b'0').collect(),
        })
    }
}

/// Divides tests, the shortest of which come first.
fn groups<'a>(tests: &'a [&'a Test]) -> [&'a [&'a Test]; GROUPS.len()] {
    let mut left = tests;
    GROUPS.map(|most| {
        let (group, rest) = split(left, most);
        left = rest;
        group
    })
}

/// Returns the first tests that take no longer than `most` in all, and the others.
fn split<'a>(tests: &'a [&'a Test], most: Duration) -> (&'a [&'a Test], &'a [&'a Test]) {
    let mut time = Duration::ZERO;
    let fits = |test: &&&Test| {
        time += test.time;
        time <= most
    };
    tests.split_at(tests.iter().take_while(fits).count())
}

/// Returns the names of a program's tests but those that are ignored.
fn list(program: &Path) -> Result<Vec<String>> {
    let names = |arguments: &[&str]| {
        let text =
            child::stdout_of(Command::new(program).args(["--list", "--format=terse"]).args(arguments))?;
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok::<Vec<String>, anyhow::Error>(names.map(str::to_owned).collect())
    };
    let ignored = names(&["--ignored"])?;
    Ok(names(&[])?.into_iter().filter(|name| !ignored.contains(name)).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(seconds: u64) -> Test {
        Test { program: 2, name: "a::b".into(), time: Duration::from_secs(seconds), passes: vec![0, 1] }
    }

    #[test]
    fn groups_have_all_tests() {
        let tests = [0, 1, 1, 2, 40, 50].map(test);
        let lengths = groups(&tests.iter().collect::<Vec<_>>()).map(<[_]>::len);
        assert_eq!(lengths, [1, 2, 1, 2]);
    }

    #[test]
    fn the_program_whose_tests_pass_a_change_comes_first() {
        let programs = ["a", "b", "c", LIBRARY].map(|name| (name.to_owned(), PathBuf::new())).to_vec();
        let mut suite = Suite::new(programs, Path::new(""), PathBuf::new(), Duration::MAX);
        suite.tests = vec![test(1), Test { program: 1, passes: vec![0, 0], ..test(1) }];
        assert_eq!(suite.by_relevance(&[1]), [LIBRARY, "b", "a", "c"]);
    }

    #[test]
    fn a_survey_is_read_again() {
        let read = Test::parse(test(3).text().trim_end()).unwrap();
        assert_eq!((read.program, &*read.name, read.time), (2, "a::b", Duration::from_secs(3)));
        assert_eq!(read.passes, [0, 1]);
    }
}
