//! `allotment endure`.

use serde_json::Value;

use crate::device::{BUFFER, Device};
use crate::{files, json, printed, refused};

/// The smallest arena of a whole recording.
fn needed(trace: &str, heap: &str) -> u64 {
    let report = json(["replay", trace, "--placement", heap, "--rounds", "0", "--json", "--time-limit", "500s"]);
    report["placements"][0]["smallest"].as_u64().unwrap()
}

/// From the first twentieth of the recordings of devices, the arena of 99.9 % serves the rest, and is little more than that needs. More
/// devices with `ALLOTMENT_DEVICES`, of whom one in twenty may need more; `ALLOTMENT_CONNECTIONS` says how often each connects.
#[test]
fn the_rest_of_a_recording_is_served() {
    let number = |name, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let devices = number("ALLOTMENT_DEVICES", 2);
    let connections = number("ALLOTMENT_CONNECTIONS", 1500);
    let (_folder, [first, whole]) = files(["first.trace", "whole.trace"]);
    let mut served = 0;
    let mut worst = 0.0_f64;
    for seed in 1..=devices {
        let device = Device::record(seed, connections as usize);
        std::fs::write(&first, device.first(5)).unwrap();
        std::fs::write(&whole, device.text()).unwrap();
        let rest = (connections * 95 / 100).to_string();
        let forecast = json(["endure", &first, "--keep", "0", "--per-year", &rest, "--risk", "0.001", "--json"]);
        let (arena, needed) = (forecast["arena"].as_u64().unwrap(), needed(&whole, "micro-tlsf"));
        let more = arena as f64 / needed as f64;
        println!(
            "device {seed}: peak {}, needed {needed} ({:.3}), forecast {arena} ({more:.3} of it, {}, {}), reached {}",
            device.peak,
            needed as f64 / device.peak as f64,
            forecast["method"],
            forecast["found_by"],
            forecast["reached"],
        );
        assert_eq!(forecast["reached"], true, "{forecast}");
        served += u64::from(arena >= needed);
        worst = worst.max(more);
    }
    println!("{served} of {devices} served, at most {:.1} % more than needed", (worst - 1.0) * 100.0);
    assert!(served * 20 >= devices * 19, "{served} of {devices}");
    assert!(worst <= 1.08, "{worst}");
}
