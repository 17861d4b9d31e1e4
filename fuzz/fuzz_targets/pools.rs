#![no_main]
//! Operations on pools over a simulated device.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    allotment_fuzz::pools::operate(bytes);
});
