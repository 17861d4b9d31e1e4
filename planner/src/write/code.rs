//! Writes the source code of a plan in Rust and C: one arena for each tier, in a section that the linker places.

use std::collections::{BTreeMap, HashSet};

use askama::Template;

use super::{Planned, plain, rendered};
use crate::schedule::{Place, Share, Step};
use crate::transform::CacheLines;

/// The section of each tier's arena, by the tier's number. A tier without a section lies where the compiler puts variables.
pub type Sections = BTreeMap<u32, String>;

/// A tier's arena: its bytes, its alignment (a power of two) and its section.
pub(super) struct Arena {
    pub(super) tier: u32,
    pub(super) bytes: u64,
    pub(super) align: u64,
    pub(super) section: Option<String>,
}

/// Returns the arenas in the order of their tiers.
pub(super) fn arenas(planned: Planned, sections: &Sections) -> Vec<Arena> {
    let mut arenas: BTreeMap<u32, Arena> = BTreeMap::new();
    for (place, offset) in planned.schedule.placed().filter(|(place, _)| !place.inside) {
        let tier = place.buffer.tier;
        // Omit characters that could end a string in Rust or C.
        let kept = |c: &char| !c.is_control() && !matches!(c, '"' | '\\');
        let section = || sections.get(&tier).map(|name| name.chars().filter(kept).collect());
        let arena =
            arenas.entry(tier).or_insert_with(|| Arena { tier, bytes: 0, align: 1, section: section() });
        arena.bytes = arena.bytes.max(offset + place.size);
        arena.align = arena.align.max(place.buffer.align.next_power_of_two());
    }
    arenas.into_values().collect()
}

/// A place in source code.
pub(super) struct Line {
    /// The unique name of its constant.
    pub(super) name: String,
    /// Its name, and the name of the buffer that holds it.
    pub(super) remark: String,
    pub(super) tier: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) start: i64,
    pub(super) end: i64,
}

/// Returns all places in order.
pub(super) fn lines(planned: Planned) -> Vec<Line> {
    let mut used = HashSet::new();
    let line = |(n, (place, offset)): (usize, (Place, u64))| {
        let name = unique(&mut used, constant(place.id), n);
        let remark = match place.inside {
            true => format!("{}, in {}", comment(place.id), comment(&place.buffer.id)),
            false => comment(place.id),
        };
        let (tier, size, start, end) = (place.buffer.tier, place.size, place.start, place.end);
        Line { name, remark, tier, offset, size, start, end }
    };
    planned.schedule.placed().enumerate().map(line).collect()
}

/// Returns `name`, or if it is used already, the name with `number` and as many underscores as it takes. Then it is used.
pub(super) fn unique(used: &mut HashSet<String>, mut name: String, number: usize) -> String {
    if used.contains(&name) {
        name = format!("{}_{number}", name.trim_end_matches('_'));
    }
    while !used.insert(name.clone()) {
        name.push('_');
    }
    name
}

/// Returns the letters, digits and underscores of `name`, in capitals, never starting with a digit.
pub(super) fn constant(name: &str) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    // An underscore alone names nothing.
    if text.bytes().all(|byte| byte == b'_') {
        text.push('X');
    }
    text
}

/// Returns a name in a form that is safe in a comment of Rust or C.
pub(super) fn comment(text: &str) -> String {
    plain(text).replace("*/", "* /").replace("/*", "/ *")
}

#[derive(Template)]
#[template(path = "arenas.rs", escape = "none")]
struct RustSource<'a> {
    head: String,
    lines: Vec<Line>,
    arenas: Vec<Arena>,
    cache_lines: &'a CacheLines,
}

/// Returns Rust code without dependencies: a static arena for each tier in its section, `PLAN`, `arena`, `address`, and an index for each
/// buffer.
///
/// With `cache_lines` it also has `cache_line`, which returns the bytes of a tier's cache line.
pub fn rust_source(planned: Planned, sections: &Sections, cache_lines: &CacheLines) -> String {
    let (head, lines, arenas) = (planned.head("// "), lines(planned), arenas(planned, sections));
    rendered(&RustSource { head, lines, arenas, cache_lines })
}

#[derive(Template)]
#[template(path = "plan.h", escape = "none")]
struct Header<'a> {
    head: String,
    prefix: String,
    lines: Vec<Line>,
    arenas: Vec<Arena>,
    cache_lines: &'a CacheLines,
    steps: Vec<CStep<'a>>,
}

/// A step in the table of a header.
struct CStep<'a> {
    step: &'a Step,
    operator: String,
    act: String,
    lies: &'static str,
    /// The number of its first operand.
    first: usize,
}

/// Returns a C header: an arena for each tier in its section, offsets and sizes as macros, and the plan as an array. A source file that
/// defines `NAME_PLAN_ARENAS` before including the header defines the arenas.
///
/// With `cache_lines` it also has `NAME_TIER_N_CACHE_LINE` for each cached tier, in bytes. Tables hold the steps of a model: what each
/// does, and its operands as indices into the plan.
pub fn c_header(planned: Planned, sections: &Sections, cache_lines: &CacheLines) -> String {
    let lowered = &planned.schedule.lowered;
    let mut first = 0;
    let steps = lowered.steps.iter().map(|step| {
        let Step { op, act, share, reads, writes, .. } = step;
        let name = op.zip(lowered.graph.as_ref()).map_or("", |(n, graph)| graph.ops[n].name.as_str());
        // Omit characters that could end a string or begin an escape or a trigraph.
        let operator = plain(name).replace(['"', '\\', '?'], " ");
        let lies = match share {
            Share::Apart => "APART",
            Share::View => "VIEW",
            Share::Overwrite => "OVER",
        };
        first += reads.len() + writes.len();
        let first = first - reads.len() - writes.len();
        CStep { step, operator, act: format!("{act:?}").to_uppercase(), lies, first }
    });
    let (head, prefix) = (planned.head(" * "), constant(planned.name));
    let (lines, arenas) = (lines(planned), arenas(planned, sections));
    let steps = steps.collect();
    rendered(&Header { head, prefix, lines, arenas, cache_lines, steps })
}
