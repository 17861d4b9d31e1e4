//! `allotment plan`, beyond what the planner's own tests see, and the time limits of the commands.

use std::fs;
use std::time::{Duration, Instant};

use crate::{allotment, files, json, printed, refused, root};

/// A heap that grows: 14,000 blocks, most of them live to the end, so that more than 50 million pairs are live at once. The planner
/// once never came back from it.
fn growing() -> String {
    let mut lines = String::new();
    for n in 0..14_000_u64 {
        lines += &format!("a {n} {} 8\n", 8 + n * 7919 % 600);
        if n % 5 == 0 {
            lines += &format!("f {n}\n");
        }
    }
    lines
}

/// What only a command that ignores its limit takes.
const FAR_TOO_LONG: Duration = Duration::from_secs(120);

#[test]
fn every_command_keeps_to_its_time_limit() {
    let (_folder, [trace]) = files(["growing.trace"]);
    fs::write(&trace, growing()).unwrap();
    let begun = Instant::now();
    let planned = json(["plan", &trace, "-q", "--json", "--explain", "--time-limit", "300ms"]);
    assert!(planned[0]["peak"].as_u64() >= planned[0]["lower_bound"].as_u64());
    assert!(planned[0]["explanation"]["load"].as_u64() <= planned[0]["peak"].as_u64());
    let replayed = json(["replay", &trace, "--json", "--time-limit", "1s"]);
    assert!(
        replayed["placements"].as_array().unwrap().iter().any(|one| one["unfinished"] == true),
        "{replayed}"
    );
    // With little time there is a heap for the run, or a word about the limit; with hardly any there is none.
    let output = allotment(["advise", &trace, "--json", "--time-limit", "2s"]);
    match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
        Ok(advice) => assert!(!advice["unfinished"].as_array().unwrap().is_empty(), "{advice}"),
        Err(_) => assert!(String::from_utf8_lossy(&output.stderr).contains("--time-limit")),
    }
    let (status, error) = refused(["advise", &trace, "--time-limit", "0s"]);
    assert_eq!(status, 1);
    assert!(error.contains("within the time limit of 0s: give more with --time-limit"), "{error}");
    assert!(begun.elapsed() < FAR_TOO_LONG, "{:?}", begun.elapsed());
}

/// ^C ends the search; the plan so far is written, and its gap is told.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_search_leaves_its_best_plan() {
    use std::process::{Command, Stdio};
    let (_folder, [csv, plan]) = files(["a.csv", "plan.json"]);
    // A rectangle cut into pieces: the search for the one way to put them together again takes longer than any test.
    let mut lines = String::from("id,lower,upper,size\n");
    for buffer in allotment_planner::generate::perfect_packing(11_000, 40_000, 1 << 30, 3).buffers() {
        lines += &format!("{},{},{},{}\n", buffer.id, buffer.start, buffer.end, buffer.size);
    }
    fs::write(&csv, lines).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_allotment"))
        .args(["plan", &csv, "-o", &plan, "--time-limit", "1h", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted; this is the best plan so far"));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(figures[0]["status"].as_str().unwrap().starts_with("gap"), "{figures}");
    let plan: serde_json::Value = serde_json::from_slice(&fs::read(plan).unwrap()).unwrap();
    assert_eq!(plan["peak"], figures[0]["peak"]);
}

#[test]
fn one_plan_serves_a_range_of_sizes() {
    let model = root().join("planner/tests/data/onnx/encoder2_dyn.onnx");
    let model = model.to_str().unwrap();
    let command = ["plan", model, "--dim", "batch=1", "--dim", "seq=1..24", "--quiet", "--threads", "1"];
    let text = printed(command);
    let rows: Vec<Vec<u64>> = text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('%'))
        .map(|line| line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect())
        .collect();
    let sizes: Vec<u64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, [1, 2, 4, 8, 16, 24], "{text}");
    assert!(rows.iter().all(|row| row[1] <= row[2]), "{text}");
    // At the largest size the general plan is that of its own.
    assert_eq!(rows[5][1], rows[5][2], "{text}");
    let (_, said) = refused(["plan", model, "--dim", "batch=1..2", "--dim", "seq=1..24"]);
    assert!(said.contains("only one dimension can be a range"), "{said}");
    let (_, said) = refused(["plan", model, "--dim", "batch=1", "--dim", "seq=1..4", "--fuse", "64"]);
    assert!(said.contains("--spill and --fuse do not go with a range"), "{said}");
}

/// A plan with several memories becomes source code with an arena for each, in the section that was named.
#[test]
fn tiers_become_arenas_in_sections() {
    let csv = root().join("boards/mps2-an386-zones/buffers.csv");
    let (_folder, [rust, header, program, binary]) = files(["plan.rs", "buffers.h", "main.c", "main"]);
    let sections = ["--section", "0=.uninit.plan", "--section", "1=.psram.plan", "--threads", "1", "--quiet"];
    for out in [&rust, &header] {
        printed(["plan", csv.to_str().unwrap(), "-o", out].iter().chain(&sections));
    }
    // The firmware has this very plan.
    let kept = fs::read_to_string(root().join("boards/mps2-an386-zones/src/plan.rs")).unwrap();
    let made = fs::read_to_string(&rust).unwrap();
    if std::env::var_os("UPDATE_PLAN").is_some() {
        fs::write(root().join("boards/mps2-an386-zones/src/plan.rs"), &made).unwrap();
    } else {
        assert_eq!(kept, made, "set UPDATE_PLAN and run again");
    }
    // A C program finds each buffer in its tier's arena, aligned, and the arenas in their sections.
    fs::write(
        &program,
        "#define BUFFERS_PLAN_ARENAS\n#include \"buffers.h\"\n#include <stdio.h>\n\
         int main(void) {\n  int ok = sizeof BUFFERS_PLAN / sizeof *BUFFERS_PLAN == BUFFERS_BUFFERS;\n\
         ok &= BUFFERS_IMAGE_AT == BUFFERS_ARENA_1 + BUFFERS_IMAGE_OFFSET && BUFFERS_IMAGE_TIER == 1;\n\
         ok &= (uintptr_t)BUFFERS_CHART_AT % 32 == 0 && BUFFERS_CHART_SIZE == 32768;\n\
         ok &= BUFFERS_BINS_AT >= BUFFERS_ARENA_0 && BUFFERS_BINS_AT + BUFFERS_BINS_SIZE <= BUFFERS_ARENA_0 + sizeof BUFFERS_ARENA_0;\n\
         ok &= sizeof BUFFERS_ARENA_1 == BUFFERS_TIER_1_BYTES && BUFFERS_TIER_1_ALIGN == 32;\n\
         puts(ok ? \"fits\" : \"wrong\");\n  return !ok;\n}\n",
    )
    .unwrap();
    let mut cc = std::process::Command::new("cc");
    let built =
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", &program, "-o", &binary]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = std::process::Command::new(&binary).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "fits\n");
    let elf = fs::read(&binary).unwrap();
    for section in [&b".uninit.plan\0"[..], b".psram.plan\0"] {
        assert!(elf.windows(section.len()).any(|bytes| bytes == section), "a section is missing");
    }
    let (_, said) = refused(["plan", csv.to_str().unwrap(), "-o", "out.csv", "--section", "1=.psram"]);
    assert!(said.contains("--section is for source code"), "{said}");
    let (_, said) = refused(["plan", csv.to_str().unwrap(), "-o", "out.rs", "--section", "1=\"); x"]);
    assert!(said.contains("is no name of a section"), "{said}");
}
