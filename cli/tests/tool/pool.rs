//! Traces that pools of a device have written.

use std::fs::File;

use allotment::pool::{DevicePool, PoolOptions};
use allotment::sim::DeviceMemory;

use crate::{files, json, printed};

/// What three streams do in ten steps is drawn, replayed and planned.
#[test]
fn a_pools_trace_is_drawn_replayed_and_planned() {
    let (_folder, [trace, page, text]) = files(["pool.trace", "pool.html", "pool.txt"]);
    let device: DeviceMemory = DeviceMemory::new(64 << 20);
    let streams = [device.stream(), device.stream(), device.stream()];
    let pool = DevicePool::new(device, PoolOptions::new()).unwrap();
    pool.start_trace(File::create(&trace).unwrap()).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    let mut live = vec![];
    for _ in 0..10 {
        for stream in &streams {
            for _ in 0..20 {
                live.push(pool.allocate(random.usize(1..40_000), stream).unwrap());
            }
        }
        random.shuffle(&mut live);
        live.truncate(10);
        pool.step();
    }
    drop(live);
    pool.finish_trace().unwrap();
    let stats = pool.stats();

    let report = json(["view", &trace, "-o", &page, "--json"]);
    let totals = &report["totals"];
    assert_eq!(totals["peak"], stats.requested.peak);
    assert_eq!((&totals["blocks"], &totals["requested"]), (&600.into(), &stats.requested.total.into()));
    assert!(std::fs::read_to_string(&page).unwrap().contains("stream 2"), "streams are the tags");
    let replayed = json(["replay", &trace, "--placement", "tlsf", "--json"]);
    assert_eq!(replayed["peak"], stats.requested.peak);
    let planned = json(["plan", &trace, "--json", "--quiet", "--time-limit", "1s"]);
    assert!(planned[0]["peak"].as_u64() >= Some(stats.requested.peak), "{planned}");
    printed(["convert", &trace, &text]);
    let text = std::fs::read_to_string(&text).unwrap();
    assert!(text.contains("# | step 9"), "{text}");
}
