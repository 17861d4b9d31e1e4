#![no_main]
//! ONNX models.

use std::collections::BTreeMap;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(graph) = allotment_planner::import::onnx::read_onnx(bytes, &BTreeMap::new()) {
        allotment_fuzz::lowered(&graph);
    }
});
