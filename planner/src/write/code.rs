//! Source code: Rust and C.

use std::fmt::Write;

use super::Planned;

/// Letters, digits and underscores of `name`, in capitals, never starting with a digit.
pub(super) fn constant(name: &str) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text
}

/// One constant name for each buffer, unique.
pub(super) fn constants(planned: Planned) -> Vec<String> {
    let mut used = std::collections::HashSet::new();
    let names = planned.instance.buffers().iter().enumerate();
    names
        .map(|(n, buffer)| {
            let name = constant(&buffer.id);
            let name = if used.contains(&name) { format!("{name}_{n}") } else { name };
            used.insert(name.clone());
            name
        })
        .collect()
}

pub(super) fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace("*/", "* /")
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
        buffers.len(),
    );
    for (buffer, offset) in buffers.iter().zip(&planned.solution.offsets) {
        let (size, start, end, id) = (buffer.size, buffer.start, buffer.end, comment(&buffer.id));
        let _ = writeln!(
            out,
            "    Placed {{ offset: {offset}, size: {size}, start: {start}, end: {end} }}, // {id}"
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
        buffers.len(),
    );
    let names = constants(planned);
    for ((buffer, offset), name) in buffers.iter().zip(&planned.solution.offsets).zip(&names) {
        let _ = writeln!(out, "#define {prefix}_{name}_OFFSET {offset}u");
        let _ = writeln!(out, "#define {prefix}_{name}_SIZE {}u", buffer.size);
    }
    let _ = write!(
        out,
        "\n/* {{offset, size}} of each buffer. */\nstatic const uint64_t {prefix}_PLAN[{}][2] = {{\n",
        buffers.len().max(1)
    );
    if buffers.is_empty() {
        out += "    {0, 0},\n";
    }
    for (buffer, offset) in buffers.iter().zip(&planned.solution.offsets) {
        let _ = writeln!(out, "    {{{offset}u, {}u}}, /* {} */", buffer.size, comment(&buffer.id));
    }
    out + "};\n\n#endif\n"
}
