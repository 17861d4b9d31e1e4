//! Names the functions of a stack and picks the one that holds the memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use allotment_trace::{Frame, Stacks};

use super::costs::{Costs, Measure};
use super::gather::Profile;

/// A function of a stack, as shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    pub function: Arc<str>,
    pub file: Option<Arc<str>>,
    pub line: u32,
}

impl From<&Frame> for Label {
    fn from(frame: &Frame) -> Self {
        Self { function: frame.function.clone(), file: frame.file.clone(), line: frame.line }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match &self.file {
            Some(file) if self.line > 0 => write!(f, "  {file}:{}", self.line),
            Some(file) => write!(f, "  {file}"),
            None => Ok(()),
        }
    }
}

/// Prefixes of functions that allocate for their callers, which are shown instead.
const PLUMBING: [&str; 21] = [
    "alloc::",
    "<alloc::",
    "core::",
    "<core::",
    "std::",
    "<std::",
    "void std::",
    "hashbrown::",
    "<hashbrown::",
    "__rust_",
    "__rustc",
    "operator new",
    "__gnu_cxx::",
    "allotment::",
    "<allotment::",
    "backtrace::",
    "<backtrace::",
    "_rjem_",
    "je_",
    "tikv_jemalloc",
    "<tikv_jemalloc",
];

/// Names of such functions in C libraries, up to the first character that is no letter.
const ALLOCATING: [&str; 12] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "strdup",
    "strndup",
    "asprintf",
    "vasprintf",
    "getdelim",
];

/// Parts of the paths of files with such functions.
const PLUMBING_FILES: [&str; 5] =
    ["/rustc/", "/include/c++/", "/libstdc++-v3/", "/tikv-jemalloc", "/src/jemalloc.c"];

impl Label {
    /// Returns whether the function allocates for its callers.
    fn is_plumbing(&self) -> bool {
        let plain =
            ["__GI___", "__GI_", "__libc_", "__"].iter().find_map(|start| self.function.strip_prefix(start));
        PLUMBING.iter().any(|start| self.function.starts_with(start))
            || ALLOCATING.contains(&plain.unwrap_or(&self.function))
            || self.function.contains(" as core::alloc::global::GlobalAlloc>::")
            || self.file.as_ref().is_some_and(|file| PLUMBING_FILES.iter().any(|part| file.contains(part)))
    }
}

/// Returns the functions of a stack, the innermost first.
pub fn labels(stacks: &Stacks, mut number: u32) -> Vec<Label> {
    let mut labels = Vec::new();
    while let Some(node) = stacks.node(number) {
        let frames = stacks.frames(node);
        labels.extend(frames.iter().map(Label::from));
        if frames.is_empty() {
            let path = stacks.module(node).map_or("", |module| &module.path);
            let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("?");
            labels.push(Label {
                function: format!("{name}+{:#x}", node.address).into(),
                file: None,
                line: 0,
            });
        }
        number = node.parent;
    }
    labels
}

/// One line of a program that asked for memory, with its costs.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The function and the line.
    pub label: Label,
    pub costs: Costs,
    /// The most expensive stack that ends there, the innermost function first.
    pub stack: Vec<Label>,
    /// The events that allocated the oldest and the newest live block.
    pub since: Option<(u64, u64)>,
    /// The number of stacks that end there.
    pub stacks: usize,
}

/// Returns the lines of a program that asked for memory, sorted by a measure, the largest first.
pub fn holders(profile: &Profile, measure: Measure) -> Vec<Holder> {
    let mut holders: HashMap<Label, (Holder, u64)> = HashMap::new();
    for (number, costs) in (0..).zip(&profile.by_stack) {
        if number == 0 || costs.calls == 0 {
            continue;
        }
        let labels = labels(&profile.stacks, number);
        // Where a device recorded too few callers, the last one comes closest.
        let holder = labels.iter().position(|label| !label.is_plumbing()).unwrap_or(labels.len().max(1) - 1);
        let Some(label) = labels.get(holder).cloned() else { continue };
        let weight = measure.of(costs);
        let since = profile.since.get(&number).copied();
        let none = || {
            (
                Holder {
                    label: label.clone(),
                    costs: Costs::default(),
                    stack: vec![],
                    since: None,
                    stacks: 0,
                },
                0,
            )
        };
        let (known, heaviest) = holders.entry(label.clone()).or_insert_with(none);
        known.costs.add(costs);
        known.stacks += 1;
        known.since = match (known.since, since) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, other) => one.or(other),
        };
        if weight > *heaviest || known.stack.is_empty() {
            (known.stack, *heaviest) = (labels, weight);
        }
    }
    let mut holders: Vec<Holder> = holders.into_values().map(|(holder, _)| holder).collect();
    let key = |holder: &Holder| std::cmp::Reverse((measure.of(&holder.costs), holder.costs.bytes));
    holders.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.label.to_string().cmp(&b.label.to_string())));
    holders
}
