//! Runs the program as users do: in simulation, on the stand-in driver, and with the script for its peers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use allotment_benches::gpu;
use allotment_benches::results::{self, Results};
use allotment_benches::rmm::{Nothing, workload};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-bench")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(folder: &Path, name: &str) -> Results {
    results::read(folder, name).unwrap().unwrap()
}

/// Returns the subjects of this metric, which must have a positive figure in every case.
fn subjects(results: &Results, metric: &str) -> BTreeSet<String> {
    let (cases, subjects) = (results.cases(metric), results.subjects(metric));
    assert!(!cases.is_empty(), "{metric}");
    for subject in &subjects {
        for case in &cases {
            let value =
                results.get(metric, case, subject).unwrap_or_else(|| panic!("{metric}, {case}, {subject}"));
            assert!(value > 0.0 && value.is_finite(), "{metric}, {case}, {subject}: {value}");
        }
    }
    subjects.into_iter().collect()
}

const OWN: [&str; 2] = ["allotment-pool", "allotment-pool, virtual"];

#[test]
fn in_simulation_every_measure_has_figures() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sim.csv");
    let output = bench(&["--sim", "--quick", "--revision", "r1", "--output", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results = read(folder.path(), "sim");
    let origin = results.origin.join("\n");
    assert!(origin.contains("device: none") && origin.contains("allotment at r1"), "{origin}");
    for metric in
        [gpu::WARM, gpu::COLD, gpu::WAITED, gpu::RMM, gpu::HOLES, gpu::STREAMS, gpu::FIRST, gpu::AGAIN]
    {
        let found = subjects(&results, metric);
        assert!(
            OWN.iter().all(|own| found.contains(*own)) && found.contains(gpu::HARNESS),
            "{metric}: {found:?}"
        );
        assert_eq!(
            found.len(),
            if [gpu::FIRST, gpu::AGAIN].contains(&metric) { 5 } else { 3 },
            "{metric}: {found:?}"
        );
    }
    for name in results.cases(gpu::RESERVED) {
        let lean = results.get(gpu::RESERVED, &name, "allotment-pool, virtual, lean").unwrap();
        let plain = results.get(gpu::RESERVED, &name, "allotment-pool").unwrap();
        assert!((1.0..=plain).contains(&lean), "{name}: {lean} {plain}");
    }
    let tables = text(&output.stdout);
    assert!(tables.contains("#### Many holes") && !tables.contains("Pinned copies"), "{tables}");
}

#[test]
fn on_the_stand_in_peers_run_but_have_no_figures() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stand-in.csv");
    let output = bench(&["--stand-in", "--quick", "--rounds", "1", "--output", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results = read(folder.path(), "stand-in");
    assert!(
        results.origin.iter().any(|line| line.starts_with("driver: the stand-in")),
        "{:?}",
        results.origin
    );
    assert!(results.origin.iter().any(|line| line.contains("at most 1024 MiB")), "a quarter of 4 GiB");
    assert_eq!(subjects(&results, gpu::WARM), OWN.map(String::from).into());
    assert_eq!(subjects(&results, gpu::STREAMS), OWN.map(String::from).into());
    // Sequences take hardly more than a paged cache where pages have a block's length, and need no table.
    assert_eq!(subjects(&results, gpu::KV_CALLS).len(), 3);
    let memory = |subject: &str| results.get(gpu::KV_MEMORY, "128 KiB per token", subject).unwrap();
    let (ours, paged) = (memory("`KvCache`"), memory("blocks of 16 tokens and a table"));
    assert!((1.0..1.1).contains(&(ours / paged)), "{ours} {paged}");
    assert!(memory("room for the longest, from a pool") > ours);
}

#[test]
fn memory_is_a_limit() {
    let output = bench(&["--sim", "--quick", "--memory", "8", "pairs", "rmm", "replay"]);
    let (tables, notes) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{notes}");
    assert!(tables.contains("| 1 MiB |") && !tables.contains("10 MiB"), "{tables}");
    assert!(
        notes.contains("1000, 1: needs --memory 386") && notes.contains("gpt_train: needs --memory"),
        "{notes}"
    );
    assert_eq!(notes.matches("1000, 1: ").count(), 1, "said once: {notes}");
    let output = bench(&["--sim", "--quick", "--memory", "8", "rmm"]);
    assert!(!output.status.success() && text(&output.stderr).contains("nothing could be measured"));
    // An odd number of MiB, all in one segment.
    let output = bench(&["--stand-in", "--quick", "--memory", "511", "rmm"]);
    assert!(text(&output.stdout).contains("| allotment-pool |"), "{}", text(&output.stderr));
    // More memory than the device has.
    let output = bench(&["--stand-in", "--quick", "--memory", "5000", "pairs"]);
    assert!(!output.status.success() && text(&output.stderr).contains("only 4096 MiB are free"));
}

#[test]
fn wrong_usage_is_refused_before_anything_is_measured() {
    let wrong: [(&[&str], &str); 5] = [
        (&["--sim", "none"], "there is no measure"),
        (&["--sim", "--output", "figures.txt"], "must end in .csv"),
        (&["--sim", "--stand-in"], "cannot be used with"),
        (&["--sim", "--rounds", "0"], "--rounds"),
        (&["report", "missing.csv"], "there is no missing.csv"),
    ];
    for (arguments, message) in wrong {
        let output = bench(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text(&output.stderr).contains(message), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// A measure ends with the rounds that it has, and its figures are written.
#[test]
fn seconds_bound_a_measure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bounded.csv");
    let output = bench(&[
        "--sim",
        "--quick",
        "--rounds",
        "1000000",
        "--seconds",
        "1",
        "--output",
        file.to_str().unwrap(),
        "pairs",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--seconds"), "{}", text(&output.stderr));
    assert_eq!(read(folder.path(), "bounded").cases(gpu::WARM).len(), 5);
}

/// Runs peers.py with our modules and without installed ones; `None` without Python.
fn peers(modules: &Path, arguments: &[&str]) -> Option<Output> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/peers.py");
    let mut python = Command::new("python3");
    // Without site-packages, so that installed packages have no effect.
    python.arg("-S").arg("-B").arg(script).args(arguments).env("PYTHONPATH", modules);
    match python.output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: python3 does not start: {error}");
            None
        }
    }
}

#[test]
fn without_peers_the_script_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = peers(folder.path(), &[]) else { return };
    assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("neither PyTorch nor CuPy is installed"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_script_draws_the_same_requests() {
    let program = "import peers\nfor count, most in [(1000, 1), (1000, 4096), (10000, 64)]:\n    \
                   p, _ = peers.rmm(count, most)\n    print(p.peak, p.slots, len(p.ops))";
    let mut python = Command::new("python3");
    python.args(["-S", "-B", "-c", program]).env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/gpu"));
    let Ok(output) = python.output() else { return eprintln!("skipped: python3 does not start") };
    let mut wanted = String::new();
    for (count, most) in [(1000, 1), (1000, 4096), (10_000, 64)] {
        let own = workload(&mut Nothing, count, most);
        wanted += &format!("{} {} {}\n", own.peak, own.blocks, 2 * count);
    }
    assert_eq!(text(&output.stdout), wanted, "{}", text(&output.stderr));
}

/// The part of CuPy's interface that the script uses, without a device.
const CUPY: &str = r#"
__version__ = "0.0"
class cuda:
    class memory:
        class OutOfMemoryError(Exception): pass
    class runtime:
        @staticmethod
        def memGetInfo(): return (4 << 30, 4 << 30)
    @staticmethod
    def get_current_stream():
        class Stream:
            def synchronize(self): pass
        return Stream()
    class MemoryPool:
        def __init__(self): self.size = 0
        def set_limit(self, size): self.limit = size
        def free_all_blocks(self): pass
        def total_bytes(self): return self.size
        def malloc(self, size):
            if size > self.limit: raise cuda.memory.OutOfMemoryError()
            self.size = max(self.size, size)
            return object()
"#;

/// The same for PyTorch, without support for building extensions.
const TORCH: &str = r#"
__version__ = "0.0"
class version:
    cuda = "0"
class cuda:
    live, high, last = {}, 0, 0
    class OutOfMemoryError(RuntimeError): pass
    @staticmethod
    def is_available(): return True
    @staticmethod
    def mem_get_info(): return (4 << 30, 4 << 30)
    @staticmethod
    def get_device_name(): return "nothing"
    @staticmethod
    def set_per_process_memory_fraction(part): cuda.limit = part * (4 << 30)
    @staticmethod
    def current_stream():
        class Stream:
            def synchronize(self): pass
        return Stream()
    @staticmethod
    def caching_allocator_alloc(size):
        if size > cuda.limit: raise cuda.OutOfMemoryError()
        cuda.last += 1
        cuda.live[cuda.last] = size
        cuda.high = max(cuda.high, size)
        return cuda.last
    @staticmethod
    def caching_allocator_delete(address): del cuda.live[address]
    @staticmethod
    def synchronize(): pass
    @staticmethod
    def empty_cache(): assert not cuda.live, "something is left"
    @staticmethod
    def reset_peak_memory_stats(): cuda.high = 0
    @staticmethod
    def max_memory_reserved(): return cuda.high
"#;

#[test]
fn pytorch_is_measured_without_an_extension_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("torch.py"), TORCH).unwrap();
    fs::create_dir(path("traces")).unwrap();
    fs::write(path("traces/small.trace"), "# small\na 0 100 0\na 1 0 0\nf 0\na 2 300 0 @5 #tag\n").unwrap();
    let arguments = [
        "--quick",
        "--rounds",
        "1",
        "--memory",
        "64",
        "--traces",
        &path("traces"),
        "--output",
        &path("peers.csv"),
    ];
    let Some(output) = peers(folder.path(), &arguments) else { return };
    let notes = text(&output.stderr);
    assert!(output.status.success(), "{notes}");
    for wanted in ["cannot be called from C++ here", "CuPy is not installed", "100 MiB: no room for PyTorch"]
    {
        assert!(notes.contains(wanted), "{wanted}: {notes}");
    }
    let found = read(folder.path(), "peers");
    assert!(found.origin.iter().any(|line| line.contains("at most 64 MiB")), "{:?}", found.origin);
    for metric in [gpu::WARM, gpu::COLD, gpu::WAITED, gpu::HOLES, gpu::FIRST, gpu::AGAIN] {
        assert!(found.subjects(metric).contains(&"PyTorch".to_owned()), "{metric}");
    }
    assert_eq!(
        found.get(gpu::RESERVED, "small", "PyTorch"),
        Some(300.0 / 301.0 * 10_000.0).map(|v| f64::round(v) / 10_000.0)
    );
}

#[test]
fn figures_of_peers_stand_in_the_same_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("cupy.py"), CUPY).unwrap();
    assert!(bench(&["traces", &path("traces")]).status.success());
    let arguments = [
        "--quick",
        "--rounds",
        "1",
        "--memory",
        "512",
        "--traces",
        &path("traces"),
        "--output",
        &path("peers.csv"),
    ];
    let Some(output) = peers(folder.path(), &arguments) else { return };
    let notes = text(&output.stderr);
    assert!(output.status.success() && notes.contains("PyTorch is not installed"), "{notes}");
    assert!(notes.contains("1000, 4: needs --memory"), "{notes}");
    let found = read(folder.path(), "peers");
    for metric in [gpu::WARM, gpu::COLD, gpu::WAITED, gpu::RMM, gpu::HOLES, gpu::FIRST, gpu::AGAIN] {
        let names = subjects(&found, metric);
        assert!(names.contains("CuPy"), "{metric}: {names:?}");
    }
    assert_eq!(found.cases(gpu::RESERVED).len(), 3);

    // Run the same cases as ours, so that one table holds both.
    let output =
        bench(&["--sim", "--quick", "--rounds", "1", "--memory", "512", "--output", &path("ours.csv")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let ours = read(folder.path(), "ours");
    for metric in
        [gpu::WARM, gpu::COLD, gpu::WAITED, gpu::RMM, gpu::HOLES, gpu::FIRST, gpu::AGAIN, gpu::RESERVED]
    {
        let sorted = |results: &Results| results.cases(metric).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(sorted(&ours), sorted(&found), "{metric}");
    }
    let output = bench(&["report", "--csv", &path("all.csv"), &path("ours.csv"), &path("peers.csv")]);
    let tables = text(&output.stdout);
    let warm = tables.split("####").find(|table| table.starts_with(" Allocation and free, warm")).unwrap();
    assert!(warm.contains("| allotment-pool |") && warm.contains("| CuPy |"), "{warm}");
    let all = read(folder.path(), "all");
    assert_eq!(all.rows.len(), ours.rows.len() + found.rows.len());
    assert!(all.origin.iter().any(|line| line.starts_with("CuPy 0.0")), "{:?}", all.origin);
}
