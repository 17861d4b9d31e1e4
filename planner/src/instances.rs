//! Collections of instances with their best known plans: a folder with the table `instances.csv`, the files that it names, and a
//! plan for each in `plans`.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bounds::lower_bound;
use crate::model::Instance;
use crate::read::read_instance;
use crate::validate::validate;

/// The table's name in its folder.
pub const TABLE: &str = "instances.csv";

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the set, a slash, and the instance's name in the set.
    pub name: String,
    /// Path of the instance, relative to the table's folder.
    pub source: String,
    /// Number of buffers.
    pub buffers: usize,
    /// Proven lower bound on every plan's peak, in bytes.
    pub bound: u64,
    /// The proof: `load` (the most bytes that are live at once), or who found it.
    pub bound_by: String,
    /// Best known peak, in bytes.
    pub peak: u64,
    /// Who found it.
    pub found_by: String,
}

/// Why a collection was refused.
#[derive(Debug, thiserror::Error)]
pub enum CollectionError {
    /// A file cannot be read, or its contents are refused.
    #[error("{at}: {source}")]
    Read {
        /// Its path, or the name of its instance.
        at: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The table and its files contradict each other.
    #[error("{at}: {what}")]
    Contradiction {
        /// The instance's name, or the path of the file.
        at: String,
        /// The contradiction.
        what: String,
    },
}

/// Returns a function that wraps an error with its path or instance.
fn read<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    at: impl Display,
) -> impl Fn(E) -> CollectionError {
    move |source| CollectionError::Read { at: at.to_string(), source: source.into() }
}

/// A folder of instances with a table.
#[derive(Clone, Debug)]
pub struct Collection {
    folder: PathBuf,
    /// The lines of the table.
    pub entries: Vec<Entry>,
}

impl Collection {
    /// Reads the table of a folder; `None` if it has none.
    ///
    /// # Errors
    /// [`CollectionError::Read`] if the table cannot be parsed.
    pub fn open(folder: &Path) -> Result<Option<Self>, CollectionError> {
        let path = folder.join(TABLE);
        if !path.is_file() {
            return Ok(None);
        }
        let wrong = read(path.display());
        let entries = csv::Reader::from_path(&path).map_err(&wrong)?.deserialize().collect::<Result<_, _>>();
        Ok(Some(Self { folder: folder.into(), entries: entries.map_err(&wrong)? }))
    }

    /// Reads the instance of a line.
    ///
    /// # Errors
    /// [`CollectionError`] if it cannot be read.
    pub fn instance(&self, entry: &Entry) -> Result<Instance, CollectionError> {
        read_instance(&self.folder.join(&entry.source)).map_err(read(&entry.name))
    }

    /// Returns the path of a line's plan.
    pub fn plan_path(&self, entry: &Entry) -> PathBuf {
        self.folder.join("plans").join(entry.name.replace('/', "-") + ".txt")
    }

    /// Reads the stored plan of a line, one offset in bytes for each buffer; `None` if the line has no plan.
    ///
    /// # Errors
    /// [`CollectionError`] if it cannot be read.
    pub fn plan(&self, entry: &Entry) -> Result<Option<Vec<u64>>, CollectionError> {
        let path = self.plan_path(entry);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).map_err(read(path.display()))?;
        let offset = |(n, text): (usize, &str)| {
            let what = || format!("line {}: `{text}` is no offset", n + 1);
            let wrong = |_| CollectionError::Contradiction { at: path.display().to_string(), what: what() };
            text.parse::<u64>().map_err(wrong)
        };
        text.lines().enumerate().map(offset).collect::<Result<_, _>>().map(Some)
    }

    /// Checks that each line has an instance and a plan with the stated peak, that the bounds hold, and that nothing else is stored.
    /// Shares no code with the search except for the load bound.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), CollectionError> {
        let mut names = HashSet::new();
        for entry in &self.entries {
            let wrong = |what: String| CollectionError::Contradiction { at: entry.name.clone(), what };
            if !names.insert(&entry.name) {
                return Err(wrong("the table has two of this name".into()));
            }
            let instance = self.instance(entry)?;
            if instance.len() != entry.buffers {
                return Err(wrong(format!("{} buffers, the table says {}", instance.len(), entry.buffers)));
            }
            let offsets = self.plan(entry)?.ok_or_else(|| wrong("no plan is stored".into()))?;
            validate(&instance, &offsets, None)
                .map_err(|violation| wrong(format!("the stored plan is wrong: {violation}")))?;
            let peak = instance.peak(&offsets);
            if peak != entry.peak {
                return Err(wrong(format!("the stored plan needs {peak} B, the table says {}", entry.peak)));
            }
            let load = lower_bound(&instance).bytes;
            let by_load = entry.bound_by == "load";
            if load > entry.bound || entry.bound > peak || (by_load && load != entry.bound) {
                return Err(wrong(format!(
                    "the bound {} B by `{}` does not go with a load of {load} B and a peak of {peak} B",
                    entry.bound, entry.bound_by
                )));
            }
        }
        let path = self.folder.join("plans");
        let plans = fs::read_dir(&path).map_err(read(path.display()))?.count();
        if plans != self.entries.len() {
            let what = format!("{plans} plans are stored for {} instances", self.entries.len());
            return Err(CollectionError::Contradiction { at: "plans".into(), what });
        }
        Ok(())
    }
}
