//! The text form: what is read, what is refused, and in how much memory.

use std::io::{self, Read, Write};
use std::sync::Arc;

use allotment_trace::{
    Action, Block, Event, Failure, Header, Kind, Limits, Place, Problem, Program, Reader, Record, Records,
    TraceError, Writer,
};
use proptest::prelude::*;

fn read(text: &[u8]) -> Result<Vec<Event>, TraceError> {
    Reader::new(text)?.map(|checked| checked.map(|checked| checked.event)).collect()
}

fn refused(text: &str) -> (Place, Problem) {
    match read(text.as_bytes()) {
        Err(TraceError::At { place, problem }) => (place, problem),
        other => panic!("{text:?}: {other:?}"),
    }
}

#[test]
fn events_are_read_with_what_the_block_was_before() {
    let text = "# name=x events=5 tail=4\n\na 1 100 8\n# a comment\n  a 2 24 0 #net%20in &1f0 @7\r\nr 1 200\nf 2 @7\na 2 1 1\n";
    let mut reader = Reader::new(text.as_bytes()).unwrap();
    assert_eq!(reader.header().get("name"), Some("x"));
    assert_eq!((reader.header().events(), reader.header().tail()), (Some(5), Some(4)));
    let events: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(events[1].place, Place::Line(5));
    assert_eq!(events[1].event.time, Some(7));
    assert_eq!(events[1].event.tag.as_deref(), Some("net in"));
    assert_eq!(events[1].event.address, Some(0x1f0));
    assert_eq!(events[1].before, None);
    assert_eq!(events[2].before, Some(Block { size: 100, align: 8 }));
    assert_eq!(events[3].before, Some(Block { size: 24, align: 0 }));
    let live: Vec<_> = events.iter().map(|event| (event.live_bytes, event.live_blocks)).collect();
    assert_eq!(live, [(100, 1), (124, 2), (224, 2), (200, 1), (201, 2)]);
    let mut left: Vec<_> = reader.live().map(|(id, block)| (id, block.size)).collect();
    left.sort_unstable();
    assert_eq!(left, [(1, 200), (2, 1)]);
}

/// Some editors put the mark of UTF-8 in front of a text.
#[test]
fn a_mark_in_front_is_no_event() {
    for text in ["# name=x\na 1 100 8\n", "a 1 100 8\n"] {
        let marked = format!("\u{feff}{text}");
        let mut reader = Reader::new(marked.as_bytes()).unwrap();
        assert_eq!(reader.by_ref().map(Result::unwrap).count(), 1, "{text}");
        assert_eq!(reader.header().get("name"), text.starts_with('#').then_some("x"));
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let at = |text, line| {
        let (place, problem) = refused(text);
        assert_eq!(place, Place::Line(line), "{text:?}: {problem}");
        problem
    };
    assert!(matches!(at("a 1 8 8\na 1 8 8\n", 2), Problem::Live(1)));
    assert!(matches!(at("f 1\n", 1), Problem::NotLive { id: 1, what: "freed" }));
    assert!(matches!(at("# c\n\nr 1 9\n", 3), Problem::NotLive { what: "resized", .. }));
    assert!(matches!(at("a 1 8 8\nf 1\nf 1\n", 3), Problem::NotLive { .. }));
    assert!(matches!(at("x 1\n", 1), Problem::Unknown(_)));
    assert!(matches!(at("a 1 8\n", 1), Problem::Missing("align")));
    assert!(matches!(at("a 1 8 @5\n", 1), Problem::Missing("align")));
    assert!(matches!(at("a 1 8 8\nr 1\n", 2), Problem::Missing("size")));
    assert!(matches!(at("a\n", 1), Problem::Missing("id")));
    assert!(matches!(at("a 1 -8 8\n", 1), Problem::Number { name: "size", .. }));
    assert!(matches!(at("a 1 18446744073709551616 8\n", 1), Problem::Number { name: "size", .. }));
    assert!(matches!(at("a 1 8 8 @x\n", 1), Problem::Number { name: "time", .. }));
    assert!(matches!(at("a 1 8 3\n", 1), Problem::Alignment(3)));
    assert!(matches!(at("a 1 9223372036854775807 2\n", 1), Problem::Size { .. }));
    assert!(matches!(at("a 1 1 9223372036854775808\n", 1), Problem::Size { .. }));
    assert!(matches!(at("a 1 8 8\nr 1 18446744073709551615\n", 2), Problem::Size { .. }));
    assert!(matches!(at("a 1 9223372036854775807 1\na 2 1 1\n", 2), Problem::Total));
    assert!(matches!(at("a 1 8 8 9\n", 1), Problem::Extra(_)));
    assert!(matches!(at("a 1 8 8 @1 @2\n", 1), Problem::Extra(_)));
    assert!(matches!(at("a 1 8 8 #a #b\n", 1), Problem::Extra(_)));
    assert!(matches!(at("a 1 8 8 #%ff\n", 1), Problem::Extra(_)));
    assert!(matches!(at("a 1 8 8 &xyz\n", 1), Problem::Number { name: "address", .. }));
    assert!(matches!(at("# failed 8 8 x\n", 1), Problem::Extra(_)));
    assert!(matches!(at("a 1 8 8 @9\nf 1 @8\n", 2), Problem::Time { before: 9, after: 8 }));
    let text = read(b"a 1 \xff 8").unwrap_err();
    assert_eq!(text.to_string(), "line 1: no text: byte 4 of the line is not UTF-8: save the file as UTF-8");
}

#[test]
fn a_trace_that_was_cut_off_is_noticed() {
    let (place, problem) = refused("# events=3\na 1 8 8\nf 1\n");
    assert!(matches!((place, problem), (Place::End(2), Problem::Count { said: 3, found: 2 })));
    let (_, problem) = refused("# events=1\na 1 8 8\nf 1\n");
    assert!(matches!(problem, Problem::Count { said: 1, found: 2 }));
    assert_eq!(read(b"# events=1\na 1 8 8").unwrap().len(), 1);
    assert_eq!(read(b"").unwrap(), []);
}

/// A text that is cut off anywhere gives the events of its whole lines, whether it has a header or not.
#[test]
fn a_text_is_used_up_to_its_cut() {
    let events = "a 10 100 8 @5\na 11 24 16\nf 10 @7\na 1 5 8 #tag\nr 11 250\nf 11\nf 1\n";
    let count = events.lines().count();
    for header in ["", &format!("# events={count}\n")] {
        let text = format!("{header}{events}");
        let all = read(text.as_bytes()).unwrap();
        for end in header.len()..text.len() {
            let part = &text.as_bytes()[..end];
            let whole = part[header.len()..].iter().filter(|&&byte| byte == b'\n').count();
            let mut reader = Reader::new(part).unwrap().up_to_a_cut();
            let found: Vec<_> = reader.by_ref().map_while(Result::ok).map(|checked| checked.event).collect();
            let line = String::from_utf8_lossy(part);
            assert!(found.len() == whole || found.len() == whole + 1, "{line}");
            assert_eq!(found[..whole], all[..whole], "{line}");
            if !header.is_empty() && whole > 0 {
                // A last line that lacks only its end is whole where the header says so.
                let missing = usize::from(end < text.len() - 1);
                assert_eq!(found.len(), if missing == 0 { count } else { whole }, "{line}");
                assert_eq!(reader.cut().is_some(), missing == 1, "{line}");
            }
        }
    }
    // The first line is no trace, cut off or not.
    assert!(Reader::new(&b"hello"[..]).unwrap().up_to_a_cut().next().unwrap().is_err());
}

#[test]
fn the_recorder_s_own_frees_are_told() {
    let tail = |header: &str| Header::new(header).tail();
    assert_eq!(tail("name=x events=10 tail=8"), Some(8));
    assert_eq!(tail("name=x events=10 tail=3 tail_bytes=77"), Some(7));
    assert_eq!(
        (tail("events=10 tail=11 tail_bytes=1"), tail("events=10"), tail("tail=x")),
        (None, None, None)
    );
}

#[test]
fn limits_hold() {
    let limits = Limits { line: 16, live: 2, tags: 1 };
    let limited = |text: &'static str| {
        let reader = Reader::with_limits(text.as_bytes(), limits)?;
        reader.collect::<Result<Vec<_>, _>>()
    };
    let problem = |text| match limited(text) {
        Err(TraceError::At { place: Place::Line(line), problem }) => (line, problem),
        other => panic!("{text:?}: {other:?}"),
    };
    assert!(matches!(problem("a 1 8 8\n# a longer comment\n"), (2, Problem::Long(16))));
    assert!(matches!(problem("a 1 8 8\na 2 8 8\na 3 8 8\n"), (3, Problem::Crowded(2))));
    assert!(matches!(problem("a 1 8 8 #x\nf 1 #x\na 1 8 8 #y\n"), (3, Problem::Tags(1))));
    assert_eq!(limited("a 1234567 8 0 #x\nf 1234567 #x").unwrap().len(), 2);
}

/// As many bytes as asked for, and how many were taken.
struct Endless {
    taken: u64,
    most: u64,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min((self.most - self.taken) as usize);
        buffer[..count].fill(b'1');
        self.taken += count as u64;
        Ok(count)
    }
}

#[test]
fn a_line_of_a_thousand_million_bytes_is_not_kept() {
    let mut endless = Endless { taken: 0, most: 1_000_000_000 };
    let error = Reader::new(b"a 1 ".as_slice().chain(&mut endless)).unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "line 1: the line is longer than 65536 bytes");
    assert!(endless.taken < 1 << 20, "{} bytes were taken", endless.taken);
}

#[test]
fn compressed_traces_are_read_as_they_are() {
    let text = b"# events=2\na 1 8 8\nf 1\n";
    let gz = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    };
    let zst =
        |text: &[u8]| ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest);
    assert_eq!(read(&gz(text)).unwrap().len(), 2);
    assert_eq!(read(&zst(text)).unwrap().len(), 2);
    // Several frames one after the other are one text.
    for pack in [&gz as &dyn Fn(&[u8]) -> Vec<u8>, &zst] {
        let halves = [pack(&text[..16]), pack(&text[16..])].concat();
        assert_eq!(read(&halves).unwrap().len(), 2);
        // Cut off or changed, they are refused.
        let long: Vec<u8> =
            (0..2000).flat_map(|n| format!("a {n} {} 8\n", n * 7919 % 1000).into_bytes()).collect();
        let packed = pack(&long);
        let cut = read(&packed[..packed.len() / 2]).unwrap_err();
        assert!(cut.to_string().contains("cannot be read on"), "{cut}");
        let mut damaged = packed.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert!(read(&damaged).is_err());
    }
}

#[test]
fn programs_use_slots_again() {
    let text = "a 10 0 0\na 11 100 64\nr 10 50\nf 10\na 12 7 0\nf 11\nf 12\n";
    let program = Program::compile(Reader::new(text.as_bytes()).unwrap()).unwrap();
    assert_eq!((program.slots, program.peak, program.ops.len()), (2, 150, 7));
    assert_eq!(program.ops[4].slot, program.ops[0].slot);
    assert_eq!(
        (program.ops[2].kind, program.ops[2].size(), program.ops[2].resized()),
        (Kind::Reallocate, 1, 50)
    );
    assert_eq!(program.ops[1].layout(), std::alloc::Layout::from_size_align(100, 64).unwrap());
    // Blocks of pools of devices have more than 4 GiB.
    let large = Program::compile(Reader::new("a 1 8 0\nr 1 4294967296\n".as_bytes()).unwrap()).unwrap();
    assert_eq!((large.peak, large.ops[1].after()), (1 << 32, 1 << 32));
}

#[test]
fn what_the_comments_carry_is_read() {
    let text =
        "# failed to be a failure\n# failed 9 8 @3 #x\n# lost 2\na 1 8 8\n# |   0: main\n# lost and found\n";
    let records = Records::new(text.as_bytes(), Limits::default()).unwrap();
    assert_eq!(records.header().text(), "failed to be a failure");
    let records: Vec<_> = records.map(|record| record.unwrap().1).collect();
    let failure = Failure { size: 9, align: 8, time: Some(3), tag: Some("x".into()) };
    let expected = [
        Record::Failure(failure),
        Record::Lost(2),
        Record::Event(Event::new(1, Action::Allocate { size: 8, align: 8 })),
        Record::Note("  0: main".into()),
        Record::Comment("lost and found".into()),
    ];
    assert_eq!(records, expected);
}

#[test]
fn where_events_were_lost_the_rest_is_put_right() {
    let text = "a 1 8 8\n# lost 3\na 1 16 8 @5\nf 2\nr 3 9\nf 1\nf 1\n";
    let mut reader = Reader::new(text.as_bytes()).unwrap();
    let events: Vec<_> = reader.by_ref().map(|checked| checked.unwrap().event).collect();
    let free = Event { time: Some(5), ..Event::new(1, Action::Free) };
    let allocate = Event { time: Some(5), ..Event::new(1, Action::Allocate { size: 16, align: 8 }) };
    assert_eq!(events[1..], [free, allocate, Event::new(1, Action::Free)]);
    assert_eq!((reader.lost(), reader.left_out(), reader.live().count()), (3, 3, 0));
}

#[test]
fn an_empty_tag_is_not_written() {
    let event = Event { tag: Some(Arc::from("")), ..Event::new(1, Action::Free) };
    assert_eq!(Writer::new(Vec::new()).event(&event).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Steps that make a trace in order: which block, how large, what.
fn steps() -> impl Strategy<Value = Vec<(usize, u64, u32, u8, Option<String>)>> {
    let tag = proptest::option::of(prop_oneof![
        "[a-z@#&/%]([a-z @#&/]{0,8}[a-z@#/])?",
        any::<String>().prop_filter("empty", |tag| !tag.is_empty()),
    ]);
    proptest::collection::vec((any::<usize>(), 0..1_u64 << 40, 0..40_u32, 0..6_u8, tag), 0..200)
}

fn trace(steps: Vec<(usize, u64, u32, u8, Option<String>)>) -> Vec<Event> {
    let (mut live, mut events, mut next, mut now) = (Vec::new(), Vec::new(), 0_u64, 0_u64);
    for (which, size, align, what, tag) in steps {
        let at = which % live.len().max(1);
        let (id, action) = match what {
            0 | 1 if !live.is_empty() => (live.swap_remove(at), Action::Free),
            2 if !live.is_empty() => (live[at], Action::Reallocate { size }),
            _ => {
                next += 1;
                live.push(next);
                (next, Action::Allocate { size, align: if what == 3 { 0 } else { 1 << align } })
            }
        };
        now += size % 3;
        let time = (which % 2 == 0).then_some(now);
        let address = (which % 3 == 0).then_some(size);
        events.push(Event { id, action, time, tag: tag.map(Arc::from), address });
    }
    events
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.comment(&format!("name=x events={}", events.len())).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish().unwrap()
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(steps in steps()) {
        let events = trace(steps);
        prop_assert_eq!(read(&written(&events)).unwrap(), events);
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
    }

    #[test]
    fn a_changed_trace_is_read_or_refused(steps in steps(), place: usize, byte: u8, cut: usize) {
        let mut bytes = written(&trace(steps));
        let length = bytes.len();
        bytes[place % length] = byte;
        bytes.truncate(length - cut % 8);
        if let Ok(reader) = Reader::new(bytes.as_slice()) {
            // Whatever passes is consistent: the sums agree with the events.
            let mut live = std::collections::HashMap::new();
            let (mut slots, mut most) = (std::collections::HashMap::new(), 0);
            for checked in reader {
                let Ok(checked) = checked else { break };
                // A slot belongs to one live block, and there are no more than blocks.
                most = most.max(checked.live_blocks);
                let holder = match checked.event.action {
                    Action::Free => slots.remove(&checked.slot),
                    _ => slots.insert(checked.slot, checked.event.id),
                };
                let expected = checked.before.map(|_| checked.event.id);
                prop_assert_eq!((holder, checked.slot < most), (expected, true));
                match checked.event.action {
                    Action::Allocate { size, .. } => prop_assert!(live.insert(checked.event.id, size).is_none()),
                    Action::Reallocate { size } => {
                        prop_assert!(live.insert(checked.event.id, size).is_some());
                    }
                    Action::Free => prop_assert!(live.remove(&checked.event.id).is_some()),
                }
                prop_assert_eq!(checked.live_bytes, live.values().sum::<u64>());
                prop_assert_eq!(checked.live_blocks, live.len());
            }
        }
    }
}
