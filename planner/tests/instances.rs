//! The collection of instances: every best known plan is checked, and made better where the variable UPDATE_INSTANCES is set to the
//! seconds for each.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use allotment_planner::bounds::lower_bound;
use allotment_planner::generate::pinwheel_packing;
use allotment_planner::model::Instance;
use allotment_planner::read::read_csv;
use allotment_planner::solve::{Options, solve};
use allotment_planner::validate::validate;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instances")
}

/// A line of `instances.csv`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Line {
    /// Name of the set, a slash, and its own name.
    name: String,
    /// Path of the CSV, from the table's folder, or what makes it.
    source: String,
    buffers: usize,
    /// Proved lower bound, in bytes.
    bound: u64,
    /// What proved it: `load`, or who.
    bound_by: String,
    /// Best known peak, in bytes.
    peak: u64,
    found_by: String,
}

fn instance(line: &Line) -> Instance {
    match line.source.strip_prefix("pinwheel:") {
        Some(numbers) => {
            let numbers: Vec<u64> = numbers.split(':').map(|number| number.parse().unwrap()).collect();
            pinwheel_packing(numbers[0] as usize, numbers[1] as u32, numbers[2], numbers[3])
        }
        None => read_csv(&fs::read(folder().join(&line.source)).unwrap()).unwrap(),
    }
}

fn plan_of(line: &Line) -> PathBuf {
    folder().join("plans").join(line.name.replace('/', "-")).with_extension("txt")
}

fn offsets(line: &Line) -> Option<Vec<u64>> {
    let text = fs::read_to_string(plan_of(line)).ok()?;
    Some(text.lines().map(|offset| offset.parse().unwrap()).collect())
}

/// Searches for a better plan and bound.
fn improve(line: &mut Line, seconds: u64) {
    let instance = instance(line);
    let options = Options { time_limit: Duration::from_secs(seconds), ..Options::default() };
    let solution = solve(&instance, &options, None);
    validate(&instance, &solution.offsets, None).unwrap();
    line.buffers = instance.len();
    if offsets(line).is_none() || solution.peak < line.peak {
        let text: String = solution.offsets.iter().map(|offset| format!("{offset}\n")).collect();
        fs::write(plan_of(line), text).unwrap();
        (line.peak, line.found_by) = (solution.peak, "allotment".into());
    }
    let load = lower_bound(&instance).bytes;
    if load >= line.bound {
        (line.bound, line.bound_by) = (load, "load".into());
    }
    if solution.lower_bound > line.bound {
        (line.bound, line.bound_by) = (solution.lower_bound, "allotment".into());
    }
}

#[test]
fn the_best_known_plans_are_what_the_table_says() {
    let table = folder().join("instances.csv");
    let mut lines: Vec<Line> =
        csv::Reader::from_path(&table).unwrap().deserialize().collect::<Result<_, _>>().unwrap();
    if let Some(seconds) = std::env::var("UPDATE_INSTANCES").ok().and_then(|text| text.parse().ok()) {
        lines.iter_mut().for_each(|line| improve(line, seconds));
        let mut writer = csv::Writer::from_path(&table).unwrap();
        lines.iter().for_each(|line| writer.serialize(line).unwrap());
        writer.flush().unwrap();
    }
    for line in &lines {
        let instance = instance(line);
        let offsets = offsets(line).unwrap_or_else(|| panic!("{} has no plan", line.name));
        validate(&instance, &offsets, Some(line.peak))
            .unwrap_or_else(|wrong| panic!("{}: {wrong}", line.name));
        assert_eq!(instance.peak(&offsets), line.peak, "{}", line.name);
        assert_eq!(instance.len(), line.buffers, "{}", line.name);
        let load = lower_bound(&instance).bytes;
        assert!(load <= line.bound && line.bound <= line.peak, "{}: {load} {line:?}", line.name);
        assert!(load == line.bound || line.bound_by != "load", "{}", line.name);
    }
    assert_eq!(lines.iter().map(|line| (&line.name, ())).collect::<BTreeMap<_, _>>().len(), lines.len());
    let plans = fs::read_dir(folder().join("plans")).unwrap().count();
    assert_eq!(plans, lines.len(), "one plan for each line");
}

#[test]
fn pinwheels_pack_their_rectangle() {
    let instance = pinwheel_packing(200, 4096, 1 << 20, 7);
    assert!((150..=200).contains(&instance.len()), "{}", instance.len());
    let area: u128 = instance.buffers().iter().map(|b| u128::from(b.size) * u128::from(b.steps())).sum();
    assert_eq!(area, 4096 << 20);
    assert_eq!(lower_bound(&instance).bytes, 1 << 20);
}
