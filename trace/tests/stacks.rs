//! Stacks in traces: what is read, what is passed on, and what is skipped.

use allotment_trace::{
    Action, BinaryWriter, Frame, Header, Limits, Node, Reader, Record, Records, Writer, binary_header,
    write_binary,
};

const TEXT: &str = "# name=demo events=4\n#^m 0a1b /bin/serve\n#^m - /lib/libc.so.6\n#^n 0 1 10\n#^n 1 2 20ff\n#^2\na 0 100 8 @5\n\
                    a 1 24 0\n#^1\nr 0 200\nf 1\n#^s main\n#^s read all\n#^s a.c\n#^f 1 10 1 3 7\n#^f 2 20ff 2 0 0 1 3 9\n";

/// The stack of each event.
fn stacks(trace: &[u8]) -> Vec<u32> {
    Reader::new(trace).unwrap().with_stacks().map(|checked| checked.unwrap().stack).collect()
}

fn binary(text: &str) -> Vec<u8> {
    let mut binary = Vec::new();
    write_binary(&mut Records::new(text.as_bytes(), Limits::default()).unwrap(), &mut binary).unwrap();
    binary
}

#[test]
fn stacks_are_read_from_text_and_binary() {
    for trace in [TEXT.as_bytes().to_vec(), binary(TEXT)] {
        assert_eq!(stacks(&trace), [2, 0, 1, 0]);
        let mut reader = Reader::new(&*trace).unwrap().with_stacks();
        assert_eq!(reader.by_ref().count(), 4);
        let stacks = reader.take_stacks();
        let node = stacks.node(2).unwrap();
        assert_eq!(node, Node { parent: 1, module: 2, address: 0x20ff });
        assert_eq!(stacks.module(node).unwrap().build_id, None);
        let first = stacks.node(node.parent).unwrap();
        assert_eq!(stacks.module(first).unwrap().build_id.as_deref(), Some("0a1b"));
        let frame = |function: &str, file: Option<&str>, line| Frame {
            function: function.into(),
            file: file.map(Into::into),
            line,
        };
        assert_eq!(stacks.frames(node), [frame("read all", None, 0), frame("main", Some("a.c"), 9)]);
        assert_eq!(stacks.frames(first), [frame("main", Some("a.c"), 7)]);
        // Who did not ask for stacks gets none.
        assert!(Reader::new(&*trace).unwrap().all(|checked| checked.unwrap().stack == 0));
    }
}

#[test]
fn nothing_is_lost_between_the_forms() {
    let binary = binary(TEXT);
    let records = Records::new(&*binary, Limits::default()).unwrap();
    let mut text = Writer::new(Vec::new());
    text.comment(records.header().text()).unwrap();
    for record in records {
        text.record(&record.unwrap().1).unwrap();
    }
    assert_eq!(String::from_utf8(text.finish().unwrap()).unwrap(), TEXT);
    // One by one, with the stacks as distances.
    let mut again = binary_header(&Header::new("name=demo events=4"));
    let mut writer = BinaryWriter::of_numbers(&mut again);
    for record in Records::new(TEXT.as_bytes(), Limits::default()).unwrap() {
        match record.unwrap().1 {
            Record::Stack(line) if line.parse::<u32>().is_ok() => {
                writer.stack(line.parse().unwrap()).unwrap()
            }
            record => writer.write(&record).unwrap(),
        }
    }
    writer.finish().unwrap();
    let stacks = |trace: &[u8]| {
        let reader = Reader::new(trace).unwrap().with_stacks();
        reader.map(|checked| checked.unwrap().stack).collect::<Vec<_>>()
    };
    assert_eq!(stacks(&again), stacks(&binary));
    assert!(stacks(&again).iter().filter(|&&stack| stack > 0).count() > 1);
}

#[test]
fn numbers_with_a_sign_count_from_the_last() {
    let text = "#^n 0 0 1\n#^n -1 0 2\n#^n -2 0 3\n#^3\na 1 8 8\n#^-1\na 2 8 8\n#^+0\na 3 8 8\n#^+1\na 4 8 8\n#^-9\na 5 8 8\n";
    let mut reader = Reader::new(text.as_bytes()).unwrap().with_stacks();
    let found: Vec<u32> = reader.by_ref().map(|checked| checked.unwrap().stack).collect();
    assert_eq!(found, [3, 2, 2, 3, 0]);
    let stacks = reader.take_stacks();
    assert_eq!([1, 2, 3].map(|number| stacks.node(number).unwrap().parent), [0, 1, 1]);
}

/// What is wrong in a stack is no event, and so no error.
#[test]
fn damaged_stacks_harm_nothing() {
    let text = "#^n 7 1 x\n#^n\n#^f\n#^f 1\n#^f 1 zz 1 2\n#^q what\n#^\n#^9\na 1 8 8\n#^n 1 0 99999999999999999999\n#^2\na 2 8 8\n#^f 0 0 9 9 9\n";
    let mut reader = Reader::new(text.as_bytes()).unwrap().with_stacks();
    let found: Vec<u32> = reader.by_ref().map(|checked| checked.unwrap().stack).collect();
    assert_eq!(found, [0, 2]);
    let stacks = reader.take_stacks();
    assert_eq!(stacks.nodes().len(), 2);
    assert_eq!((stacks.node(1).unwrap().parent, stacks.node(2).unwrap().parent), (0, 1));
    assert_eq!(&*stacks.frames(stacks.node(2).unwrap())[0].function, "?");
}

#[test]
fn notes_on_an_event_are_its_stack() {
    let text = "a 1 8 8\n# | backtrace 10 20\na 2 8 8\n# | backtrace 11 20\nf 1\n# | freed by hand\na 3 8 8\n# |   inner\n# |   outer\na 4 8 8\n\
                # | frame 10 ten a.rs:1\n# | frame 10 around a.rs:2\n# | frame 20 twenty\n";
    let mut reader = Reader::new(text.as_bytes()).unwrap().with_stacks();
    let checked: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(checked.len(), 5);
    let found: Vec<u32> = checked.iter().map(|checked| checked.stack).collect();
    let stacks = reader.take_stacks();
    let names = |mut number: u32| {
        let mut names = Vec::new();
        while let Some(node) = stacks.node(number) {
            names.extend(stacks.frames(node).iter().map(|frame| frame.function.to_string()));
            number = node.parent;
        }
        names
    };
    assert_eq!(names(found[0]), ["ten", "around", "twenty"]);
    assert_eq!(stacks.node(found[0]).unwrap().parent, stacks.node(found[1]).unwrap().parent);
    assert_eq!((found[2], checked[2].event.action), (0, Action::Free));
    assert_eq!(names(found[3]), ["inner", "outer"]);
    assert_eq!(found[4], 0);
}

/// A device forgets which calls it has recorded, and records them again.
#[test]
fn calls_that_come_again_are_the_same() {
    let text = "#^n 0 0 10\n#^n 1 0 20\n#^2\na 1 8 8\n#^n 0 0 10\n#^n 3 0 20\n#^n 3 0 30\n#^4\na 2 8 8\n#^5\na 3 8 8\n#^2\na 4 8 8\n";
    let mut reader = Reader::new(text.as_bytes()).unwrap().with_stacks();
    let found: Vec<u32> = reader.by_ref().map(|checked| checked.unwrap().stack).collect();
    assert_eq!(found, [2, 2, 5, 2]);
    assert_eq!(reader.take_stacks().node(5).unwrap().parent, 1);
}

/// Behind the last event of a trace that is cut off, or that promises more, the same is said as without stacks.
#[test]
fn the_ends_of_traces_are_judged_as_before() {
    for text in ["# events=3\na 1 8 8\n#^1\n", "a 1 8 8\nf 1\n#^2\na 2 8 8\na", "a 1 8 8\nf 2\n#^3\n"] {
        let plain =
            Reader::new(text.as_bytes()).unwrap().find_map(Result::err).map(|error| error.to_string());
        let with = Reader::new(text.as_bytes())
            .unwrap()
            .with_stacks()
            .find_map(Result::err)
            .map(|error| error.to_string());
        assert_eq!(with, plain, "{text:?}");
        assert!(plain.is_some());
        let (mut plain, mut with) = (
            Reader::new(text.as_bytes()).unwrap().up_to_a_cut(),
            Reader::new(text.as_bytes()).unwrap().up_to_a_cut().with_stacks(),
        );
        assert_eq!(
            plain.by_ref().map(|one| one.is_ok()).collect::<Vec<_>>(),
            with.by_ref().map(|one| one.is_ok()).collect::<Vec<_>>()
        );
        assert_eq!(plain.cut().map(ToString::to_string), with.cut().map(ToString::to_string), "{text:?}");
    }
}
