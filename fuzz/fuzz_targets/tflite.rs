#![no_main]
//! TFLite models, and plans written into them.

use allotment_planner::import::tflite::{read_offline_plan, read_tflite, write_offline_plan};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(graph) = read_tflite(bytes) {
        let _ = read_offline_plan(bytes, &graph);
        allotment_fuzz::lowered(&graph);
        let offsets: Vec<i32> = (0..graph.tensors.len() as i32).map(|n| 16 * n - 1).collect();
        if let Ok(planned) = write_offline_plan(bytes, &offsets) {
            // Where a tensor would not fit 2 GiB, the reader says so.
            if let Ok(read) = read_offline_plan(&planned, &graph) {
                assert_eq!(read.as_deref(), Some(&offsets[..]));
            }
        }
    }
});
