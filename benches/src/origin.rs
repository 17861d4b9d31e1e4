//! The origin of figures: machine, versions, command.

use allotment_benches::machine;

/// The dependencies that are under test.
const PEERS: [&str; 14] = [
    "allotment",
    "talc",
    "rlsf",
    "dlmalloc",
    "good_memory_allocator",
    "linked_list_allocator",
    "buddy_system_allocator",
    "embedded-alloc",
    "offset-allocator",
    "mimalloc",
    "rusty_alloc-api",
    "sefer-alloc",
    "snmalloc-rs",
    "tikv-jemallocator",
];

/// Returns machine, versions and command, one line each.
pub fn describe(measure: &str) -> Vec<String> {
    vec![
        format!("machine: {}", machine::describe()),
        format!("compiler: {}, release, fat LTO, one codegen unit", env!("BENCH_RUSTC")),
        format!(
            "versions: {}; allotment at {}",
            versions(include_str!("../Cargo.lock")),
            machine::revision()
        ),
        format!("command: cargo xtask bench {measure}; load of the machine at its end: {}", load()),
    ]
}

/// Returns the same for a part of the planner's tables.
pub fn describe_plan(part: &str) -> Vec<String> {
    vec![
        format!("machine: {}, with other work on it", machine::describe()),
        format!("compiler: {}, release; allotment at {}", env!("BENCH_RUSTC"), machine::revision()),
        format!("command: cargo xtask plan {part}"),
    ]
}

/// Returns the mean number of processes that ran or waited in the last minute: with more than there are cores, times suffer.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Returns the versions of the packages under test, from the text of a lock file.
fn versions(lock: &str) -> String {
    let mut versions = Vec::new();
    let mut name = "";
    for line in lock.lines() {
        if let Some(rest) = line.strip_prefix("name = ") {
            name = rest.trim_matches('"');
        } else if let Some(version) = line.strip_prefix("version = ").filter(|_| PEERS.contains(&name)) {
            versions.push(format!("{name} {}", version.trim_matches('"')));
        }
    }
    versions.join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_lock_file_names_the_peers() {
        let text =
            "[[package]]\nname = \"talc\"\nversion = \"5.1\"\n\n[[package]]\nname = \"x\"\nversion = \"1\"\n";
        assert_eq!(super::versions(text), "talc 5.1");
        let versions = super::versions(include_str!("../Cargo.lock"));
        assert!(super::PEERS.iter().all(|peer| versions.contains(peer)), "{versions}");
    }
}
