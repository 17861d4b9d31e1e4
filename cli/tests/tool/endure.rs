//! `allotment endure`.

use serde_json::Value;

use std::fmt::Write;

use crate::device::{BUFFER, Device, Event};
use crate::{allotment, files, json, printed, refused};

/// A recording of a device, whose episodes begin with the mark `connect`.
struct Recording {
    text: String,
    /// The most live bytes.
    peak: usize,
}

impl Recording {
    /// Records a device of a seed with so many connections.
    fn of(seed: u64, connections: usize) -> Self {
        let (mut text, mut live, mut peak) = (String::new(), 0, 0);
        let mut device = Device::start(seed, |event| match event {
            Event::Connect => text.push_str("# mark connect\n"),
            Event::Allocate { block, size } => {
                live += size;
                peak = peak.max(live);
                writeln!(text, "a {block} {size} 4").unwrap();
            }
            Event::Free { block, size } => {
                live -= size;
                writeln!(text, "f {block}").unwrap();
            }
        });
        for _ in 0..connections {
            device.connect();
        }
        Self { text, peak }
    }

    /// The first events, of the share that is given, and their mark.
    fn first(&self, percent: usize) -> &str {
        let is_event = |line: &&str| !line.starts_with('#');
        let events = self.text.lines().filter(is_event).count() * percent / 100;
        let (mut seen, mut end) = (0, 0);
        for line in self.text.split_inclusive('\n') {
            seen += usize::from(is_event(&line));
            if seen > events {
                break;
            }
            end += line.len();
        }
        &self.text[..end]
    }
}

/// From the first twentieth of the recordings of devices, the arena of 99.9 % is enough for the rest, and is at most 8 % more than that needs with
/// the largest buffers kept. More devices with `ALLOTMENT_DEVICES`, of whom one in twenty may need more or less; `ALLOTMENT_CONNECTIONS` says
/// how often each connects.
#[test]
fn the_rest_of_a_recording_fits() {
    let number = |name, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let devices = number("ALLOTMENT_DEVICES", 2);
    let connections = number("ALLOTMENT_CONNECTIONS", 1500);
    let (_folder, [first, whole]) = files(["first.trace", "whole.trace"]);
    let (mut served, mut close, mut worst, mut sum) = (0, 0, 0.0_f64, 0.0);
    for seed in 1..=devices {
        let device = Recording::of(seed, connections as usize);
        std::fs::write(&first, device.first(5)).unwrap();
        std::fs::write(&whole, &device.text).unwrap();
        let rest = (connections * 95 / 100).to_string();
        let args = ["endure", &first, "--per-year", &rest, "--risk", "0.001", "--episodes", "20000"];
        let output = allotment(args.into_iter().chain(["--confirm", &whole, "--json"]));
        let forecast: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(forecast["reached"], true, "{forecast}");
        assert_eq!(forecast["keep"]["most"], BUFFER, "{forecast}");
        let arena = forecast["arena"].as_u64().unwrap();
        let needed = forecast["confirmed"]["needed"].as_u64().unwrap();
        let more = arena as f64 / needed as f64;
        let curves = forecast["curves"].as_array().unwrap();
        println!(
            "device {seed}: live {}, needs {:.3} of it, forecast {arena} is {more:.3} of that, {}, keep {}; without {}",
            device.peak,
            needed as f64 / device.peak as f64,
            forecast["method"],
            forecast["keep"]["count"],
            curves[0]["arena"],
        );
        served += u64::from(arena >= needed);
        close += u64::from(more <= 1.08);
        worst = worst.max(more);
        sum += more;
    }
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    println!(
        "{served} of {devices} served, {close} with at most 8 % more than needed; {:.1} % in the mean, at most {:.1} %",
        percent(sum / devices as f64),
        percent(worst)
    );
    assert!(served * 20 >= devices * 19, "{served} of {devices}");
    assert!(close * 20 >= devices * 19, "{close} of {devices}, at most {worst}");
}

/// A recording leads by one command to a size, a chance and what to keep, and a longer history of the same device fits in it.
#[test]
fn one_command_says_what_a_longer_history_confirms() {
    let (_folder, [first, whole]) = files(["first.trace", "whole.trace"]);
    let device = Recording::of(100, 1000);
    std::fs::write(&first, device.first(10)).unwrap();
    std::fs::write(&whole, &device.text).unwrap();
    let args = ["endure", &first, "--mark", "connect", "--per-year", "1000", "--episodes", "20000"];
    let text = printed(args);
    let line = text
        .lines()
        .find(|line| line.contains("less than one failure in 100 years"))
        .unwrap_or_else(|| panic!("{text}"));
    let kib: u64 = line.split_once(" KiB").unwrap().0.parse().unwrap();
    assert!(text.contains(" episodes, by the mark connect"), "{text}");
    assert!(text.contains("rule of three") || text.contains("exponential tail"), "{text}");
    let forecast = json(args.into_iter().chain(["--json"]));
    assert_eq!(kib, forecast["arena"].as_u64().unwrap().div_ceil(1024));
    let keep = &forecast["keep"];
    if !keep.is_null() {
        assert!(line.ends_with("keep 16,717 (2 blocks)"), "{line}");
        assert_eq!((&keep["most"], &keep["count"]), (&BUFFER.into(), &2.into()));
    }
    let way = text.lines().find(|line| line.contains("in the way of 16,717 B were at least")).unwrap();
    assert!(!way.contains("of the same episode"), "a buffer comes before what its episode allocates: {way}");
    let confirmed = printed(args.into_iter().chain(["--confirm", &whole]));
    assert!(confirmed.contains(line) && confirmed.contains("\nconfirmed by "), "{confirmed}");
}

#[test]
fn the_same_seed_gives_the_same_answer_and_a_picture() {
    let (_folder, [trace, svg, html, other]) = files(["t.trace", "c.svg", "c.html", "c.png"]);
    std::fs::write(&trace, Recording::of(7, 60).text).unwrap();
    let args = ["endure", &trace, "--per-year", "500", "--episodes", "2000", "--keep", "0"];
    let answer = printed(args.into_iter().chain(["-o", &svg]));
    assert_eq!(answer, printed(args.into_iter().chain(["-o", &html])));
    assert_ne!(answer, printed(args.into_iter().chain(["--seed", "2"])));
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("<polyline"), "{drawn}");
    assert!(std::fs::read_to_string(html).unwrap().contains(&drawn));
    let (status, error) = refused(args.into_iter().chain(["-o", &other]));
    assert!(status == 1 && error.contains("its ending must be .svg or .html"), "{error}");
}

#[test]
fn what_cannot_be_forecast_is_refused_with_a_way_out() {
    let (_folder, [trace]) = files(["t.trace"]);
    std::fs::write(&trace, "a 1 8 8\nf 1\na 1 8 8\n").unwrap();
    let (status, error) = refused(["endure", &trace, "--per-year", "10"]);
    assert!(status == 1 && error.contains("--mark or --tag"), "{error}");
    std::fs::write(&trace, Recording::of(7, 20).text).unwrap();
    let (status, error) = refused(["endure", &trace]);
    assert!(status == 1 && error.contains("say with --per-year"), "{error}");
    let (status, error) =
        refused(["endure", &trace, "--per-year", "10", "--heap", "talc", "--keep", "16717"]);
    assert!(status == 1 && error.contains("--keep 0"), "{error}");
    assert_eq!(refused(["endure", &trace, "--risk", "2"]).0, 2);
}

/// Episodes under a tag, times in nanoseconds, words of a host, on the heaps of other crates and of sizes in their types.
#[test]
fn a_host_s_recording_is_one_of_small_pointers() {
    let (_folder, [trace]) = files(["t.trace"]);
    let mut text = "# clock=ns\na 0 4096 8 @0\n".to_owned();
    for episode in 0..50_u64 {
        let time = (episode + 1) * 3_600_000_000_000;
        let data = 100 + episode * 7 % 90;
        text += &format!("a 1 2400 8 @{time} #net\na 2 {data} 1\na 3 48 8\nf 1\nf 3\nf 2\n");
    }
    std::fs::write(&trace, text).unwrap();
    for heap in ["micro-tlsf", "tiny-heap", "talc", "buddy"] {
        let args =
            ["endure", &trace, "--tag", "net", "--heap", heap, "--episodes", "5000", "--keep", "0", "--json"];
        let [wide, narrow]: [Value; 2] = [json(args), json(args.into_iter().chain(["--pointer", "32"]))];
        let arena = |forecast: &Value| forecast["arena"].as_u64().unwrap();
        assert!(arena(&wide) > arena(&narrow) && arena(&narrow) >= 4096 + 1200, "{heap}: {wide}");
        assert!(wide["per_year"].as_f64().unwrap() > 8000.0, "{wide}");
        assert_eq!(wide["found_by"], "where the tag net begins");
    }
    let output = allotment(["endure", &trace, "--episodes", "1000", "--pointer", "32", "--per-year", "100"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("98 requests of multiples of 24 B were taken for headers"), "{error}");
}
