//! The binary form of traces: what is written is read back, and invalid bytes are refused with a reason.

use allotment_event::{Action, DecodeError, Decoder, EncodeError, Encoder, Event, Header, Record, Records};
use proptest::prelude::*;

/// A [`Record`] that owns its text.
#[derive(Clone, Debug)]
enum Owned {
    Event(Event),
    Lost(u64),
    Name(u32, String),
    Note(String),
}

impl Owned {
    fn record(&self) -> Record<'_> {
        match self {
            &Self::Event(event) => Record::Event(event),
            &Self::Lost(events) => Record::Lost { events },
            Self::Name(tag, name) => Record::Name { tag: *tag, name },
            Self::Note(text) => Record::Note { text },
        }
    }
}

/// Numbers of all lengths, including those next to the length borders of a varint.
fn number(max: u64) -> impl Strategy<Value = u64> {
    let near = (0..64u32, -1..=1i64).prop_map(|(bit, off)| (1u64 << bit).wrapping_add_signed(off));
    prop_oneof![0..200u64, near, any::<u64>()].prop_map(move |number| number & max)
}

fn align() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), (0..64u32).prop_map(|log| 1 << log)]
}

fn action(max: u64) -> impl Strategy<Value = Action> {
    prop_oneof![
        (number(max), number(max), align()).prop_map(|(id, size, align)| Action::Allocate {
            id,
            size,
            align
        }),
        (number(max), number(max), number(max)).prop_map(|(id, to, size)| Action::Reallocate {
            id,
            to,
            size
        }),
        (number(max), number(max)).prop_map(|(id, size)| Action::Reallocate { id, to: id, size }),
        number(max).prop_map(|id| Action::Free { id }),
        (number(max), align()).prop_map(|(size, align)| Action::Fail { size, align }),
    ]
}

fn record(max: u64) -> impl Strategy<Value = Owned> {
    let event = (action(max), proptest::option::of(number(u64::MAX)), prop_oneof![0..3u32, any::<u32>()]);
    prop_oneof![
        8 => event.prop_map(|(action, time, tag)| Owned::Event(Event { action, time, tag })),
        1 => number(u64::MAX).prop_map(Owned::Lost),
        1 => (1..=u32::MAX, any::<String>()).prop_map(|(tag, name)| Owned::Name(tag, name)),
        1 => any::<String>().prop_map(Owned::Note),
    ]
}

/// A header, and records that match it.
fn trace() -> impl Strategy<Value = (Header, Vec<Owned>)> {
    let header = (any::<bool>(), prop_oneof![Just(2u8), Just(4), Just(8)], any::<u64>())
        .prop_map(|(addresses, width, lost)| Header { addresses, width, lost });
    header.prop_flat_map(|header| {
        let max = u64::MAX >> (64 - 8 * u32::from(header.width));
        (Just(header), proptest::collection::vec(record(max), 0..60))
    })
}

/// Encodes a trace, and returns the offset of each record.
fn encode(header: &Header, records: &[Owned]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = header.encode().to_vec();
    let mut starts = Vec::new();
    let mut encoder = Encoder::new();
    let mut out = vec![0; 4096];
    for record in records {
        starts.push(bytes.len());
        let size = encoder.encode(&record.record(), &mut out).unwrap();
        if let Owned::Event(_) = record {
            assert!(size <= Encoder::MAX_EVENT);
        }
        bytes.extend(&out[..size]);
    }
    (bytes, starts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_again((header, records) in trace()) {
        let (bytes, starts) = encode(&header, &records);
        let (read, mut again) = Records::new(&bytes).unwrap();
        prop_assert_eq!(read, header);
        for (record, start) in records.iter().zip(starts) {
            prop_assert_eq!(again.offset(), start);
            prop_assert_eq!(again.next(), Some(Ok(record.record())));
        }
        prop_assert_eq!(again.next(), None);
    }

    /// A stream is read byte by byte; an incomplete record is always reported as incomplete.
    #[test]
    fn streams_may_stop_anywhere((header, records) in trace()) {
        let (bytes, mut starts) = encode(&header, &records);
        starts.push(bytes.len());
        for size in 0..Header::SIZE {
            prop_assert_eq!(Header::decode(&bytes[..size]), Err(DecodeError::Truncated));
        }
        let mut decoder = Decoder::new(&header);
        for (record, ends) in records.iter().zip(starts.windows(2)) {
            for end in ends[0]..ends[1] {
                let part = &bytes[ends[0]..end];
                prop_assert_eq!(decoder.decode(part), Err(DecodeError::Truncated));
            }
            let whole = &bytes[ends[0]..];
            prop_assert_eq!(decoder.decode(whole), Ok((record.record(), ends[1] - ends[0])));
        }
    }

    /// A record for which there is no room does not change the encoder.
    #[test]
    fn what_has_no_room_is_left_out((header, records) in trace(), room in 0..24usize) {
        let mut bytes = header.encode().to_vec();
        let mut encoder = Encoder::new();
        let mut out = vec![0; room];
        let mut kept = Vec::new();
        for record in &records {
            match encoder.encode(&record.record(), &mut out) {
                Ok(size) => {
                    bytes.extend(&out[..size]);
                    kept.push(record.record());
                }
                Err(error) => prop_assert_eq!(error, EncodeError::NoRoom),
            }
        }
        let read: Result<Vec<_>, _> = Records::new(&bytes).unwrap().1.collect();
        prop_assert_eq!(read, Ok(kept));
    }

    /// Any bytes are either a trace or an error; what is read can be written and read again.
    #[test]
    fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 16..200), width in 1..4u32) {
        bytes[..Header::SIZE].copy_from_slice(&Header { width: 1 << width, ..Header::HERE }.encode());
        let (header, records) = Records::new(&bytes).unwrap();
        let mut encoder = Encoder::new();
        let mut again = header.encode().to_vec();
        let mut read = Vec::new();
        for record in records.map_while(Result::ok) {
            let mut out = [0; 256];
            let size = encoder.encode(&record, &mut out).unwrap();
            again.extend(&out[..size]);
            read.push(record);
        }
        let twice: Result<Vec<_>, _> = Records::new(&again).unwrap().1.collect();
        prop_assert_eq!(twice, Ok(read));
    }
}

/// The layout is the documented one, because other programs depend on it.
#[test]
fn the_bytes_are_as_documented() {
    let header = Header { addresses: true, width: 4, lost: 0x0102 };
    let mut bytes = vec![0xA1, 0x41, 0x4C, 0x54, 1, 1, 4, 0, 2, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(header.encode().as_slice(), bytes);
    let event = |action, time, tag| Record::Event(Event { action, time, tag });
    let records: [(Record, &[u8]); 7] = [
        (Record::Name { tag: 1, name: "net" }, &[5, 1, 3, b'n', b'e', b't']),
        (
            event(Action::Allocate { id: 64, size: 300, align: 8 }, Some(3), 1),
            &[4 << 5 | 3 << 3, 6, 1, 0x80, 1, 0xAC, 2],
        ),
        (event(Action::Allocate { id: 65, size: 1, align: 64 }, Some(2), 1), &[7 << 5 | 1 << 3, 1, 2, 1, 6]),
        (event(Action::Reallocate { id: 64, to: 62, size: 9 }, None, 1), &[1 | 1 << 5, 1, 3, 9]),
        (event(Action::Free { id: 62 }, None, 0), &[2 | 1 << 4, 0, 0]),
        (event(Action::Fail { size: 5, align: 0 }, None, 0), &[3, 5]),
        (Record::Lost { events: 7 }, &[4, 7]),
    ];
    let mut encoder = Encoder::new();
    for (record, expected) in records {
        let mut out = [0; Encoder::MAX_EVENT];
        let size = encoder.encode(&record, &mut out).unwrap();
        assert_eq!(&out[..size], expected, "{record:?}");
        bytes.extend(expected);
    }
    let (read, again) = Records::new(&bytes).unwrap();
    assert_eq!(read, header);
    assert_eq!(again.collect::<Result<Vec<_>, _>>().unwrap(), records.map(|(record, _)| record));
}

#[test]
fn errors_say_why() {
    let first = |header: Header, bytes: &[u8]| {
        let trace = [&header.encode(), bytes].concat();
        let mut records = Records::new(&trace).unwrap().1;
        let error = records.next().unwrap().unwrap_err();
        assert_eq!((records.offset(), records.next()), (Header::SIZE, None));
        error
    };
    let (wide, narrow) = (Header { width: 8, ..Header::HERE }, Header { width: 2, ..Header::HERE });
    assert_eq!(first(wide, &[7]), DecodeError::UnknownKind(7));
    assert_eq!(first(wide, &[2 | 1 << 5, 0]), DecodeError::UnknownKind(0x22));
    assert_eq!(first(wide, &[1 | 1 << 6, 0, 0]), DecodeError::UnknownKind(0x41));
    assert_eq!(first(wide, &[4 | 1 << 3, 0]), DecodeError::UnknownKind(12));
    assert_eq!(first(wide, &[4, 0xFF]), DecodeError::Truncated);
    assert_eq!(first(wide, &[[4].as_slice(), &[0xFF; 9], &[2]].concat()), DecodeError::Overflow);
    assert_eq!(first(wide, &[[4].as_slice(), &[0x80; 10], &[1]].concat()), DecodeError::Overflow);
    assert_eq!(first(narrow, &[0, 2, 0x80, 0x80, 4]), DecodeError::Overflow);
    assert_eq!(first(narrow, &[2, 1]), DecodeError::Overflow, "an id below zero");
    assert_eq!(first(wide, &[7 << 5, 0, 1, 64]), DecodeError::Align(64));
    assert_eq!(first(wide, &[5, 0, 0]), DecodeError::Tag);
    assert_eq!(first(wide, &[5, 1, 1, 0xFF]), DecodeError::Text);
    assert_eq!(first(wide, &[6, 5, b'a']), DecodeError::Truncated);
    assert_eq!(first(wide, &[6, 0x81, 0x80, 1]), DecodeError::Overflow, "a text of 16,385 bytes");
    assert_eq!(first(wide, &[6, 0x80, 0x80, 1]), DecodeError::Truncated, "a text of 16,384 bytes");

    let mut header = wide.encode();
    assert_eq!(Header::decode(b"a 0 1 8\nf 0\n"), Err(DecodeError::NoTrace));
    assert_eq!(Header::decode(b"a"), Err(DecodeError::NoTrace));
    header[4] = 2;
    assert_eq!(Header::decode(&header), Err(DecodeError::Version(2)));
    header[4] = 1;
    for (at, value) in [(5, 2), (6, 3), (7, 1)] {
        let mut header = header;
        header[at] = value;
        assert_eq!(Header::decode(&header), Err(DecodeError::Header));
    }

    let mut encoder = Encoder::new();
    let mut out = [0; 64];
    let odd = Action::Allocate { id: 1, size: 1, align: 3 };
    assert_eq!(encoder.encode(&odd.into(), &mut out), Err(EncodeError::Align(3)));
    assert_eq!(encoder.encode(&Record::Name { tag: 0, name: "" }, &mut out), Err(EncodeError::NoTag));
    let (text, mut out) = ("x".repeat(Encoder::MAX_TEXT), vec![0; Encoder::MAX_RECORD + 1]);
    assert!(encoder.encode(&Record::Note { text: &text }, &mut out).is_ok());
    let longer = Record::Note { text: &(text + "x") };
    assert_eq!(encoder.encode(&longer, &mut out), Err(EncodeError::TextTooLong));
    assert!(DecodeError::Version(9).to_string().contains('9'));
}

/// The events of real programs take about as many bytes as documented.
#[test]
fn records_are_compact() {
    let mut encoder = Encoder::new();
    let mut out = [0; Encoder::MAX_EVENT];
    let mut address = 0x2000_0000u64;
    let mut total = 0;
    for n in 0..1000u64 {
        address = 0x2000_0000 | address.wrapping_mul(0x5DEE_CE66).wrapping_add(n) & 0x3FF8;
        let allocate = Action::Allocate { id: address, size: 8 + n % 500, align: 8 };
        for action in [allocate, Action::Free { id: address }] {
            total += encoder.encode(&action.into(), &mut out).unwrap();
        }
    }
    assert!(total <= 9000, "{total} bytes for 2000 events");
}
