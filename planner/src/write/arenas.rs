//! Source code of a plan, Rust and C: one arena for each tier, in a section that the linker places.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Planned;
use super::code::{c_steps, constant, constants, remark, rust_places};
use crate::transform::CacheLines;

/// The section of each tier's arena, by its number. A tier without one lies where the compiler puts variables.
pub type Sections = BTreeMap<u32, String>;

/// A tier's arena: number, bytes, and alignment, a power of two.
pub(super) struct Arena {
    pub(super) tier: u32,
    pub(super) bytes: u64,
    pub(super) align: u64,
}

/// Returns the arenas in the order of their tiers.
pub(super) fn arenas(planned: Planned) -> Vec<Arena> {
    let mut arenas: BTreeMap<u32, Arena> = BTreeMap::new();
    for (buffer, offset) in
        planned.schedule.lowered.instance.buffers().iter().zip(&planned.schedule.solution.offsets)
    {
        let tier = buffer.tier;
        let arena = arenas.entry(tier).or_insert(Arena { tier, bytes: 0, align: 1 });
        arena.bytes = arena.bytes.max(offset + buffer.size);
        arena.align = arena.align.max(buffer.align.next_power_of_two());
    }
    arenas.into_values().collect()
}

/// Returns a section's name for a string of Rust or C, without what could end that string.
pub(super) fn section(sections: &Sections, tier: u32) -> Option<String> {
    let name = sections.get(&tier)?;
    Some(name.chars().filter(|c| !c.is_control() && !matches!(c, '"' | '\\')).collect())
}

/// Rust: a static arena for each tier in its section, `PLAN`, `arena`, `address`, and an index for each buffer. No dependencies.
///
/// With `lines` also `cache_line`, which returns the bytes of a tier's cache line.
pub fn rust_source(planned: Planned, sections: &Sections, lines: &CacheLines) -> String {
    let mut out = planned.head("// ") + "\nuse core::cell::UnsafeCell;\nuse core::mem::MaybeUninit;\n";
    rust_places(&mut out, planned, &constants(planned));
    let arenas = arenas(planned);
    for Arena { tier, bytes, align } in &arenas {
        let place = section(sections, *tier)
            .map_or(String::new(), |name| format!("#[unsafe(link_section = \"{name}\")]\n"));
        let _ = write!(
            out,
            "\n/// The memory of tier {tier}; what is in it at first is not known.\n\
             #[repr(C, align({align}))]\npub struct Arena{tier}(UnsafeCell<[MaybeUninit<u8>; {bytes}]>);\n\n\
             // SAFETY: the memory is reached by `arena` alone, whose callers keep to the plan.\n\
             unsafe impl Sync for Arena{tier} {{}}\n\n\
             /// The arena of tier {tier}: {bytes} bytes.\n{place}\
             pub static ARENA_{tier}: Arena{tier} = Arena{tier}(UnsafeCell::new([MaybeUninit::uninit(); {bytes}]));\n",
        );
    }
    out += "\n/// Returns the first byte of a tier's arena; null for a tier that is not there.\n\
            pub fn arena(tier: usize) -> *mut u8 {\n    match tier {\n";
    for Arena { tier, .. } in &arenas {
        let _ = writeln!(out, "        {tier} => ARENA_{tier}.0.get().cast(),");
    }
    out += "        _ => core::ptr::null_mut(),\n    }\n}\n\n";
    if !lines.is_empty() {
        out += "/// Returns the bytes of a tier's cache line, which no two of its buffers share; 0 for a tier without a cache.\n\
                pub const fn cache_line(tier: usize) -> usize {\n    match tier {\n";
        for (tier, bytes) in lines {
            let _ = writeln!(out, "        {tier} => {bytes},");
        }
        out += "        _ => 0,\n    }\n}\n\n";
    }
    out + "/// Returns the first byte of buffer `n` of [`PLAN`], which is the buffer's while it is live.\n\
           pub fn address(n: usize) -> *mut u8 {\n    arena(PLAN[n].tier).wrapping_add(PLAN[n].offset)\n}\n"
}

/// Returns a C header: an arena for each tier in its section, offsets and sizes as macros, and the plan as an array. The source file that
/// defines `NAME_PLAN_ARENAS` before it includes the header defines the arenas.
///
/// With `lines` also `NAME_TIER_N_CACHE_LINE` for each cached tier, in bytes.
pub fn c_header(planned: Planned, sections: &Sections, lines: &CacheLines) -> String {
    let mut out = String::new();
    let prefix = constant(planned.name);
    let _ = write!(
        out,
        "/*\n{}*/\n#ifndef {prefix}_PLAN_H\n#define {prefix}_PLAN_H\n\n\
         #include <stdint.h>\n\n#define {prefix}_BUFFERS {}u\n",
        planned.head(" * "),
        planned.rows().count(),
    );
    let arenas = arenas(planned);
    for Arena { tier, bytes, align } in &arenas {
        let _ = write!(
            out,
            "#define {prefix}_TIER_{tier}_BYTES {bytes}u\n#define {prefix}_TIER_{tier}_ALIGN {align}u\n"
        );
        if let Some(line) = lines.get(tier) {
            let _ = writeln!(out, "#define {prefix}_TIER_{tier}_CACHE_LINE {line}u");
        }
    }
    out += "\n";
    for (row, name) in planned.rows().zip(constants(planned)) {
        let _ = write!(
            out,
            "#define {prefix}_{name}_TIER {}u\n#define {prefix}_{name}_OFFSET {}u\n#define {prefix}_{name}_SIZE {}u\n\
             #define {prefix}_{name}_AT ({prefix}_ARENA_{0} + {prefix}_{name}_OFFSET)\n",
            row.place.buffer.tier, row.offset, row.place.size
        );
    }
    out += "\n/* The memory of each tier; what is in it at first is not known. */\n";
    for Arena { tier, .. } in &arenas {
        // No array of C is empty.
        let _ = writeln!(
            out,
            "extern uint8_t {prefix}_ARENA_{tier}[{prefix}_TIER_{tier}_BYTES + !{prefix}_TIER_{tier}_BYTES];"
        );
    }
    let _ = writeln!(out, "\n#ifdef {prefix}_PLAN_ARENAS");
    for Arena { tier, .. } in &arenas {
        let place = section(sections, *tier).map_or(String::new(), |name| format!("section(\"{name}\"), "));
        let _ = writeln!(
            out,
            "__attribute__(({place}aligned({prefix}_TIER_{tier}_ALIGN)))\n\
             uint8_t {prefix}_ARENA_{tier}[{prefix}_TIER_{tier}_BYTES + !{prefix}_TIER_{tier}_BYTES];"
        );
    }
    let _ = write!(
        out,
        "#endif\n\n/* {{tier, offset, size}} of each buffer. */\nstatic const uint64_t {prefix}_PLAN[{}][3] = {{\n",
        planned.rows().count().max(1)
    );
    if planned.schedule.lowered.instance.is_empty() {
        out += "    {0, 0, 0},\n";
    }
    for row in planned.rows() {
        let (tier, offset, size) = (row.place.buffer.tier, row.offset, row.place.size);
        let _ = writeln!(out, "    {{{tier}u, {offset}u, {size}u}}, /* {} */", remark(&row));
    }
    out + "};\n" + &c_steps(planned, &prefix) + "\n#endif\n"
}
