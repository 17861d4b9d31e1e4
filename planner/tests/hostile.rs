//! Damaged inputs for every reader: a typed error, or an instance that can be planned. `fuzz/` looks deeper.

mod common;

use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_planner::explain::explain;
use allotment_planner::graph::{Graph, Lowering};
use allotment_planner::import::onnx::read_onnx;
use allotment_planner::import::tflite::{read_offline_plan, read_tflite, write_offline_plan};
use allotment_planner::model::Instance;
use allotment_planner::read::{read_csv, read_instance, read_trace};
use allotment_planner::schedule::Schedule;
use allotment_planner::solve::{Options, solve_tiers};
use allotment_planner::transform::in_place;
use allotment_planner::validate::validate;
use allotment_planner::write::{self, Planned};
use common::data;
use proptest::prelude::*;

/// A change to bytes: a place, and what happens there.
#[derive(Clone, Debug)]
enum Change {
    Byte(u8),
    /// One of [`NUMBERS`] instead of the digits that stand there.
    Number(usize),
    Insert(Vec<u8>),
    Delete(u8),
    /// So many bytes from elsewhere.
    Copy(u16, u8),
    Truncate,
}

/// Numbers at the borders of what readers take.
const NUMBERS: [&str; 10] = [
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "4294967296",
    "4611686018427387904",
];

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => any::<u8>().prop_map(Change::Byte),
        6 => (0..NUMBERS.len()).prop_map(Change::Number),
        1 => proptest::collection::vec(any::<u8>(), 1..6).prop_map(Change::Insert),
        1 => any::<u8>().prop_map(Change::Delete),
        2 => (any::<u16>(), any::<u8>()).prop_map(|(from, count)| Change::Copy(from, count)),
        1 => Just(Change::Truncate),
    ]
}

fn changes() -> impl Strategy<Value = Vec<(u32, Change)>> {
    proptest::collection::vec((any::<u32>(), change()), 1..5)
}

fn damage(mut bytes: Vec<u8>, changes: &[(u32, Change)]) -> Vec<u8> {
    for (at, change) in changes {
        if bytes.is_empty() {
            break;
        }
        let at = *at as usize % bytes.len();
        match change {
            Change::Byte(byte) => bytes[at] = *byte,
            Change::Number(n) => {
                let digit = |&&byte: &&u8| byte.is_ascii_digit();
                let start = at + bytes[at..].iter().take_while(|byte| !digit(byte)).count();
                let end = start + bytes[start..].iter().take_while(digit).count();
                bytes.splice(start..end, NUMBERS[*n].bytes());
            }
            Change::Insert(new) => drop(bytes.splice(at..at, new.iter().copied())),
            Change::Delete(count) => drop(bytes.drain(at..bytes.len().min(at + usize::from(*count)))),
            Change::Copy(from, count) => {
                let from = usize::from(*from) % bytes.len();
                let new = bytes[from..bytes.len().min(from + usize::from(*count))].to_vec();
                bytes.splice(at..at, new);
            }
            Change::Truncate => bytes.truncate(at),
        }
    }
    bytes
}

/// Plans, validates, explains and writes what a reader let through.
fn planned(instance: &Instance) {
    let options = Options { time_limit: Duration::ZERO, threads: 1, ..Options::default() };
    for tier in solve_tiers(instance, &options, &Default::default(), &options.deadline(), None) {
        let (instance, solution) = (&tier.instance, &tier.solution);
        validate(instance, &solution.offsets, None).unwrap();
        let _ = explain(instance, solution, Some(solution.peak / 2), &Deadline::never());
        let schedule = Schedule::of(instance.clone(), solution.clone());
        let planned = Planned::new("hostile", &schedule);
        let _ = (
            write::json(planned),
            write::rust_source(planned, &Default::default(), &Default::default()),
            write::c_header(planned, &Default::default(), &Default::default()),
            write::svg(planned),
        );
        let again = read_csv(write::csv(planned).as_bytes()).unwrap();
        assert_eq!(again.len(), instance.len());
    }
}

fn lowered(graph: &Graph) {
    let lowering = Lowering { align: 16, inputs: true, weights: true };
    if let Ok(instance) = graph.instance(lowering) {
        planned(&instance);
    }
    if let Ok(shared) = in_place(graph, lowering) {
        planned(&shared.instance);
    }
}

const CSV: &str = "id,lower,upper,size,alignment,hint,gaps,fixed,alias,tier\n\
                   a,0,9,8,4,16,2-3 5-7@0:4,,b,1\nb,-3,4,16,,,,32,,1\nc,1,5,7,2,,,,,0\nd,2,8,9,1,3,4-5,,c,0\n";
const TRACE: &str = "# a comment\na 1 8 16\na 2 24 0 @7 #tag\nr 1 32\nf 2\nf 1\na 1 4 4\na 9 100 64\nf 9\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_csv(changes in changes()) {
        if let Ok(instance) = read_csv(&damage(CSV.into(), &changes)) {
            planned(&instance);
        }
    }

    #[test]
    fn damaged_traces(changes in changes()) {
        if let Ok(instance) = read_trace(&damage(TRACE.into(), &changes)) {
            planned(&instance);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn damaged_onnx_models(changes in changes(), rich in any::<bool>()) {
        let bytes =
            if rich { common::onnx::rich() } else { std::fs::read(data("onnx/kws_dscnn.onnx")).unwrap() };
        if let Ok(graph) = read_onnx(&damage(bytes, &changes), &Default::default()) {
            lowered(&graph);
        }
    }

    #[test]
    fn damaged_tflite_models(changes in changes(), parts in any::<bool>()) {
        let sound = if parts { common::parts::streaming() } else { common::tflite(&[3], false) };
        let bytes = damage(sound, &changes);
        if let Ok(graph) = read_tflite(&bytes) {
            lowered(&graph);
            let _ = read_offline_plan(&bytes, &graph);
            let offsets: Vec<i32> = (0..graph.tensors.len() as i32).map(|n| 16 * n - 1).collect();
            if let Ok(planned) = write_offline_plan(&bytes, &offsets) {
                if let Ok(read) = read_offline_plan(&planned, &graph) {
                    prop_assert_eq!(read, Some(offsets));
                }
            }
        }
    }

    /// Damage below and above the compression.
    #[test]
    fn damaged_compressed_files(changes in changes(), inside in any::<bool>()) {
        use std::io::Write as _;
        let plain = if inside { damage(CSV.into(), &changes) } else { CSV.into() };
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&plain).unwrap();
        let gz = encoder.finish().unwrap();
        let zst = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
        for (ending, bytes) in [("gz", gz), ("zst", zst)] {
            let bytes = if inside { bytes } else { damage(bytes, &changes) };
            let file = tempfile::Builder::new().suffix(&format!(".csv.{ending}")).tempfile().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            if let Ok(instance) = read_instance(file.path()) {
                planned(&instance);
            }
        }
    }
}

/// The undamaged inputs are read: what is damaged above is not refused for another reason.
#[test]
fn the_inputs_are_sound() {
    assert_eq!(read_csv(CSV.as_bytes()).unwrap().len(), 4);
    assert_eq!(read_trace(TRACE.as_bytes()).unwrap().len(), 5);
    assert!(read_tflite(&common::tflite(&[3], false)).is_ok());
    assert!(read_tflite(&common::parts::streaming()).is_ok());
    assert!(read_onnx(&common::onnx::rich(), &Default::default()).is_ok());
}
