//! A copy of the project in which the library has switches, and its test programs.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::change::Change;
use super::weave::{self, Woven};
use crate::{child, firmware, progress, tools};

/// Features of the tests: all but those that need another compiler, tool or linker script.
const FEATURES: &str = "gpu,lock_api,allocator-api2,linked-list,buddy-system,backtrace,serde";

/// What the tests are made of.
const SOURCES: [&str; 7] = ["src/", "tests/", "stand-in/", "event/", "trace/", "Cargo.toml", "Cargo.lock"];

const SWITCH: &str = include_str!("switch.rs");
/// What the copy of `src/lib.rs` has in front and behind.
const BEGIN: &[u8] = b"#![feature(core_intrinsics, const_eval_select)] #![allow(internal_features)] ";
const END: &[u8] = b"mod switch;\n";
/// The test program that the library itself is.
pub const LIBRARY: &str = "allotment";
const BUILT_WITH: &str = "const BUILT_WITH: u32 = ";

/// Bytes of memory and seconds of a processor that a compiler may use: the value of a changed constant may take for ever to
/// compute. It takes some 20 s otherwise.
const MOST_MEMORY: u64 = 12 << 30;
const MOST_SECONDS: u64 = 180;

pub struct Copy {
    pub root: PathBuf,
    target: PathBuf,
    /// Whether it has a single change at a time, which may be one of a constant.
    single: bool,
    woven: HashMap<String, Woven>,
}

/// Test programs: names and files.
pub type Programs = Vec<(String, PathBuf)>;

/// Parts of files, in bytes.
type Spans = Vec<(String, Range<usize>)>;

/// What came of a command of Cargo.
#[derive(Default)]
struct Built {
    /// Of each error, where it is in the copy, and the compiler's text.
    errors: Vec<(Spans, String)>,
    /// The switches that were compiled.
    switches: BTreeSet<u32>,
    programs: Programs,
    libraries: Vec<PathBuf>,
}

impl Copy {
    /// Copies the project's files but the library's to a folder in `folder` where they differ. With `single` the copy is for one
    /// change at a time.
    ///
    /// # Errors
    /// If git does not list the files, or they cannot be copied.
    pub fn new(folder: &Path, single: bool) -> Result<Self> {
        let root = folder.join(if single { "single" } else { "tree" });
        let copy = Self { root, target: folder.join("build"), single, woven: HashMap::new() };
        for name in files()?.iter().filter(|name| !name.starts_with("src/")) {
            let bytes = fs::read(firmware::root().join(name))?;
            write(&copy.root.join(name), &bytes)?;
        }
        Ok(copy)
    }

    /// Weaves the changes into the library, and takes out those that do not compile until the rest does. Returns those that were
    /// taken out, and those that no compiled code has.
    ///
    /// # Errors
    /// If no change is to blame for an error.
    pub fn weave(&mut self, changes: &[(u32, &Change)]) -> Result<[BTreeSet<u32>; 2]> {
        let mut refused = BTreeSet::new();
        let check = ["check", "--lib"];
        let test = ["test", "--no-run", "--tests"];
        let mut arguments = &check[..];
        loop {
            let left: Vec<_> =
                changes.iter().filter(|(number, _)| !refused.contains(number)).copied().collect();
            self.write_woven(&left, 0)?;
            let built = self.cargo(arguments)?;
            if built.errors.is_empty() && arguments == test {
                let elsewhere = left.iter().map(|&(number, _)| number);
                return Ok([refused, elsewhere.filter(|number| !built.switches.contains(number)).collect()]);
            }
            if built.errors.is_empty() {
                arguments = &test;
                continue;
            }
            let before = refused.len();
            for (spans, text) in &built.errors {
                let blamed = self.blame(spans);
                ensure!(!blamed.is_empty() || built.errors.len() > 1, "no change is to blame: {text}");
                refused.extend(blamed);
            }
            ensure!(refused.len() > before, "no change is to blame: {}", built.errors[0].1);
            eprintln!("xtask: {} changes do not compile so far", refused.len());
        }
    }

    /// Returns the test programs of the library with the changes that were woven into it.
    ///
    /// # Errors
    /// If they do not compile.
    pub fn programs(&self) -> Result<Programs> {
        let built = self.cargo(&["test", "--no-run", "--tests"])?;
        let error = built.errors.first();
        ensure!(error.is_none(), "the library does not compile: {}", error.map_or("", |(_, text)| text));
        Ok(built.programs)
    }

    /// Returns one test program of the library with only this change, also of what is computed when it is built. `None` if it
    /// does not compile, or takes more time or memory than a compiler may.
    ///
    /// # Errors
    /// If Cargo cannot be run.
    pub fn program_with(&mut self, change: (u32, &Change), name: &str) -> Result<Option<PathBuf>> {
        self.write_woven(&[change], change.0)?;
        let target = if name == LIBRARY { vec!["--lib"] } else { vec!["--test", name] };
        let mut built = self.cargo(&[&["test", "--no-run"], &target[..]].concat())?;
        Ok(built.programs.pop().map(|(_, path)| path).filter(|_| built.errors.is_empty()))
    }

    /// Builds the stand-in driver.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn driver(&self) -> Result<PathBuf> {
        let built = self.cargo(&["build", "--package", "allotment-stand-in-driver"])?;
        let mut libraries = built.libraries.into_iter();
        libraries
            .find(|file| file.to_string_lossy().contains("stand_in_driver"))
            .context("there is no driver")
    }

    /// Changes of constants, and of functions that may be called for them.
    pub fn constants(&self) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let of = |list: fn(&Woven) -> &Vec<u32>| self.woven.values().flat_map(list).copied().collect();
        (of(|woven| &woven.constant), of(|woven| &woven.perhaps_constant))
    }

    /// Writes the library with these changes; constants are computed with the one that is numbered `built_with`.
    fn write_woven(&mut self, changes: &[(u32, &Change)], built_with: u32) -> Result<()> {
        let mut files_changed: HashMap<&str, Vec<(u32, &Change)>> = HashMap::new();
        for &(number, change) in changes {
            files_changed.entry(&change.file).or_default().push((number, change));
        }
        self.woven.clear();
        for name in files()?.into_iter().filter(|name| name.starts_with("src/")) {
            let mut text = fs::read(firmware::root().join(&name))?;
            if name == "src/lib.rs" {
                text = [BEGIN, &text, END].concat();
            }
            let Some(changes) = files_changed.get(name.as_str()) else {
                write(&self.root.join(&name), &text)?;
                continue;
            };
            let woven = weave::weave(&String::from_utf8(text)?, changes).with_context(|| name.clone())?;
            write(&self.root.join(&name), woven.text.as_bytes())?;
            self.woven.insert(name, woven);
        }
        let text = SWITCH.replace(&format!("{BUILT_WITH}0"), &format!("{BUILT_WITH}{built_with}"));
        write(&self.root.join("src/switch.rs"), text.as_bytes())
    }

    fn blame(&self, spans: &[(String, Range<usize>)]) -> BTreeSet<u32> {
        let Some((name, _)) = spans.first() else { return BTreeSet::new() };
        let same = spans.iter().filter(|(other, _)| other == name);
        self.woven[name].blame(&same.map(|(_, range)| range.clone()).collect::<Vec<_>>())
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Built> {
        let mut cargo = child::command(tools::find("cargo").context("there is no `cargo`")?);
        cargo.current_dir(&self.root).args(arguments).arg("--target-dir").arg(&self.target);
        cargo.args(["--locked", "--message-format=json"]);
        if arguments[0] != "build" {
            cargo.args(["--package", "allotment", "--features", FEATURES]);
        }
        // The library asks an intrinsic whether it is being computed; warnings name the switches.
        cargo.env("RUSTC_BOOTSTRAP", "allotment").env("RUSTFLAGS", "--cap-lints=warn");
        cargo
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_TEST_DEBUG", "0");
        // What is switched is not optimised well anyway. For a single change, to optimise takes more time than it saves.
        cargo.env("CARGO_PROFILE_TEST_OPT_LEVEL", if self.single { "0" } else { "1" });
        let _progress = progress::show(format!("running cargo {} on the copy", arguments[0]));
        child::bind(&mut cargo, MOST_MEMORY, self.single.then_some(MOST_SECONDS));
        let output = cargo.stdin(Stdio::null()).output().context("cargo does not start")?;
        let built = self.read(&String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8_lossy(&output.stderr);
        let exhausted = self.single && text.contains("(signal: ");
        let reasoned = output.status.success() || !built.errors.is_empty() || exhausted;
        ensure!(reasoned, "{cargo:?} failed: {text}");
        Ok(built)
    }

    /// Reads what Cargo prints, one object a line.
    fn read(&self, text: &str) -> Built {
        let mut built = Built::default();
        for message in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            match message["reason"].as_str() {
                Some("compiler-message") => self.read_message(&message["message"], &mut built),
                Some("compiler-artifact") => read_artifact(&message, &mut built),
                _ => {}
            }
        }
        built
    }

    fn read_message(&self, message: &Value, built: &mut Built) {
        let spans: Vec<_> =
            message["spans"].as_array().into_iter().flatten().filter_map(|span| self.span(span)).collect();
        if message["level"].as_str().is_some_and(|level| level.starts_with("error")) {
            let text = message["rendered"].as_str().unwrap_or_default();
            if !spans.is_empty() || !text.starts_with("error: aborting") {
                built.errors.push((spans, text.to_owned()));
            }
        } else if message["code"]["code"] == "deprecated" {
            let switch = |(name, range): &(String, Range<usize>)| self.woven.get(name)?.switch_at(range);
            built.switches.extend(spans.iter().filter_map(switch));
        }
    }

    /// Where in a woven file something is; for what a macro makes, where it is used.
    fn span(&self, span: &Value) -> Option<(String, Range<usize>)> {
        let name = span["file_name"].as_str()?;
        if self.woven.contains_key(name) {
            let offset = |key: &str| span[key].as_u64()?.try_into().ok();
            return Some((name.to_owned(), offset("byte_start")?..offset("byte_end")?));
        }
        self.span(span["expansion"].get("span")?)
    }
}

fn read_artifact(message: &Value, built: &mut Built) {
    let name = message["target"]["name"].as_str().unwrap_or_default();
    if let (Some(program), Some(true)) =
        (message["executable"].as_str(), message["profile"]["test"].as_bool())
    {
        built.programs.push((name.to_owned(), program.into()));
    }
    let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    built.libraries.extend(files.filter(|file| file.ends_with(".so")).map(PathBuf::from));
}

/// Returns a number that differs when what is tested does.
///
/// # Errors
/// If a file cannot be read.
pub fn fingerprint() -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for name in files()?.iter().filter(|name| SOURCES.iter().any(|source| name.starts_with(source))) {
        (name, fs::read(firmware::root().join(name))?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Returns the names of all files that git tracks or would track.
fn files() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(firmware::root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = child::stdout_of(&mut git)?;
    let there = |name: &&str| firmware::root().join(name).is_file();
    Ok(names.split_terminator('\0').filter(there).map(str::to_owned).collect())
}

/// Writes a file if it differs, since Cargo compiles again what was written.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
