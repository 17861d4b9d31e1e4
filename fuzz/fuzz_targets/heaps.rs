#![no_main]
//! Operations on heaps of every placement and level.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    allotment_fuzz::heaps::operate(bytes);
});
