//! Parts of source code: names, places in Rust, and steps in C.

use std::fmt::Write;

use super::{Planned, Row};
use crate::schedule::{Operand, Place, Share};

/// Returns the letters, digits and underscores of `name`, in capitals, never starting with a digit.
pub(super) fn constant(name: &str) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text
}

/// Returns one constant name for each row, unique.
pub(super) fn constants(planned: Planned) -> Vec<String> {
    let mut used = std::collections::HashSet::new();
    planned
        .rows()
        .enumerate()
        .map(|(n, row)| {
            let name = constant(row.place.id);
            let name = if used.contains(&name) { format!("{name}_{n}") } else { name };
            used.insert(name.clone());
            name
        })
        .collect()
}

pub(super) fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace("*/", "* /")
}

/// Returns the name of a row, and of the buffer that it lies in.
pub(super) fn remark(row: &Row) -> String {
    match row.place.inside {
        true => format!("{}, in {}", comment(row.place.id), comment(&row.place.buffer.id)),
        false => comment(row.place.id),
    }
}

/// Adds the struct `Placed`, `PLAN` with a line for each place, and an index of each.
pub(super) fn rust_places(out: &mut String, planned: Planned, names: &[String]) {
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "\n/// One place: its tier, its offset in the tier's arena, bytes, and the time steps `start..end` at which it is live.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         pub struct Placed {{\n    pub tier: usize,\n    pub offset: usize,\n    pub size: usize,\n    pub start: i64,\n    pub end: i64,\n}}\n\n\
         /// Where each buffer lies.\npub const PLAN: [Placed; {}] = [\n",
        names.len()
    );
    for row in planned.rows() {
        let (Row { offset, .. }, Place { size, start, end, .. }) = (row, row.place);
        let tier = row.place.buffer.tier;
        let _ = writeln!(
            out,
            "    Placed {{ tier: {tier}, offset: {offset}, size: {size}, start: {start}, end: {end} }}, // {}",
            remark(&row)
        );
    }
    out.push_str("];\n\n/// Indices into [`PLAN`].\npub mod index {\n");
    for (n, name) in names.iter().enumerate() {
        let _ = writeln!(out, "    pub const {name}: usize = {n};");
    }
    out.push_str("}\n");
}

/// Returns the steps of a model as tables: what each does, and its operands as indices into the plan.
pub(super) fn c_steps(planned: Planned, prefix: &str) -> String {
    let mut out = String::new();
    let steps = &planned.schedule.lowered.steps;
    let Some(graph) = planned.schedule.lowered.graph.as_ref().filter(|_| !steps.is_empty()) else {
        return out;
    };
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "\n/* What a step does. The caller provides what it writes (GIVEN: inputs before every run, constants and states before the\n\
           first), an operator runs (RUN), a place is copied to another (COPY), a constant is read again from the model (LOAD), or the\n\
           caller may read the outputs (TAKEN). */\n\
         enum {{ {prefix}_GIVEN, {prefix}_RUN, {prefix}_COPY, {prefix}_LOAD, {prefix}_TAKEN }};\n\
         /* How the first output lies: APART from the inputs, as a VIEW of the first one (nothing is computed), or so that it overwrites\n\
           an input (OVER). */\n\
         enum {{ {prefix}_APART, {prefix}_VIEW, {prefix}_OVER }};\n\n\
         #define {prefix}_NO_PLACE UINT32_MAX /* an operand that the plan has no place for */\n\
         #define {prefix}_STEP_COUNT {}u\n\n\
         /* The operands of all steps: indices into {prefix}_PLAN. */\n\
         static const uint32_t {prefix}_OPERANDS[] = {{\n",
        steps.len()
    );
    for step in steps {
        let operand = |operand: &Operand| match operand.place {
            Some(place) => format!("{place}u, "),
            None => format!("{prefix}_NO_PLACE, "),
        };
        let operands: String = step.reads.iter().chain(&step.writes).map(operand).collect();
        let _ = writeln!(out, "    {operands}/* time {} */", step.time);
    }
    let _ = write!(
        out,
        "    {prefix}_NO_PLACE\n}};\n\n\
         /* The steps in order: those that read come first among the operands. An operator makes chunk `chunk` of `chunks`. */\n\
         static const struct {{\n    const char *operator_name;\n    uint64_t time, chunk, chunks;\n    uint32_t what, lies, operands, \
         reads, writes;\n}} {prefix}_STEPS[{prefix}_STEP_COUNT] = {{\n"
    );
    let mut first = 0;
    for step in steps {
        let what = format!("{:?}", step.act).to_uppercase();
        let name = step.op.map_or("", |n| &graph.ops[n].name);
        let lies = match step.share {
            Share::Apart => "APART",
            Share::View => "VIEW",
            Share::Overwrite => "OVER",
        };
        let ((chunk, chunks), reads, writes) = (step.chunk, step.reads.len(), step.writes.len());
        let _ = writeln!(
            out,
            "    {{\"{}\", {}u, {chunk}u, {chunks}u, {prefix}_{what}, {prefix}_{lies}, {first}u, {reads}u, {writes}u}},",
            text(name),
            step.time
        );
        first += reads + writes;
    }
    out + "};\n"
}

/// Returns a string's contents for C and Rust, without what could end it or begin an escape or a trigraph.
fn text(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || matches!(c, '"' | '\\' | '?') { ' ' } else { c }).collect()
}
