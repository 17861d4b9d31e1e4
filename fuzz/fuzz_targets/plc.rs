#![no_main]
//! idealloc's records.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(instance) = allotment_planner::read::read_plc(bytes) {
        allotment_fuzz::planned(&instance);
    }
});
