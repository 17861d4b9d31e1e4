//! Readers and the validator, on good and bad input.

mod common;

use allotment_planner::model::{Buffer, Gap, Instance, InstanceError};
use allotment_planner::read::{ReadError, read_csv, read_instance, read_trace, read_uses};
use allotment_planner::validate::{Violation, validate};
use common::{apart, checked_by_core, read};
use proptest::prelude::*;

fn csv(text: &str) -> Result<Instance, ReadError> {
    read_csv(text.as_bytes())
}

#[test]
fn all_columns_are_read() {
    let instance = csv("size,id,start,end,alignment,hint,gaps,fixed,alias,tier,offset\n\
                        8,a,0,9,4,16,2-3 5-7@0:4,,b,1,0\n\
                        16,b,-3,4,,,,32,,,7\n")
    .unwrap();
    let gaps = vec![Gap { start: 2, end: 3, window: None }, Gap { start: 5, end: 7, window: Some((0, 4)) }];
    let a = Buffer { align: 4, hint: Some(16), gaps, alias: Some(1), tier: 1, ..Buffer::new("a", 8, 0, 9) };
    let b = Buffer { fixed: Some(32), ..Buffer::new("b", 16, -3, 4) };
    assert_eq!(instance.buffers(), [a, b]);
}

/// What spreadsheets write: other separators, a mark in front, an index without a name, sizes with units.
#[test]
fn csv_of_other_programs_is_read() {
    let wanted =
        csv("id,lower,upper,size,alignment,gaps,fixed\na,0,3,65536,64,1-2@0:1024,1572864\nb,1,4,20,1,,\n")
            .unwrap();
    let text = "id,lower,upper,size,alignment,gaps,fixed\r\na,0,3,64K,64B,1-2@0:1K,1.5MiB\r\nb,1,4,20,,,\r\n";
    for separator in [",", ";", "\t", "|"] {
        let told = format!("sep={separator}\r\n");
        for mark in ["", "\u{feff}", "\n", "\u{feff}\r\n\r\n", "  \n\t\n", "# made by hand, twice\n", &told] {
            let text = text.replace(',', separator);
            assert_eq!(csv(&format!("{mark}{text}")).unwrap(), wanted, "{separator:?} {mark:?}");
        }
    }
    assert_eq!(
        csv(",id,lower,upper,size\n0,a,0,3,10\n").unwrap(),
        csv("id,lower,upper,size\na,0,3,10\n").unwrap()
    );
    // Offsets of linkers, numbers of data frames, and the empty rows below a sheet.
    let numbers = csv("id,lower,upper,size,fixed\na,0,3,64.0,0x1F0\n,,,,\nb,4,5,0X40,\n,,,,\n").unwrap();
    let a = Buffer { fixed: Some(496), ..Buffer::new("a", 64, 0, 3) };
    assert_eq!(numbers.buffers(), [a, Buffer::new("b", 64, 4, 5)]);
    let floats = "id,lower,upper,size,alignment,hint,fixed,alias,tier\n\
                  0,0.0,4.0,64.0,8.0,-1.0,NA,,1.0\n\
                  1,-4.0,0.0,64.0,nan,16.0,NaN,0.0,<NA>\n";
    let [one, other] = [("0", 0, 4), ("1", -4, 0)].map(|(id, start, end)| Buffer::new(id, 64, start, end));
    let wanted = [Buffer { align: 8, tier: 1, ..one }, Buffer { hint: Some(16), alias: Some(0), ..other }];
    assert_eq!(csv(floats).unwrap().buffers(), wanted);
    for time in ["1.5", "0.0.0", ".0", "", "nan"] {
        assert!(csv(&format!("id,lower,upper,size\na,{time},9,1\n")).is_err(), "{time}");
    }
    let uses = "id,lower,upper,size,stream,with,moves\n0,0,4,1,1.0,1.0,NA\n1,2,5,1,,,no\n";
    let uses = read_uses(uses.as_bytes(), &csv(uses).unwrap()).unwrap();
    assert_eq!((uses.streams, uses.together, uses.moves), (vec![1, 0], vec![(0, 1)], vec![None, None]));
    let markdown = "| id | lower | upper | size |\n|:---|------:|---|---|\n| a | 0 | 3 | 10 |\n";
    assert_eq!(csv(markdown).unwrap().buffers(), [Buffer::new("a", 10, 0, 3)]);
    // A name may have what separates others, and MiniMalloc's hint of none is one.
    let quoted = csv("id;lower;upper;size;hint\n\"a,b\";0;3;10;-1\n").unwrap();
    assert_eq!(quoted.buffers(), [Buffer::new("a,b", 10, 0, 3)]);
    // What lies in another row's buffer is none of its own.
    assert_eq!(csv("id,lower,upper,size,in,offset\na,0,3,10,,0\nb,1,2,5,a,0\n").unwrap().len(), 1);
}

#[test]
fn columns_that_are_not_known_are_named() {
    let near = |column: &str| match csv(&format!("id,lower,upper,size,{column}\n")).unwrap_err() {
        ReadError::Unknown { name, hint } => {
            assert_eq!(name, column);
            let all = ": known are id, lower, upper, size, alignment, hint, gaps, fixed, alias, tier, stream, with, moves";
            hint.strip_suffix(all).unwrap().to_owned()
        }
        other => panic!("{column}: {other}"),
    };
    for (column, meant) in [
        ("alignement", "alignment"),
        ("Aligment", "alignment"),
        ("gap", "gaps"),
        ("tiers", "tier"),
        ("ofset", "offset"),
    ] {
        assert_eq!(near(column), format!(" (did you mean `{meant}`?)"));
    }
    assert_eq!(near("colour"), "");
    assert!(csv("ID,Lower,UPPER,Size,Alignment,stream,with,moves\n").is_ok());
}

#[test]
fn wrong_csv_is_refused_with_its_line() {
    let line = |text: &str| match csv(text).unwrap_err() {
        ReadError::Line { line, .. } => line,
        other => panic!("{text:?}: {other}"),
    };
    assert_eq!(line("id,lower,upper,size\na,0,1,8\nb,0,x,8\n"), 3);
    assert_eq!(line("id,lower,upper,size\na,0,1,-8\n"), 2);
    assert_eq!(line("id,lower,upper,size\na,0,1\n"), 2);
    assert_eq!(line("id,lower,upper,size\na,0,1,18446744073709551616\n"), 2);
    assert_eq!(line("id,lower,upper,size\na,99999999999999999999,1,1\n"), 2);
    assert_eq!(line("id,lower,upper,size,gaps\na,0,9,1,3\n"), 2);
    assert_eq!(line("id,lower,upper,size,alias\na,0,9,1,unknown\n"), 2);
    assert_eq!(line("id,lower,upper,size,tier\na,0,9,1,4294967296\n"), 2);
    assert_eq!(line("id,lower,upper,size\na,0,1,\n"), 2);
    assert_eq!(line("# a\r\nsep=;\r\n\r\nid;lower;upper;size\r\na;0;1;x\r\n"), 5);
    assert_eq!(line("id,lower,upper,size\r\n\r\na,0,1,8\r\n\r\n\r\nb,0,x,8\r\n"), 6);
    assert_eq!(line("id,lower,upper,size\ra,0,1,8\rb,0,1\r"), 3);
    assert_eq!(line("id|lower|upper|size\na|0|1|2\n-|-|-|-\n"), 3);
    let sizes =
        ["1.5", "0.5B", "1.", "K", "64Q", "1e30", "-1K", "99999999999G", "0x", "0xg", "0x1K", "1.0.0"];
    for size in sizes.into_iter().chain(["64M.0", "64MiB.0", "0x40.0", ".0", "-.0", "1 .0"]) {
        assert_eq!(line(&format!("id,lower,upper,size\na,0,1,{size}\n")), 2, "{size}");
    }
    assert!(matches!(csv("id,lower,size\n"), Err(ReadError::Column("lower" | "upper"))));
    assert!(matches!(csv(""), Err(ReadError::Column("id"))));
    assert!(matches!(csv("id,lower,start,upper,size\n"), Err(ReadError::Twice(_))));
    let instance = |text: &str| match csv(text).unwrap_err() {
        ReadError::Instance(error) => error,
        other => panic!("{text:?}: {other}"),
    };
    assert!(matches!(instance("id,lower,upper,size\na,0,1,8\na,0,1,8\n"), InstanceError::Duplicate(_)));
    assert!(matches!(instance("id,lower,upper,size\na,2,1,8\n"), InstanceError::Lifetime { .. }));
    assert!(matches!(instance("id,lower,upper,size,align\na,0,1,8,0\n"), InstanceError::Alignment(_)));
    assert!(matches!(instance("id,lower,upper,size,gaps\na,0,3,8,2-4\n"), InstanceError::Gap { .. }));
    assert!(matches!(instance("id,lower,upper,size,gaps\na,0,3,8,1-2@0:9\n"), InstanceError::Gap { .. }));
    assert!(matches!(
        instance("id,lower,upper,size,fixed,align\na,0,3,8,4,8\n"),
        InstanceError::Misaligned { .. }
    ));
    assert!(matches!(instance("id,lower,upper,size,alias\na,0,3,8,a\n"), InstanceError::Alias(_)));
    assert!(matches!(instance("id,lower,upper,size\na,0,1,18446744073709551615\n"), InstanceError::TooLarge));
}

#[test]
fn traces_are_read() {
    let instance =
        read_trace(b"# a comment\na 1 8 16\na 2 24 0 @7 #tag\nr 1 32\nf 2\nf 1\na 1 4 4\n").unwrap();
    let with = |buffer: Buffer, align| Buffer { align, ..buffer };
    let expected = [
        with(Buffer::new("1", 8, 0, 3), 16),
        with(Buffer::new("2", 24, 1, 3), 1),
        with(Buffer::new("1.1", 32, 2, 4), 16),
        with(Buffer::new("1.2", 4, 5, 6), 4),
    ];
    assert_eq!(instance.buffers(), expected);
    let line = |text: &str| match read_trace(text.as_bytes()).unwrap_err() {
        ReadError::Line { line, .. } => line,
        other => panic!("{other}"),
    };
    assert_eq!(line("a 1 8 8\na 1 8 8\n"), 2);
    assert_eq!(line("f 1\n"), 1);
    assert_eq!(line("r 1 9\n"), 1);
    assert_eq!(line("x 1\n"), 1);
    assert_eq!(line("a 1 8\n"), 1);
    assert_eq!(line("\n\na one 8 8\n"), 3);
    assert_eq!(line("a 1 8 3\n"), 1);
    assert!(matches!(read_trace(b"a 1 \xff 8"), Err(ReadError::Line { line: 1, .. })));
    assert!(matches!(read_trace(b"# events=2\na 1 8 8\n"), Err(ReadError::Trace(_))));
}

#[test]
fn files_that_are_not_there_or_not_known() {
    assert!(matches!(read_instance("nowhere.csv".as_ref()), Err(ReadError::Io { .. })));
    let readme = common::data("README.md");
    assert!(matches!(read_instance(&readme), Err(ReadError::Form(_))));
}

#[test]
fn every_violation_is_found() {
    let two =
        Instance::new(vec![Buffer::new("a", 8, 0, 5), Buffer { align: 4, ..Buffer::new("b", 8, 4, 6) }])
            .unwrap();
    assert!(matches!(validate(&two, &[0], None), Err(Violation::Count { .. })));
    assert!(matches!(validate(&two, &[0, 10], None), Err(Violation::Misaligned { .. })));
    assert!(matches!(validate(&two, &[0, 4], None), Err(Violation::Overlap { time: 4, .. })));
    assert!(matches!(validate(&two, &[8, 0], Some(15)), Err(Violation::Capacity { .. })));
    assert!(matches!(validate(&two, &[u64::MAX - 3, 0], None), Err(Violation::Capacity { .. })));
    assert_eq!(validate(&two, &[8, 0], Some(16)), Ok(()));
    let fixed = Instance::new(vec![Buffer { fixed: Some(4), ..Buffer::new("a", 8, 0, 5) }]).unwrap();
    assert!(matches!(validate(&fixed, &[0], None), Err(Violation::Moved { .. })));
    let shared = Instance::new(vec![
        Buffer::new("a", 8, 0, 5),
        Buffer { alias: Some(0), ..Buffer::new("b", 8, 4, 6) },
        Buffer::new("c", 8, 4, 6),
    ])
    .unwrap();
    assert_eq!(validate(&shared, &[0, 0, 8], None), Ok(()));
    assert!(matches!(validate(&shared, &[0, 4, 16], None), Err(Violation::Overlap { .. })));
    assert!(matches!(validate(&shared, &[0, 0, 0], None), Err(Violation::Overlap { .. })));
}

proptest! {
    /// The sweeping validator agrees with a comparison byte by byte.
    #[test]
    fn the_validator_agrees_with_the_definition(
        list in proptest::collection::vec((0_u64..5, 0_i64..5, 0_i64..5, 0_u64..9, 0_i64..4, 0_usize..9), 1..6),
    ) {
        let buffers: Vec<Buffer> = list.iter().enumerate().map(|(n, &(size, start, length, _, hole, alias))| {
            let end = start + length;
            let mut buffer = Buffer::new(n.to_string(), size, start, end);
            if start + hole < end {
                buffer.gaps = vec![Gap { start: start + hole, end, window: (size > 2).then_some((1, 2)) }];
            }
            buffer.alias = (alias < list.len() && alias != n).then_some(alias);
            buffer
        }).collect();
        let instance = Instance::new(buffers).unwrap();
        let offsets: Vec<u64> = list.iter().map(|entry| entry.3).collect();
        let pairs = (0..list.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let expected = pairs.clone().all(|(a, b)| apart(&instance, (a, offsets[a]), (b, offsets[b])));
        prop_assert_eq!(validate(&instance, &offsets, None).is_ok(), expected);
        prop_assert!(checked_by_core(&instance, &offsets).is_none_or(|checked| checked.is_ok() == expected));
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in "\\PC{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = csv(&text);
        let _ = csv(&format!("id,lower,upper,size,gaps,alias,alignment\n{text}"));
        let _ = read_trace(text.as_bytes());
        let _ = (read_csv(&bytes), read_trace(&bytes));
    }

    #[test]
    fn no_cell_makes_the_reader_panic(cells in proptest::collection::vec("[-0-9@: .x]{0,22}", 10)) {
        let header = "id,lower,upper,size,alignment,hint,gaps,fixed,alias,tier";
        let _ = csv(&format!("{header}\n{}\n", cells.join(",")));
    }
}

#[test]
fn what_is_written_is_read_again() {
    use allotment_planner::schedule::Schedule;
    use allotment_planner::solve::{Options, solve};
    use allotment_planner::write::{Planned, c_header, csv as write_csv, html, json, rust_source, svg};
    let mut buffers = read("minimalloc/input.12.csv").buffers().to_vec();
    buffers[0].gaps = vec![Gap { start: buffers[0].start, end: buffers[0].end, window: Some((0, 1)) }];
    buffers[1].align = 4;
    buffers[2].id = "</title><script>\"&".into();
    let instance = Instance::new(buffers).unwrap();
    let solution =
        solve(&instance, &Options { time_limit: std::time::Duration::ZERO, ..Options::default() }, None);
    let schedule = Schedule::of(instance.clone(), solution.clone());
    let planned = Planned::new("a<b", &schedule);
    let text = write_csv(planned);
    assert_eq!(read_csv(text.as_bytes()).unwrap(), instance);
    assert!(text.lines().next().unwrap().ends_with(",offset"));
    let value: serde_json::Value = serde_json::from_str(&json(planned)).unwrap();
    assert_eq!(value["peak"], solution.peak);
    assert_eq!(value["buffers"].as_array().unwrap().len(), instance.len());
    for drawing in [svg(planned), html(planned)] {
        assert!(!drawing.contains("</title><script>") && drawing.contains("lower bound"));
        assert!(drawing.matches("class=\"b\"").count() >= instance.len());
    }
    let offset = format!("offset: {}", solution.offsets[1]);
    let (sections, lines) = Default::default();
    assert!(rust_source(planned, &sections, &lines).contains(&offset));
    assert!(c_header(planned, &sections, &lines).contains("#define A_B_TIER_0_BYTES"));
}
