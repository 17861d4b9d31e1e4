//! With the feature `defmt`, every public value type that exists without `std` can be logged.

use allotment::out_of_memory::Cause;
use allotment::placement::Block;
use allotment::{FreeError, OutOfMemory, Region, RegionError, Stats};
use std::fs;
use std::path::Path;

/// Compiles only for types that can be logged.
fn loggable<T: defmt::Format>() -> &'static str {
    std::any::type_name::<T>()
}

#[test]
fn value_types_can_be_logged() {
    let names = [
        loggable::<Stats>(),
        loggable::<OutOfMemory>(),
        loggable::<Cause>(),
        loggable::<FreeError>(),
        loggable::<RegionError>(),
        loggable::<Region>(),
        loggable::<Block>(),
        loggable::<Block<u32>>(),
        loggable::<allotment::plan::Buffer>(),
        loggable::<allotment::plan::Plan<'static, 3>>(),
    ];
    assert!(names.iter().all(|name| name.starts_with("allotment::")));
}

/// Folders and files of the library that exist only with `std`.
const WITH_STD: [&str; 7] = ["gpu", "os", "pool", "profile", "vulkan", "owned.rs", "host.rs"];

/// Public types with a derived `Debug`, in the sources at `path` and below, that cannot be logged.
fn unloggable(path: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if WITH_STD.contains(&name) {
            continue;
        }
        if path.is_dir() {
            unloggable(&path, found);
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        let mut attributes = String::new();
        for line in source.lines().map(str::trim_start) {
            if line.starts_with("#[") {
                attributes.push_str(line);
                continue;
            }
            let declared = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
            if let Some(rest) = declared {
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                let by_hand = format!("defmt::Format for {name}");
                let is_value = attributes.contains("derive(") && attributes.contains("Debug");
                if is_value && !attributes.contains("defmt::Format") && !source.contains(&by_hand) {
                    found.push(format!("{}: {name}", path.display()));
                }
            }
            if !line.starts_with("//") {
                attributes.clear();
            }
        }
    }
}

#[test]
fn no_value_type_was_forgotten() {
    let mut found = Vec::new();
    unloggable(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.is_empty(), "without defmt::Format: {found:#?}");
}
