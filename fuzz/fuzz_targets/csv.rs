#![no_main]
//! Buffers as CSV.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(instance) = allotment_planner::read::read_csv(bytes) {
        allotment_fuzz::planned(&instance);
    }
});
