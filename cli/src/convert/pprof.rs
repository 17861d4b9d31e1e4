//! Writes the format of `pprof` and compatible viewers: `profile.proto` (github.com/google/pprof).

use std::collections::HashMap;

use prost::Message as _;

use crate::messages::{Function, Line, Location, Mapping, Pprof, Sample, ValueType};
use crate::profile::{Costs, Profile, labels};

/// The kinds of values, named as `pprof` knows them from other heaps.
const VALUES: [(&str, &str); 5] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("peak_space", "bytes"),
];

#[derive(Default)]
struct Strings(HashMap<String, i64>, Vec<String>);

impl Strings {
    fn of(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.0.get(text) {
            return known;
        }
        self.1.push(text.to_owned());
        self.0.insert(text.to_owned(), self.1.len() as i64 - 1);
        self.1.len() as i64 - 1
    }
}

/// Returns the uncompressed bytes of a profile.
pub fn pprof(profile: &Profile) -> Vec<u8> {
    let stacks = &profile.stacks;
    let mut strings = Strings::default();
    strings.of("");
    let sample_type =
        VALUES.map(|(kind, unit)| ValueType { r#type: strings.of(kind), unit: strings.of(unit) });
    let mut functions: HashMap<(i64, i64), Function> = HashMap::new();
    let mut locations: HashMap<(u32, u64), Location> = HashMap::new();
    let mut sample = Vec::new();
    for (number, costs) in (0..).zip(&profile.by_stack) {
        let Costs { calls, bytes, blocks, live, peak, .. } = *costs;
        if calls == 0 {
            continue;
        }
        let mut ids = Vec::new();
        let mut at = number;
        while let Some(node) = stacks.node(at) {
            let next = locations.len() as u64 + 1;
            let location = locations.entry((node.module, node.address)).or_insert_with(|| {
                // Only this node's functions, without those of its callers.
                let count = stacks.frames(node).len().max(1);
                let mut line = Vec::new();
                for label in labels(stacks, at).into_iter().take(count) {
                    let (name, filename) =
                        (strings.of(&label.function), strings.of(label.file.as_deref().unwrap_or("")));
                    let id = functions.len() as u64 + 1;
                    let function = functions.entry((name, filename)).or_insert(Function {
                        id,
                        name,
                        system_name: name,
                        filename,
                    });
                    line.push(Line { function_id: function.id, line: label.line.into() });
                }
                let mapping_id = stacks.module(node).map_or(0, |_| node.module.into());
                Location { id: next, mapping_id, address: node.address, line }
            });
            ids.push(location.id);
            at = node.parent;
        }
        let value = [calls, bytes, blocks, live, peak].map(|value| i64::try_from(value).unwrap_or(i64::MAX));
        sample.push(Sample { location_id: ids, value: value.to_vec() });
    }
    let mapping = (1..).zip(stacks.modules()).map(|(id, module)| Mapping {
        id,
        memory_start: 0,
        filename: strings.of(&module.path),
        build_id: strings.of(module.build_id.as_deref().unwrap_or("")),
        has_functions: true,
    });
    let mapping = mapping.collect();
    let mut location: Vec<Location> = locations.into_values().collect();
    location.sort_unstable_by_key(|location| location.id);
    let mut function: Vec<Function> = functions.into_values().collect();
    function.sort_unstable_by_key(|function| function.id);
    let duration_nanos = profile.time.map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    let default_sample_type = strings.of("inuse_space");
    let sample_type = sample_type.to_vec();
    let string_table = strings.1;
    Pprof {
        sample_type,
        sample,
        mapping,
        location,
        function,
        string_table,
        duration_nanos,
        default_sample_type,
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Input;

    #[test]
    fn a_profile_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace");
        let text = "#^m - /bin/serve\n#^n 0 1 10\n#^n 1 1 20\n#^2\na 1 100 8\n#^1\na 2 50 8\nf 2\n\
                    #^s main\n#^s leak\n#^s a.c\n#^f 1 10 1 0 0\n#^f 1 20 2 3 7 1 3 9\n";
        std::fs::write(&path, text).unwrap();
        let profile = Profile::read(&Input::new(&path).unwrap(), None).unwrap();
        let read = Pprof::decode(&*pprof(&profile)).unwrap();
        let text = |index: i64| read.string_table[index as usize].as_str();
        assert_eq!(read.string_table[0], "");
        assert_eq!(text(read.default_sample_type), "inuse_space");
        let leak = read.sample.iter().find(|sample| sample.value == [1, 100, 1, 100, 100]).unwrap();
        let lines: Vec<(&str, i64)> = leak
            .location_id
            .iter()
            .flat_map(|&id| &read.location[id as usize - 1].line)
            .map(|line| (text(read.function[line.function_id as usize - 1].name), line.line))
            .collect();
        assert_eq!(lines, [("leak", 7), ("main", 9), ("main", 0)]);
        assert_eq!(text(read.mapping[0].filename), "/bin/serve");
    }
}
