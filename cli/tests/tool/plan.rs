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
    // A limit that no machine meets, however fast it is.
    let output = allotment(["replay", &trace, "--json", "--time-limit", "1ms"]);
    let replayed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        replayed["placements"].as_array().unwrap().iter().any(|one| one["unfinished"] == true),
        "{replayed}"
    );
    // With little time there is a heap for the run, or a word about the limit; with hardly any there is none.
    let output = allotment(["advise", &trace, "--json", "--time-limit", "100ms"]);
    match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
        Ok(advice) => assert!(!advice["unfinished"].as_array().unwrap().is_empty(), "{advice}"),
        Err(_) => assert!(String::from_utf8_lossy(&output.stderr).contains("--time-limit")),
    }
    let (status, error) = refused(["advise", &trace, "--time-limit", "0s"]);
    assert_eq!(status, 1);
    assert!(error.contains("within the time limit of 0s: give more with --time-limit"), "{error}");
    // However many rounds and threads it is given.
    let many = "20000000000";
    allotment(["replay", &trace, "--placement", "tlsf", "--rounds", many, "--time-limit", "300ms"]);
    json(["plan", &trace, "-q", "--json", "--threads", many, "--time-limit", "300ms"]);
    assert!(begun.elapsed() < FAR_TOO_LONG, "{:?}", begun.elapsed());
}

/// ^C ends the search: the tool writes the best plan so far and its gap.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_search_leaves_its_best_plan() {
    use std::process::{Command, Stdio};
    let (_folder, [csv, plan]) = files(["a.csv", "plan.json"]);
    // A rectangle cut into pieces: the search for the one way to put them together again takes longer than any test.
    let mut lines = String::from("id,lower,upper,size\n");
    for buffer in crate::generate::perfect_packing(11_000, 40_000, 1 << 30, 3).buffers() {
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
fn one_plan_is_for_a_range_of_sizes() {
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
    assert!(text.contains("| optimal for this order (proved) |"), "{text}");
    // The bound of what generality costs is never below what it does.
    let percents = |line: &str| -> Vec<f64> {
        line.split('|').filter_map(|cell| cell.trim().strip_suffix(" %")?.parse().ok()).collect()
    };
    let costs: Vec<Vec<f64>> = text.lines().map(percents).filter(|costs| !costs.is_empty()).collect();
    assert!(costs.len() == 6 && costs.iter().all(|costs| costs.len() == 2 && costs[0] <= costs[1]), "{text}");
    // What shares a place in the general plan does so at each size.
    let shared = printed(command.iter().chain(&["--in-place"]));
    assert_eq!(
        shared.lines().filter(|line| line.starts_with("| ") && line.contains('%')).count(),
        6,
        "{shared}"
    );
    let (_, said) = refused(["plan", model, "--dim", "batch=1..2", "--dim", "seq=1..24"]);
    assert!(said.contains("only one dimension can be a range"), "{said}");
    let (_, said) = refused(["plan", model, "--dim", "batch=1", "--dim", "seq=1..4", "--stream", "4"]);
    assert!(said.contains("--spill, --stream and --cache-line do not go with a range"), "{said}");
}

/// What a limit beyond all addresses means is the same in every form and for every command: no limit. A size is no limit.
#[test]
fn limits_beyond_all_addresses_are_none() {
    let (_folder, [csv, trace, budget]) = files(["a.csv", "a.trace", "budget.toml"]);
    fs::write(&csv, "id,lower,upper,size\na,0,3,100\nb,2,4,60\n").unwrap();
    fs::write(&trace, "a 1 100 8\nf 1\n").unwrap();
    let plan = |limit: &[&str]| {
        let text = printed(["plan", &csv, "--json", "--work", "100"].iter().chain(limit));
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(plan[0]["peak"], 160, "{text}");
        plan[0]["capacity"].clone()
    };
    assert_eq!(plan(&["--capacity", "200"]), 200);
    for most in ["18446744073709551615", "18446744073709551616", "0x10000000000000000", "20000000T"] {
        assert_eq!(plan(&["--capacity", most]), serde_json::Value::Null, "{most}");
        fs::write(&budget, format!("[total]\npeak = \"{most}\"\n")).unwrap();
        printed(["budget", &trace, "--file", &budget]);
    }
    for size in ["18446744073709551616", "20000000T"] {
        let (_, said) = refused(["view", &trace, "--json", "--arena", size]);
        assert!(said.contains("there are no such addresses"), "{said}");
    }
}

/// The error of open dimensions ends with a command that works as it is.
#[test]
fn open_dimensions_come_with_the_command_to_type() {
    let model = root().join("planner/tests/data/onnx/encoder2_dyn.onnx");
    let (_folder, [copy]) = files(["two words.onnx"]);
    fs::copy(model, &copy).unwrap();
    let (_, said) = refused(["plan", &copy, "--in-place", "--quiet"]);
    assert!(said.contains("`batch` of the input") && said.contains("--shapes FILE"), "{said}");
    let command = said.lines().find_map(|line| line.trim().strip_prefix("allotment ")).unwrap();
    assert!(command.ends_with("--in-place --quiet --dim batch=1 --dim seq=1"), "{said}");
    let quoted = format!("'{copy}'");
    assert!(command.contains(&quoted), "{said}");
    let words: Vec<&str> = command.split(&quoted).flat_map(str::split_whitespace).collect();
    printed([&words[..1], &[copy.as_str()], &words[1..]].concat());
    let (_, said) = refused(["plan", &copy, "--dim", "seq=1..4"]);
    assert!(said.contains("--dim seq=1..4 --dim batch=1"), "{said}");
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
    let kept = fs::read_to_string(root().join("boards/mps2-an386-zones/plan.rs")).unwrap();
    let made = fs::read_to_string(&rust).unwrap();
    if std::env::var_os("UPDATE_PLAN").is_some() {
        fs::write(root().join("boards/mps2-an386-zones/plan.rs"), &made).unwrap();
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

/// With a cache line, the buffers of that tier lie on lines of their own, and the source says how long a line is.
#[test]
fn buffers_of_a_cached_tier_share_no_line() {
    let (_folder, [csv, plan, rust, header]) = files(["buffers.csv", "plan.json", "plan.rs", "buffers.h"]);
    // Three tensors of 40 B at one time, and as many in the memory without a cache.
    let mut lines = String::from("id,lower,upper,size,tier\n");
    for n in 0..6 {
        lines += &format!("b{n},0,2,40,{}\n", n % 2);
    }
    fs::write(&csv, lines).unwrap();
    let options = ["--cache-line", "1=32", "--threads", "1", "--quiet"];
    let made = |out: &str| {
        printed(["plan", &csv, "-o", out].iter().chain(&options));
        fs::read_to_string(out).unwrap()
    };
    let plan: serde_json::Value = serde_json::from_str(&made(&plan)).unwrap();
    let placed = |tier: u64| -> Vec<(u64, u64)> {
        let of = |buffer: &serde_json::Value| ["offset", "size"].map(|key| buffer[key].as_u64().unwrap());
        let buffers = plan["buffers"].as_array().unwrap().iter().filter(|buffer| buffer["tier"] == tier);
        let mut places: Vec<(u64, u64)> = buffers.map(|buffer| of(buffer).into()).collect();
        places.sort_unstable();
        places
    };
    assert_eq!(placed(0), [(0, 40), (40, 40), (80, 40)]);
    assert_eq!(placed(1), [(0, 64), (64, 64), (128, 64)]);
    let rust = made(&rust);
    assert!(
        rust.contains("pub const fn cache_line(tier: usize) -> usize") && rust.contains("1 => 32,"),
        "{rust}"
    );
    assert!(rust.contains("#[repr(C, align(32))]\npub struct Arena1"), "{rust}");
    let header = made(&header);
    assert!(header.contains("_TIER_1_CACHE_LINE 32u") && !header.contains("_TIER_0_CACHE_LINE"), "{header}");
    let (_, said) = refused(["plan", &csv, "--cache-line", "1=48"]);
    assert!(said.contains("48 is no power of two"), "{said}");
}

/// Two streams take turns: the smallest plan needs four events, twice as much memory none; a curve tells what each byte costs.
#[test]
fn reuse_has_a_price() {
    let (_folder, [csv, plan]) = files(["s.csv", "plan.csv"]);
    let lines = "id,lower,upper,size,stream,with,moves\na,0,2,64,0,,128\nb,1,4,32,1,a,no\nc,2,5,64,1,,no\nd,4,7,32,0,c,64\n\
                 e,5,8,64,0,d,no\nf,7,9,32,1,,no\n";
    fs::write(&csv, lines).unwrap();
    let reuse = |options: &[&str]| {
        json(["plan", &csv, "-q", "--json", "--time-limit", "20s"].iter().chain(options))[0]["reuse"].clone()
    };
    let least = reuse(&["--price", "event=20", "--explain"]);
    assert_eq!((&least["cost"]["events"], &least["optimal"]), (&4.into(), &true.into()));
    let curve: Vec<(u64, u64)> = least["curve"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| (point["peak"].as_u64().unwrap(), point["cost"]["total"].as_u64().unwrap()))
        .collect();
    assert_eq!((curve[0], *curve.last().unwrap()), ((96, 80), (192, 0)));
    assert_eq!(reuse(&["--price", "event=20", "--capacity", "192"])["cost"]["total"], 0);
    // Moving `a` and `d` is cheaper than waiting for them.
    let moved = reuse(&["--price", "event=200", "--price", "byte=1", "--capacity", "96", "-o", &plan]);
    assert_eq!((&moved["cost"]["moved"], &moved["cost"]["events"]), (&192.into(), &1.into()), "{moved}");
    assert!(fs::read_to_string(&plan).unwrap().lines().count() == 7);
    // Two banks of 32 B in 96 B: `a` and `b` start in different ones.
    let banked = reuse(&["--price", "clash=3", "--banks", "2:32"]);
    assert_eq!(banked["cost"]["clashes"], 0);
    for (options, said) in [
        (["--price", "wait=1"], "`wait` has no price"),
        (["--banks", "2:32"], "--price"),
        (["--price", "event"], "write KIND=N"),
    ] {
        let (_, error) = refused(["plan", &csv].iter().chain(&options));
        assert!(error.contains(said), "{error}");
    }
    let (_, error) = refused(["plan", &csv, "--price", "event=1", "--capacity", "10"]);
    assert!(error.contains("no plan within 10 B was found"), "{error}");
    fs::write(&csv, lines.replace("1,a,no", "1,z,no")).unwrap();
    let (_, error) = refused(["plan", &csv, "--price", "event=1"]);
    assert!(error.contains("line 3: `z`, in `with`, is not there"), "{error}");
}

/// The library plans in a `const`, the planner on the host: both mean the same by buffers, at the edges as well, and each finds the other's plans right.
#[test]
fn the_library_and_the_planner_mean_the_same() {
    use allotment::plan::{Buffer as Own, Interval, OwnedPlan, PlanError, RULES, check, load, validate};
    use allotment_planner::model::{Buffer, Gap, Instance, InstanceError};
    use allotment_planner::solve::{Options, Status, solve};
    use allotment_planner::validate::validate as host_validate;

    let mut random = fastrand::Rng::with_seed(1);
    let (mut planned, mut refused, mut wrong) = (0, 0, 0);
    for _ in 0..3000 {
        let count = random.usize(1..6);
        let mut host: Vec<Buffer> = Vec::new();
        for n in 0..count {
            let (start, steps, align) = (random.i64(0..4), random.i64(0..4), 1 << random.u32(0..3));
            let mut buffer =
                Buffer { align, ..Buffer::new(n.to_string(), random.u64(0..5), start, start + steps) };
            if let (true, Some(before)) = (random.u8(..4) == 0, host.last()) {
                buffer = Buffer { id: n.to_string(), ..before.clone() };
            } else if steps > 1 && random.u8(..4) == 0 {
                let from = random.i64(start + 1..start + steps);
                buffer.gaps = vec![Gap { start: from, end: start + steps, window: None }];
            }
            buffer.fixed = (random.u8(..6) == 0).then(|| random.u64(0..4) * buffer.align);
            // In place, as both understand it: the input's last step is the output's first.
            let inputs =
                host.iter().position(|input| input.start <= buffer.start && input.end == buffer.start + 1);
            buffer.alias = inputs.filter(|_| random.bool());
            host.push(buffer);
        }
        let interval = |gap: &Gap| Interval::new(gap.start as u64..gap.end as u64);
        let gaps: Vec<Vec<Interval>> = host.iter().map(|b| b.gaps.iter().map(interval).collect()).collect();
        let own: Vec<Own> = host
            .iter()
            .zip(&gaps)
            .map(|(b, gaps)| {
                let mut own = Own::new(b.size, b.start as u64..b.end as u64).align(b.align).gaps(gaps);
                (own.fixed, own.alias) = (b.fixed, b.alias);
                own
            })
            .collect();
        let instance = match (Instance::new(host), check(&own)) {
            (Ok(instance), Ok(())) => instance,
            (Err(InstanceError::FixedOverlap { .. }), Err(PlanError::FixedOverlap(..))) => {
                refused += 1;
                continue;
            }
            (ours, theirs) => panic!("{ours:?} {theirs:?}"),
        };
        let offsets: Vec<u64> = (0..count).map(|_| 4 * random.u64(0..4)).collect();
        let (ours, theirs) = (host_validate(&instance, &offsets, None), validate(&own, &offsets, u64::MAX));
        assert_eq!(ours.is_ok(), theirs.is_ok(), "{instance:?} {offsets:?}: {ours:?} {theirs:?}");
        wrong += usize::from(ours.is_err());
        let solution = solve(&instance, &Options { threads: 1, ..Options::default() }, None);
        assert_eq!(solution.status, Status::Optimal);
        assert_eq!(validate(&own, &solution.offsets, u64::MAX), Ok(solution.peak));
        let plan = OwnedPlan::new(&own, &RULES).unwrap();
        let (plan, bound) = (plan.placed(), load(&own).bound);
        host_validate(&instance, plan.offsets(), Some(plan.peak())).unwrap();
        assert!(bound <= solution.peak && solution.peak <= plan.peak(), "{bound} {solution} {}", plan.peak());
        planned += 1;
    }
    assert!(planned > 1000 && refused > 20 && wrong > 500, "{planned} {refused} {wrong}");
}

/// The case of a bug report: a proof above the peak, and another one in each run.
#[test]
fn empty_lifetimes_have_one_plan() {
    let (_folder, [csv]) = files(["empty.csv"]);
    fs::write(&csv, "id,lower,upper,size\na,3,3,10\nb,3,3,20\nc,0,5,5\n").unwrap();
    for seed in ["0", "1", "2", "3"] {
        let figures = json(["plan", &csv, "--json", "--quiet", "--seed", seed]);
        assert_eq!((&figures[0]["peak"], &figures[0]["lower_bound"]), (&20.into(), &20.into()));
        assert_eq!(figures[0]["status"], "optimal (proved)");
    }
}

/// A shape for a tensor that is not in the model does nothing, so the tool says that.
#[test]
fn shapes_of_no_tensor_are_named() {
    let model = crate::root().join("planner/tests/data/onnx/kws_dscnn.onnx");
    let (_folder, [shapes]) = files(["s.json"]);
    let said = |text: &str| {
        fs::write(&shapes, text).unwrap();
        let output = allotment(["plan", model.to_str().unwrap(), "-q", "--shapes", &shapes]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        said("{\"nosuch\": [1, 2]}"),
        "allotment: warning: --shapes: no tensor of the model is named nosuch\n"
    );
}
