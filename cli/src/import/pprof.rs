//! Reads profiles of `pprof` (`profile.proto`), which have the bytes of each stack, but no order of requests.
//!
//! The trace has blocks of the mean size of each stack: first the freed blocks, then the live ones.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use prost::Message as _;

use super::damaged;
use super::lines::{Lines, Place};
use crate::messages::{Location, Mapping, Pprof, Sample};

/// Largest number of uncompressed bytes of a profile.
const MOST: u64 = 128 << 20;

/// Approximate limit on the blocks of the trace. If a profile has more, each block represents several.
const BLOCKS: u64 = 1 << 20;

/// Returns whether a file begins like a profile: with a kind of values and its name or unit, unlike any text.
pub fn is_at(start: &[u8]) -> bool {
    matches!(start, [0x0a, 0, ..] | [0x0a, 2..=22, 0x08 | 0x10, ..])
}

/// Blocks and bytes of one stack.
#[derive(Clone, Copy, Default)]
struct Amount {
    blocks: u64,
    bytes: u64,
}

impl Amount {
    /// Of no bytes, there may be any number of blocks; otherwise each has a byte at least.
    fn of(blocks: u64, bytes: u64) -> Self {
        Self { blocks: if bytes == 0 { blocks } else { blocks.clamp(1, bytes) }, bytes }
    }
}

/// The columns of the values that count blocks and bytes, either of which may be missing.
#[derive(Clone, Copy, Default)]
struct Columns {
    blocks: Option<usize>,
    bytes: Option<usize>,
}

impl Columns {
    fn of(self, sample: &Sample) -> Amount {
        let value = |column: Option<usize>| {
            let value = column.and_then(|column| sample.value.get(column)).copied();
            u64::try_from(value.unwrap_or(0)).unwrap_or(0)
        };
        let (blocks, bytes) = (value(self.blocks), value(self.bytes));
        Amount::of(blocks, bytes)
    }
}

/// Writes the trace of a profile.
///
/// # Errors
/// If it is damaged or not a memory profile, or cannot be read or written.
pub fn convert(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    input.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(damaged(format!("a profile of more than {} MiB", MOST >> 20)));
    }
    let profile = Pprof::decode(&*bytes).map_err(|why| damaged(format!("no profile of pprof: {why}")))?;
    drop(bytes);
    let (live, all) = columns(&profile)?;
    writeln!(output, "# name=pprof order=none")?;
    let mut lines = Lines::new(output);
    let nodes = nodes(&profile, &mut lines)?;
    let amounts = |sample: &Sample| {
        let live = live.of(sample);
        let all = all.of(sample);
        let gone = Amount {
            blocks: all.blocks.saturating_sub(live.blocks),
            bytes: all.bytes.saturating_sub(live.bytes),
        };
        (live, Amount::of(gone.blocks, gone.bytes))
    };
    let count = |sum: u64, sample: &Sample| {
        let (live, gone) = amounts(sample);
        sum.saturating_add(live.blocks).saturating_add(gone.blocks)
    };
    let several = profile.sample.iter().fold(0, count).div_ceil(BLOCKS).max(1);
    if several > 1 {
        say!("allotment: warning: the profile has so many blocks that one stands for {several} here");
    }
    let (mut block, mut last) = (0_u64, None);
    for is_live in [false, true] {
        for (sample, &node) in profile.sample.iter().zip(&nodes) {
            let (live, gone) = amounts(sample);
            let Amount { blocks, bytes } = if is_live { live } else { gone };
            let blocks = blocks.div_ceil(several);
            for number in 0..blocks {
                // The sizes differ by at most one, and their sum is exact.
                let size = bytes / blocks + u64::from(number < bytes % blocks);
                writeln!(lines.output, "#^{node}\na {block} {size} 0")?;
                // Free each block after the next request, since the profile does not say when.
                if let Some(last) = last.take() {
                    writeln!(lines.output, "f {last}")?;
                }
                last = (!is_live).then_some(block);
                block += 1;
            }
        }
    }
    if let Some(last) = last {
        writeln!(lines.output, "f {last}")?;
    }
    Ok(())
}

/// Finds the columns of the live and the total blocks and bytes.
fn columns(profile: &Pprof) -> io::Result<(Columns, Columns)> {
    let text = |index: i64| {
        usize::try_from(index).ok().and_then(|index| profile.string_table.get(index)).map_or("", |text| text)
    };
    let (mut live, mut all) = (Columns::default(), Columns::default());
    for (column, kind) in profile.sample_type.iter().enumerate() {
        let name = text(kind.r#type);
        let of = if name.starts_with("alloc") || name.starts_with("total") { &mut all } else { &mut live };
        match text(kind.unit) {
            "bytes" => of.bytes = of.bytes.or(Some(column)),
            "count" => of.blocks = of.blocks.or(Some(column)),
            _ => {}
        }
    }
    if live.bytes.is_none() && all.bytes.is_none() {
        let kinds: Vec<&str> = profile.sample_type.iter().map(|kind| text(kind.r#type)).collect();
        return Err(damaged(format!("a profile without bytes of memory: it has {}", kinds.join(", "))));
    }
    Ok((live, all))
}

/// Writes the stacks and returns the node of each sample.
fn nodes(profile: &Pprof, lines: &mut Lines<'_>) -> io::Result<Vec<usize>> {
    let text = |index: i64| {
        let text = usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
        text.cloned().unwrap_or_default()
    };
    let functions: HashMap<u64, (String, String)> = profile
        .function
        .iter()
        .map(|function| (function.id, (text(function.name), text(function.filename))))
        .collect();
    let mappings: HashMap<u64, &Mapping> =
        profile.mapping.iter().map(|mapping| (mapping.id, mapping)).collect();
    let module = |location: &Location| {
        let mapping = mappings.get(&location.mapping_id);
        let path = mapping.map(|mapping| text(mapping.filename)).unwrap_or_default();
        let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("?").to_owned();
        let address = location.address.wrapping_sub(mapping.map_or(0, |mapping| mapping.memory_start));
        format!("{name}+{address:#x}")
    };
    // Use a location's index as its address, since several may share an address.
    let mut known = HashMap::new();
    for (number, location) in (1..).zip(&profile.location) {
        let mut places: Vec<Place> = Vec::new();
        for line in &location.line {
            let (name, file) = functions.get(&line.function_id).cloned().unwrap_or_default();
            let name = if name.is_empty() { module(location) } else { name };
            places.push((name, file, u64::try_from(line.line).unwrap_or(0)));
        }
        if places.is_empty() {
            places.push((module(location), String::new(), 0));
        }
        lines.name(number, &places)?;
        known.insert(location.id, number);
    }
    let mut nodes = Vec::with_capacity(profile.sample.len());
    for sample in &profile.sample {
        let mut node = 0;
        for id in sample.location_id.iter().rev() {
            let Some(&address) = known.get(id) else {
                return Err(damaged(format!("a sample names location {id}, which is not there")));
            };
            node = lines.node(node, address)?;
        }
        nodes.push(node);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Function, Line, ValueType};

    /// Returns a profile as Go writes it: the second location has an inlined function, the third no names.
    fn profile(samples: &[(&[u64], [i64; 4])]) -> Pprof {
        let texts = [
            "",
            "alloc_objects",
            "count",
            "alloc_space",
            "bytes",
            "inuse_objects",
            "inuse_space",
            "main",
            "serve",
            "a.go",
            "/bin/x",
        ];
        let line = |function_id, line| Line { function_id, line };
        let location = |id, line| Location { id, mapping_id: 1, address: 0x1000 + id, line };
        let function = |id, name| Function { id, name, system_name: name, filename: 9 };
        Pprof {
            sample_type: [(1, 2), (3, 4), (5, 2), (6, 4)]
                .map(|(r#type, unit)| ValueType { r#type, unit })
                .to_vec(),
            sample: samples
                .iter()
                .map(|(ids, value)| Sample { location_id: ids.to_vec(), value: value.to_vec() })
                .collect(),
            mapping: vec![Mapping { id: 1, memory_start: 0x1000, filename: 10, ..Mapping::default() }],
            location: vec![
                location(5, vec![line(1, 3)]),
                location(6, vec![line(2, 8), line(1, 4)]),
                location(7, vec![]),
            ],
            function: vec![function(1, 7), function(2, 8)],
            string_table: texts.map(String::from).to_vec(),
            ..Pprof::default()
        }
    }

    fn text(bytes: &[u8]) -> io::Result<String> {
        let mut output = Vec::new();
        convert(&mut &*bytes, &mut output)?;
        Ok(String::from_utf8(output).unwrap())
    }

    #[test]
    fn blocks_have_the_sums_of_their_stacks() {
        let bytes = profile(&[(&[6, 5], [5, 503, 2, 201]), (&[7], [1, 10, 0, 0])]).encode_to_vec();
        assert!(is_at(&bytes));
        let text = text(&bytes).unwrap();
        let events: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "a 0 101 0",
            "a 1 101 0",
            "f 0",
            "a 2 100 0",
            "f 1",
            "a 3 10 0",
            "f 2",
            "a 4 101 0",
            "f 3",
            "a 5 100 0",
        ];
        assert_eq!(events, expected);
        assert!(text.contains("#^s x+0x7\n") && text.contains("#^s serve\n"), "{text}");
    }

    #[test]
    fn what_speaks_of_no_memory_is_refused() {
        let mut cpu = profile(&[(&[5], [1, 2, 3, 4])]);
        cpu.string_table[4] = "nanoseconds".into();
        let error = text(&cpu.encode_to_vec()).unwrap_err().to_string();
        assert!(error.contains("without bytes of memory: it has alloc_objects, alloc_space"), "{error}");
        let lost = profile(&[(&[9], [1, 2, 3, 4])]).encode_to_vec();
        assert!(text(&lost).unwrap_err().to_string().contains("location 9, which is not there"));
    }

    #[test]
    fn hostile_profiles_end_soon() {
        let huge = profile(&[(&[5], [i64::MAX; 4]), (&[6, 5], [i64::MIN, -1, i64::MAX, i64::MAX])]);
        let huge = huge.encode_to_vec();
        let events = text(&huge).unwrap().lines().count() as u64;
        assert!(events < 8 * BLOCKS, "{events}");
        let good = profile(&[(&[6, 5], [5, 503, 2, 201]), (&[7], [1, 10, 0, 0])]).encode_to_vec();
        for end in 0..good.len() {
            let _ = text(&good[..end]);
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..5000 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            // A few bytes may encode a large count, which the test above covers.
            if Pprof::decode(&*bytes).is_ok_and(|read| {
                read.sample.iter().flat_map(|sample| &sample.value).any(|&value| value > 1000)
            }) {
                continue;
            }
            let _ = text(&bytes);
        }
    }
}
