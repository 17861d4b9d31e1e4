//! Runs other planners: MiniMalloc and idealloc, if their programs are found.

use std::fmt;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use allotment_planner::model::Instance;
use serde::Serialize;

use super::{PlanArgs, PlanError};

/// Another planner's result for an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub(super) enum Result {
    /// A plan of this peak in bytes.
    Planned { peak: u64, seconds: f64 },
    /// No plan within the time limit.
    OutOfTime,
    /// It ended without a plan.
    Failed,
    /// The instance uses unsupported features, such as alignments or gaps.
    Unsuited,
}

impl fmt::Display for Result {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Planned { peak, seconds } => write!(f, "{peak} B in {seconds:.2} s"),
            Self::OutOfTime => f.write_str("none in time"),
            Self::Failed => f.write_str("failed"),
            Self::Unsuited => f.write_str("not for it"),
        }
    }
}

/// The programs that were found.
pub(super) struct Peers {
    minimalloc: Option<PathBuf>,
    idealloc: Option<PathBuf>,
}

impl Peers {
    /// Finds the programs that the options name, or else those on `PATH`.
    pub(super) fn find(args: &PlanArgs) -> std::result::Result<Self, PlanError> {
        let find = |given: &Option<PathBuf>, name: &str| match given {
            Some(path) if !path.is_file() => {
                Err(PlanError::Option(format!("--{name} {}: there is no such program", path.display())))
            }
            Some(path) => Ok(Some(path.clone())),
            None => Ok(on_path(name)),
        };
        Ok(Self {
            minimalloc: find(&args.minimalloc, "minimalloc")?,
            idealloc: find(&args.idealloc, "idealloc")?,
        })
    }

    /// Returns a sentence about missing programs, if any.
    pub(super) fn missing(&self) -> Option<String> {
        let programs = [("minimalloc", &self.minimalloc), ("idealloc", &self.idealloc)];
        let missing = programs.iter().filter(|(_, path)| path.is_none()).map(|&(name, _)| name);
        let missing: Vec<_> = missing.map(|name| format!("`{name}` (--{name} PROGRAM)")).collect();
        (!missing.is_empty()).then(|| format!("Not found on PATH: {}.", missing.join(", ")))
    }

    /// Runs MiniMalloc to fit the instance into `capacity` bytes.
    pub(super) fn minimalloc(
        &self,
        instance: &Instance,
        capacity: u64,
        limit: Duration,
    ) -> std::result::Result<Option<Result>, PlanError> {
        let Some(program) = &self.minimalloc else { return Ok(None) };
        self.run(
            program,
            instance,
            limit,
            |command, input| {
                let input = format!("--input={}", input.display());
                command.args([format!("--capacity={capacity}"), input, "--output=/dev/null".into()]);
            },
            |status, _| status.then_some(capacity),
        )
    }

    /// Runs idealloc for one plan.
    pub(super) fn idealloc(
        &self,
        instance: &Instance,
        limit: Duration,
    ) -> std::result::Result<Option<Result>, PlanError> {
        let Some(program) = &self.idealloc else { return Ok(None) };
        let peak = |text: &str| {
            let said = |line: &str| line.strip_prefix("Makespan:")?.split_whitespace().next()?.parse().ok();
            text.lines().find_map(said)
        };
        self.run(
            program,
            instance,
            limit,
            |command, input| {
                command.arg("--input").arg(input).args(["--max-lives", "1", "ex-csv"]);
            },
            |_, text| peak(text),
        )
    }

    fn run(
        &self,
        program: &Path,
        instance: &Instance,
        limit: Duration,
        arguments: impl FnOnce(&mut Command, &Path),
        peak: impl FnOnce(bool, &str) -> Option<u64>,
    ) -> std::result::Result<Option<Result>, PlanError> {
        if !instance.is_plain() || instance.buffers().iter().any(|buffer| buffer.align > 1) {
            return Ok(Some(Result::Unsuited));
        }
        let mut input = tempfile::Builder::new().suffix(".csv").tempfile()?;
        let mut lines = String::from("id,lower,upper,size\n");
        for (n, buffer) in instance.buffers().iter().enumerate() {
            lines += &format!("{n},{},{},{}\n", buffer.start, buffer.end, buffer.size);
        }
        input.write_all(lines.as_bytes())?;
        let mut said = tempfile::tempfile()?;
        let mut command = Command::new(program);
        arguments(&mut command, input.path());
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?);
        let named = |source| PlanError::Write { path: program.into(), source };
        let started = Instant::now();
        let mut child = command.spawn().map_err(named)?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(Some(Result::OutOfTime));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let seconds = started.elapsed().as_secs_f64();
        said.rewind()?;
        let mut text = Vec::new();
        said.read_to_end(&mut text)?;
        let peak = peak(status.success(), &String::from_utf8_lossy(&text));
        Ok(Some(peak.map_or(Result::Failed, |peak| Result::Planned { peak, seconds })))
    }
}

/// Returns the first file of this name in the folders of `PATH`.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}
