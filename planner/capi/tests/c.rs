//! A C program that is linked against the static library, and the header.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use allotment_planner::read::read_csv;
use allotment_planner::solve::{Options, solve};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Compiles `tests/plan.c` and links it with the static library, which Cargo built beside this program.
fn program(folder: &Path) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.with_file_name("liballotment_planner_c.a");
    assert!(library.exists(), "{} is not there", library.display());
    let built = folder.join("plan");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    cc.args(["-I", &format!("{HERE}/include"), &format!("{HERE}/tests/plan.c")]).arg(library);
    cc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&built);
    let output = cc.output().expect("`cc` starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    built
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_c_program_plans() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let data = Path::new(HERE).join("../tests/data/minimalloc");
    // At this capacity the plan of J depends on the seed.
    let tight = Some(1_005_000);
    let mut plans = Vec::new();
    for (file, capacity, seed) in [
        ("A.1048576.csv", Some(1 << 20), 3),
        ("input.12.csv", None, 0),
        ("J.1048576.csv", tight, 0),
        ("J.1048576.csv", tight, 1),
        ("J.1048576.csv", tight, 2),
    ] {
        let path = data.join(file);
        let instance = read_csv(&std::fs::read(&path).unwrap()).unwrap();
        let wanted = solve(&instance, &Options { capacity, seed, threads: 1, ..Options::default() }, None);
        let bytes = capacity.unwrap_or(u64::MAX).to_string();
        let output = Command::new(&program).arg(&path).args([bytes, seed.to_string()]).output().unwrap();
        assert!(output.status.success(), "{file}: {output:?}");
        let text = text(&output);
        let offsets: Vec<u64> =
            text.lines().filter_map(|line| line.strip_prefix("offset ")?.parse().ok()).collect();
        assert_eq!(offsets, wanted.offsets, "{file}");
        assert!(
            text.contains("watched wrong=0 told=1 last=1\nchecked outcome=0\ntight outcome=3 message=`"),
            "{text}"
        );
        assert!(!plans.contains(&offsets), "{file}: the seed {seed} makes no difference");
        plans.push(offsets);
    }
}

#[test]
fn a_c_program_hears_what_is_wrong_and_ends_searches() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program(folder.path())).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let wanted = "\
rich outcome=0 status=0 peak=68 bound=68 message=
rich 1 64
lifetime outcome=2 status=4 peak=0 bound=0 message=buffer `0` ends at 2, before it starts at 5
null outcome=1 status=4 peak=0 bound=0 message=`buffers` is null
no offsets outcome=1 status=4 peak=0 bound=0 message=`offsets` is null
alias outcome=2 status=4 peak=0 bound=0 message=buffer `0` shares with a buffer that does not exist, or with itself
threads outcome=1 status=4 peak=0 bound=0 message=`threads` is 0
time outcome=1 status=4 peak=0 bound=0 message=`time_limit` is negative or not a number
untouched 77, no plan 1
fixed outcome=2 status=4 peak=0 bound=0 message=`0` and `1` are fixed where they overlap, and at time 0 both are live: move one of them
nothing outcome=0 status=0 peak=0 bound=0 message=
cancelled outcome=0 gap=1
cancelled plan is one 0
stopped outcome=0 told=1
late outcome=0 plan is one 0
tight outcome=5 status=3 peak=16 bound=16 message=the best plan exceeds the capacity
untouched 77, anyway 0
work 1
older 0
schedule outcome=0 status=0 peak=1920 bound=1920 message=
version 1, optimal for this order and these copies (proved): 7 places
0 given -> x
0 run f x -> a
0 copy a -> a@away0
1 run g x -> c
2 run h c -> b
3 copy a@away0 -> a@3
3 run i a@3 b -> y
3 taken y
together outcome=2 status=4 peak=0 bound=0 message=spill and in_place do not go together: leave one out
form outcome=1 status=4 peak=0 bound=0 message=`form` is 9
null 1
";
    assert_eq!(text(&output), wanted);
}

#[test]
fn the_header_is_that_of_the_source() {
    let config = cbindgen::Config::from_file(format!("{HERE}/cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_src(format!("{HERE}/src/lib.rs"))
        .with_src(format!("{HERE}/src/schedule.rs"))
        .with_config(config)
        .generate()
        .expect("cbindgen reads the source");
    let mut header = Vec::new();
    made.write(&mut header);
    let path = Path::new(HERE).join("include/allotment_planner.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert_eq!(
        String::from_utf8_lossy(&kept),
        String::from_utf8_lossy(&header),
        "set UPDATE_HEADER and run again"
    );
}
