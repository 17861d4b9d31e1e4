//! A profile in the form of `pprof`, as Go, jemalloc's and tcmalloc's tools, and our own `Sampled` write it.

use std::collections::HashMap;
use std::time::Duration;

use allotment_trace::{Frame, Stacks};

use super::costs::{Costs, Weight};
use super::gather::Profile;
use crate::proto::Pprof;

/// The most addresses in all stacks.
const MOST: usize = 1 << 26;

/// Returns the costs that a profile has.
///
/// # Errors
/// If it counts something else than memory, or is damaged.
pub(super) fn profile(name: String, pprof: &Pprof) -> Result<Profile, String> {
    let text = |index: i64| {
        let known = usize::try_from(index).ok().and_then(|index| pprof.string_table.get(index));
        known.map_or("", String::as_str)
    };
    let kinds: Vec<&str> = pprof.sample_type.iter().map(|kind| text(kind.r#type)).collect();
    let find = |names: &[&str]| names.iter().find_map(|name| kinds.iter().position(|kind| kind == name));
    let (calls, bytes) = (find(&["alloc_objects"]), find(&["alloc_space"]));
    let (blocks, live) = (find(&["inuse_objects", "objects"]), find(&["inuse_space", "space"]));
    let peak = find(&["peak_space"]).or(live);
    if bytes.or(live).is_none() {
        return Err(format!("a profile of {}, not of memory", kinds.join(", ")));
    }
    let locations: HashMap<u64, _> = pprof.location.iter().map(|location| (location.id, location)).collect();
    let functions: HashMap<u64, _> = pprof.function.iter().map(|function| (function.id, function)).collect();
    let mut stacks = Stacks::default();
    let mut nodes: HashMap<(u32, u64), u32> = HashMap::new();
    let mut by_stack = vec![Costs::default()];
    for sample in &pprof.sample {
        let mut node = 0;
        for &id in sample.location_id.iter().rev() {
            let next = nodes.len() as u32 + 1;
            let parent = node;
            node = *nodes.entry((parent, id)).or_insert(next);
            if node == next {
                stacks.read(&format!("n {parent} 0 {id:x}"));
                by_stack.push(Costs::default());
            }
        }
        if nodes.len() > MOST {
            return Err(format!("more than {MOST} addresses"));
        }
        let value = |index: Option<usize>| {
            index.and_then(|index| sample.value.get(index)).and_then(|&value| u64::try_from(value).ok())
        };
        let (blocks, live) = (value(blocks).unwrap_or(0), value(live).unwrap_or(0));
        let bytes = value(bytes).unwrap_or(live);
        // A row without calls is none.
        let calls = value(calls).unwrap_or(blocks).max(u64::from(bytes > 0 || live > 0));
        let most = Weight { blocks, bytes: live };
        by_stack[node as usize].add(&Costs {
            calls,
            bytes,
            blocks,
            live,
            peak: value(peak).unwrap_or(0),
            peak_blocks: blocks,
            most: most.bytes,
            most_blocks: most.blocks,
            ..Costs::default()
        });
    }
    for (id, location) in locations {
        let lines = location.line.iter().map(|line| {
            let function = functions.get(&line.function_id);
            let name = function.map_or("?", |function| text(function.name));
            let file = function.map(|function| text(function.filename)).filter(|file| !file.is_empty());
            Frame { function: name.into(), file: file.map(Into::into), line: u32::try_from(line.line).unwrap_or(0) }
        });
        let mut frames: Vec<Frame> = lines.collect();
        if frames.is_empty() {
            let mapping = pprof.mapping.iter().find(|mapping| mapping.id == location.mapping_id);
            let file = mapping.map_or("", |mapping| text(mapping.filename)).rsplit('/').next().unwrap_or_default();
            let function = format!("{}+{:#x}", if file.is_empty() { "?" } else { file }, location.address);
            frames.push(Frame { function: function.into(), file: None, line: 0 });
        }
        stacks.name(0, id, frames);
    }
    let mut total = Costs::default();
    by_stack.iter().for_each(|costs| total.add(costs));
    let time = u64::try_from(pprof.duration_nanos).ok().filter(|&time| time > 0).map(Duration::from_nanos);
    Ok(Profile::of_sums(name, total, stacks, by_stack, time))
}
