//! The collection of instances: every best known plan is checked, and made better where the variable UPDATE_INSTANCES is set to the
//! seconds for each.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use allotment_planner::bounds::lower_bound;
use allotment_planner::instances::{Collection, CollectionError, TABLE};
use allotment_planner::solve::{Options, solve};
use allotment_planner::validate::validate;
use common::generate::{mosaic_packing, pinwheel_packing};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instances")
}

fn collection() -> Collection {
    Collection::open(&folder()).unwrap().unwrap()
}

/// Searches for better plans and bounds.
fn improve(collection: &mut Collection, seconds: u64) {
    for n in 0..collection.entries.len() {
        let instance = collection.instance(&collection.entries[n]).unwrap();
        let options = Options { time_limit: Duration::from_secs(seconds), ..Options::default() };
        let solution = solve(&instance, &options, None);
        validate(&instance, &solution.offsets, None).unwrap();
        let stored = collection.plan(&collection.entries[n]).unwrap();
        if stored.is_none() || solution.peak < collection.entries[n].peak {
            let text: String = solution.offsets.iter().map(|offset| format!("{offset}\n")).collect();
            fs::write(collection.plan_path(&collection.entries[n]), text).unwrap();
            let line = &mut collection.entries[n];
            (line.peak, line.found_by) = (solution.peak, "allotment".into());
        }
        let line = &mut collection.entries[n];
        line.buffers = instance.len();
        let load = lower_bound(&instance).bytes;
        if load >= line.bound {
            (line.bound, line.bound_by) = (load, "load".into());
        }
        if solution.lower_bound > line.bound {
            (line.bound, line.bound_by) = (solution.lower_bound, "allotment".into());
        }
    }
    let mut table = csv::Writer::from_path(folder().join(TABLE)).unwrap();
    collection.entries.iter().for_each(|entry| table.serialize(entry).unwrap());
    table.flush().unwrap();
}

#[test]
fn the_best_known_plans_are_what_the_table_says() {
    let mut collection = collection();
    if let Some(seconds) = std::env::var("UPDATE_INSTANCES").ok().and_then(|text| text.parse().ok()) {
        improve(&mut collection, seconds);
    }
    assert!(collection.entries.len() >= 37);
    collection.check().unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// A collection of one instance of two buffers, with this line in the table and this plan.
fn small(folder: &Path, line: &str, plan: &str) -> Result<(), CollectionError> {
    fs::create_dir_all(folder.join("plans")).unwrap();
    fs::write(folder.join("two.csv"), "id,lower,upper,size\na,0,4,8\nb,2,6,8\n").unwrap();
    fs::write(
        folder.join("instances.csv"),
        format!("name,source,buffers,bound,bound_by,peak,found_by\n{line}\n"),
    )
    .unwrap();
    fs::write(folder.join("plans/set-two.txt"), plan).unwrap();
    Collection::open(folder)?.unwrap().check()
}

#[test]
fn contradictions_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let good = "set/two,two.csv,2,16,load,16,me";
    small(folder.path(), good, "0\n8\n").unwrap();
    for (line, plan, said) in [
        (good, "0\n4\n", "overlap"),
        (good, "0\n16\n", "needs 24 B, the table says 16"),
        (good, "0\n", "the plan has 1 offsets for 2 buffers"),
        (good, "0\nx\n", "line 2: `x` is no offset"),
        ("set/two,two.csv,3,16,load,16,me", "0\n8\n", "2 buffers, the table says 3"),
        ("set/two,two.csv,2,17,me,16,me", "0\n8\n", "does not go with"),
        ("set/two,two.csv,2,15,load,16,me", "0\n8\n", "does not go with"),
        ("set/two,none.csv,2,16,load,16,me", "0\n8\n", "none.csv"),
        ("set/two,two.csv,many,16,load,16,me", "0\n8\n", "instances.csv"),
        ("set/one,two.csv,2,16,load,16,me", "0\n8\n", "no plan is stored"),
    ] {
        let wrong = small(folder.path(), line, plan).unwrap_err().to_string();
        assert!(wrong.contains(said), "{line} {plan:?}: {wrong}");
    }
    fs::write(folder.path().join("plans/left.txt"), "0\n").unwrap();
    let wrong = small(folder.path(), good, "0\n8\n").unwrap_err().to_string();
    assert!(wrong.contains("2 plans are stored for 1 instances"), "{wrong}");
    assert!(Collection::open(&PathBuf::from("/nowhere")).unwrap().is_none());
}

#[test]
fn pinwheels_and_mosaics_pack_their_rectangle() {
    for cut in [pinwheel_packing, mosaic_packing] {
        let instance = cut(200, 4096, 1 << 20, 7);
        assert!((150..=200).contains(&instance.len()), "{}", instance.len());
        let area: u128 = instance.buffers().iter().map(|b| u128::from(b.size) * u128::from(b.steps())).sum();
        assert_eq!(area, 4096 << 20);
        assert_eq!(lower_bound(&instance).bytes, 1 << 20);
    }
}
