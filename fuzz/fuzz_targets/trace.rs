#![no_main]
//! Allocation traces.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(instance) = allotment_planner::read::read_trace(bytes) {
        allotment_fuzz::planned(&instance);
    }
});
