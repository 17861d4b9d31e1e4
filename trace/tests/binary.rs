//! The binary form of devices: nothing is lost on the way to text and back.

use allotment_event::{Action as Device, Encoder, Event as DeviceEvent, Header, Record as DeviceRecord};
use allotment_trace::{Limits, Place, Problem, Reader, Records, TraceError, Writer, write_binary};
use proptest::prelude::*;

fn to_text(bytes: &[u8]) -> Result<String, TraceError> {
    let mut records = Records::new(bytes, Limits::default())?;
    let mut writer = Writer::new(Vec::new());
    let header = records.header().text().to_owned();
    if !header.is_empty() {
        writer.comment(&header).unwrap();
    }
    for record in records.by_ref() {
        writer.record(&record?.1).unwrap();
    }
    Ok(String::from_utf8(writer.finish().unwrap()).unwrap())
}

fn to_binary(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_binary(&mut Records::new(text.as_bytes(), Limits::default()).unwrap(), &mut bytes).unwrap();
    bytes
}

#[test]
fn text_of_every_kind_survives() {
    let numbered = "# name=x events=3\na 5 100 8 @10 #net\n# |   0: main\n# |   1: start\na 6 24 0 @12\n\
                    # failed 4096 16 @12 #two%20words\n# lost 7\nf 5 @9\n";
    let binary = to_binary(numbered);
    assert!(Header::is_at(&binary) && binary.len() < numbered.len());
    assert_eq!(to_text(&binary).unwrap(), numbered);
    let addressed =
        "a 0 100 8 &20000010\na 1 24 4 &20000080\nr 0 120 &200000a0\nr 1 16\nf 0\na 2 8 8 &20000010\n";
    let binary = to_binary(addressed);
    assert_eq!(to_text(&binary).unwrap(), addressed);
    let devices: Vec<_> = allotment_event::Records::new(&binary).unwrap().1.map(Result::unwrap).collect();
    let moved = Device::Reallocate { id: 0x2000_0010, to: 0x2000_00a0, size: 120 };
    assert_eq!(devices[2], DeviceRecord::from(moved));
    assert_eq!(devices[4], DeviceRecord::from(Device::Free { id: 0x2000_00a0 }));
}

#[test]
fn a_device_that_lost_events_is_read() {
    let mut bytes = Header { lost: 9, ..Header::HERE }.encode().to_vec();
    let mut encoder = Encoder::new();
    let mut out = [0; 64];
    let actions = [
        Device::Free { id: 64 }, // its allocation was lost
        Device::Allocate { id: 128, size: 8, align: 8 },
        Device::Allocate { id: 128, size: 16, align: 8 }, // the free before was lost
        Device::Free { id: 128 },
    ];
    for action in actions {
        let size = encoder.encode(&DeviceRecord::Event(DeviceEvent::new(action)), &mut out).unwrap();
        bytes.extend(&out[..size]);
    }
    let text = to_text(&bytes).unwrap();
    assert_eq!(text, "# lost 9\nf 0 &40\na 1 8 8 &80\na 2 16 8 &80\nf 2\n");
    assert_eq!(to_binary(&text), bytes);
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 3);
    assert_eq!((reader.lost(), reader.left_out(), reader.live().count()), (9, 1, 1));
}

#[test]
fn damaged_binaries_name_the_record() {
    let binary = to_binary("a 5 100 8\na 6 24 0\n");
    let error = |bytes: &[u8]| match to_text(bytes) {
        Err(TraceError::At { place: Place::Record(record), problem: Problem::Binary(error) }) => {
            (record, error.to_string())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(error(&binary[..binary.len() - 1]), (2, "the trace ends inside a record".into()));
    assert_eq!(error(&binary[..10]).0, 0);
    let mut unknown = binary.clone();
    unknown[Header::SIZE] = 7;
    assert_eq!(error(&unknown).0, 1);
    let twice = to_binary("a 5 100 8\na 5 24 0\n");
    let error = Reader::new(twice.as_slice()).unwrap().nth(1).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "record 2: block 5 is allocated, but still live");
}

#[test]
fn addresses_are_for_all_or_for_none() {
    let text = "a 0 8 8 &40\na 1 8 8\n";
    let mut records = Records::new(text.as_bytes(), Limits::default()).unwrap();
    let error = write_binary(&mut records, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().starts_with("event 1: its block has no address"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 16..300)) {
        bytes[..Header::SIZE].copy_from_slice(&Header::HERE.encode());
        if let Ok(text) = to_text(&bytes) {
            // What could be read is the same after it went through text.
            prop_assert_eq!(to_text(&to_binary(&text)).unwrap(), text);
        }
        let _ = Reader::new(bytes.as_slice()).map(|reader| reader.count());
    }
}

/// A compressed trace that is cut off anywhere gives what stands in its whole blocks, and says where it ends.
#[test]
fn compressed_traces_that_are_cut_off_are_read_up_to_there() {
    use std::io::Write as _;
    let text: String = (0..60_000)
        .map(|n| format!("a {n} {} 8 @{}\n", 1 + n * 7919 % 5000, n * 31 % 1000 + 1000 * n))
        .collect();
    let zst = ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    for packed in [zst, gz.finish().unwrap()] {
        assert_eq!(Reader::new(&packed[..]).unwrap().map(Result::unwrap).count(), 60_000);
        for share in [3, 5, 7, 9] {
            let part = &packed[..packed.len() * share / 10];
            let strict: Vec<_> = Reader::new(part).unwrap().collect();
            let (last, before) = strict.split_last().unwrap();
            assert!(last.as_ref().unwrap_err().is_cut());
            // All but a block of 128 KiB at the most, each line of 20 to 30 bytes.
            assert!(before.len() > 60_000 * share / 10 - 8000, "{} of share {share}", before.len());
            let mut reader = Reader::new(part).unwrap().up_to_a_cut();
            assert_eq!(reader.by_ref().map(Result::unwrap).count(), before.len());
            let cut = reader.cut().unwrap().to_string();
            assert_eq!(
                cut,
                format!(
                    "line {}: the input cannot be read on: {}",
                    before.len() + 1,
                    "the compressed data end too early"
                )
            );
        }
    }
}
