//! Networks of TensorFlow Lite Micro (buffer lifetimes derived from its models; Apache-2.0).

use crate::oracle;
use allotment::plan::{Buffer, affordable_rules, try_plan};

/// Parses `id,lower,upper,size` with a header.
fn read(text: &str) -> Vec<Buffer<'static>> {
    let number = |field: Option<&str>| field.unwrap().trim().parse::<u64>().unwrap();
    let buffer = |line: &str| {
        let mut fields = line.split(',').skip(1);
        let (start, end) = (number(fields.next()), number(fields.next()));
        Buffer::new(number(fields.next()), start..end).align(16)
    };
    text.lines().skip(1).map(buffer).collect()
}

/// Plans like a `const` would, and returns the peak and the lower bound.
fn planned<const N: usize>(text: &str) -> (u64, u64) {
    let buffers: [Buffer; N] = read(text).try_into().unwrap();
    let plan = try_plan(&buffers, affordable_rules(N)).unwrap();
    assert_eq!(oracle::paint(&buffers, plan.offsets()), Ok(plan.peak()));
    (plan.peak(), plan.lower_bound())
}

macro_rules! data {
    ($name:literal) => {
        include_str!(concat!("../data/plan/", $name, ".sg0.csv"))
    };
}

/// The smallest known peaks, which all equal the lower bound.
#[test]
fn networks_are_planned_optimally() {
    assert_eq!(planned::<25>(data!("audio_preprocessor_int8")), (2096, 2096));
    assert_eq!(planned::<4>(data!("hello_world_int8")), (32, 32));
    assert_eq!(planned::<23>(data!("keyword_scrambled_8bit")), (5408, 5408));
    assert_eq!(planned::<5>(data!("micro_speech_quantized")), (5968, 5968));
    assert_eq!(planned::<32>(data!("person_detect")), (55_296, 55_296));
    assert_eq!(planned::<12>(data!("trained_lstm_int8")), (1504, 1504));
}
