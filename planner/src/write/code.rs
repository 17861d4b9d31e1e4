//! Source code: Rust and C.

use std::fmt::Write;

use super::{Planned, Row};

/// Letters, digits and underscores of `name`, in capitals, never starting with a digit.
pub(super) fn constant(name: &str) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text
}

/// One constant name for each row, unique.
pub(super) fn constants(planned: Planned) -> Vec<String> {
    let mut used = std::collections::HashSet::new();
    planned
        .rows()
        .enumerate()
        .map(|(n, row)| {
            let name = constant(row.id);
            let name = if used.contains(&name) { format!("{name}_{n}") } else { name };
            used.insert(name.clone());
            name
        })
        .collect()
}

pub(super) fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace("*/", "* /")
}

/// The name of a row, and of the buffer that it lies in.
pub(super) fn remark(row: &Row) -> String {
    match row.inside {
        true => format!("{}, in {}", comment(row.id), comment(&row.buffer.id)),
        false => comment(row.id),
    }
}

/// Rust: the arena's size and alignment, `PLAN`, and an index for each buffer. No dependencies.
pub fn rust_source(planned: Planned) -> String {
    let mut out = String::new();
    let buffers = planned.instance.buffers();
    let align = buffers.iter().map(|buffer| buffer.align).max().unwrap_or(1);
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "// Made by `allotment plan` from {}: {}.\n\n\
         /// One buffer's place in the arena: bytes, and the time steps `start..end` at which it is live.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         pub struct Placed {{\n    pub offset: usize,\n    pub size: usize,\n    pub start: i64,\n    pub end: i64,\n}}\n\n\
         /// Bytes of the arena.\npub const ARENA_BYTES: usize = {};\n\n\
         /// Alignment of the arena.\npub const ARENA_ALIGN: usize = {align};\n\n\
         /// Where each buffer lies.\npub const PLAN: [Placed; {}] = [\n",
        comment(planned.name),
        planned.solution,
        planned.solution.peak,
        planned.rows().count(),
    );
    for row in planned.rows() {
        let Row { offset, size, start, end, .. } = row;
        let _ = writeln!(
            out,
            "    Placed {{ offset: {offset}, size: {size}, start: {start}, end: {end} }}, // {}",
            remark(&row)
        );
    }
    out += "];\n\n/// Indices into [`PLAN`].\npub mod index {\n";
    for (n, name) in constants(planned).iter().enumerate() {
        let _ = writeln!(out, "    pub const {name}: usize = {n};");
    }
    out + "}\n"
}

/// A C header: offsets and sizes as macros, and the plan as an array.
pub fn c_header(planned: Planned) -> String {
    let mut out = String::new();
    let buffers = planned.instance.buffers();
    let prefix = constant(planned.name);
    let align = buffers.iter().map(|buffer| buffer.align).max().unwrap_or(1);
    let _ = write!(
        out,
        "/* Made by `allotment plan` from {}: {}. */\n#ifndef {prefix}_PLAN_H\n#define {prefix}_PLAN_H\n\n\
         #include <stdint.h>\n\n#define {prefix}_ARENA_BYTES {}u\n#define {prefix}_ARENA_ALIGN {align}u\n\
         #define {prefix}_BUFFERS {}u\n\n",
        comment(planned.name),
        planned.solution,
        planned.solution.peak,
        planned.rows().count(),
    );
    for (row, name) in planned.rows().zip(constants(planned)) {
        let _ = writeln!(out, "#define {prefix}_{name}_OFFSET {}u", row.offset);
        let _ = writeln!(out, "#define {prefix}_{name}_SIZE {}u", row.size);
    }
    let _ = write!(
        out,
        "\n/* {{offset, size}} of each buffer. */\nstatic const uint64_t {prefix}_PLAN[{}][2] = {{\n",
        planned.rows().count().max(1)
    );
    if buffers.is_empty() {
        out += "    {0, 0},\n";
    }
    for row in planned.rows() {
        let _ = writeln!(out, "    {{{}u, {}u}}, /* {} */", row.offset, row.size, remark(&row));
    }
    out + "};\n\n#endif\n"
}
