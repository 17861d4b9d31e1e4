//! The checks, in order. A new check is a line here.

use super::{Step, Tier};
use Tier::{Deep, Full, Landing};

/// Sets of the library's features, by the names that commands below put in braces. `nightly` has steps of its own.
pub const FEATURES: &[(&str, &str)] = &[
    (
        "{all}",
        "alloc,std,critical-section,spin,lock_api,allocator-api2,linked-list,buddy-system,defmt,\
         backtrace,serde",
    ),
    // A shared library, which the planner for C is, does not link with the symbols of defmt.
    (
        "{linked}",
        "alloc,std,critical-section,spin,lock_api,allocator-api2,linked-list,buddy-system,backtrace,serde",
    ),
    ("{asan}", "alloc,linked-list,buddy-system,allocator-api2"),
];

const WARNINGS: (&str, &str) = ("RUSTDOCFLAGS", "-D warnings");

/// All steps. Each is named, says when it runs, and is one command without quotes: words are split at spaces.
///
/// Those that do not build in the common target folder (`boards`, `benches`, and what only checks) run in their order beside
/// the others in theirs.
#[rustfmt::skip]
pub const STEPS: &[Step] = &[
    // What reads the source.
    Step::new("format", Landing, "cargo fmt --all --check"),
    Step::new("clippy, default features", Landing, "cargo clippy --quiet --target-dir target/lint --all-targets -- -D warnings").beside(),
    Step::new("clippy, all features and packages", Landing, "cargo clippy --quiet --target-dir target/lint --workspace --exclude allotment-browser-tests --exclude loom-models --all-targets --features allotment/gpu,allotment/vulkan,{all} -- -D warnings").beside(),
    Step::new("clippy, no features", Landing, "cargo clippy --quiet --target-dir target/lint --no-default-features -- -D warnings").beside(),
    Step::new("clippy, fuzz targets", Full, "cargo clippy --quiet --locked --all-targets -- -D warnings").folder("fuzz"),
    Step::new("clippy, benchmarks", Full, "cargo clippy --quiet --all-targets --no-default-features --features gpu,programs,secure -- -D warnings").folder("benches").beside(),
    Step::new("style of comments", Landing, "cargo xtask lint --style"),
    Step::new("clippy, firmware", Full, "cargo xtask lint").beside(),
    Step::new("documents", Landing, "cargo doc --quiet --target-dir target/lint --no-deps --workspace --exclude loom-models --features allotment/gpu,allotment/vulkan,{all}").env(WARNINGS).beside(),
    Step::new("documents, default features", Full, "cargo doc --quiet --no-deps --workspace").env(WARNINGS),

    // README's two commands. The first is `set-up` here: emulators from an empty cache, then every board once.
    Step::new("set-up", Landing, "cargo xtask prove-setup").beside(),
    Step::new("no emulator", Full, "cargo xtask run --no-emulator").beside(),
    Step::new("boards", Landing, "cargo xtask run --all").beside(),
    Step::new("tests, default features", Landing, "cargo test"),

    // The library in its other forms, and all packages: one command, so that what they share is compiled once.
    Step::new("tests, all features and packages", Landing, "cargo test --no-fail-fast --package allotment --package allotment-event --package allotment-common --package allotment-planner --package allotment-planner-capi --package allotment-trace --package allotment-metrics --package allotment-interpreter --package xtask --package allotment-cli --package allotment-docs --package allotment-stand-in --package allotment-stand-in-driver --features allotment/gpu,allotment-metrics/tracing,{linked}"),
    // What the step before has built plans the same models as the wheel does in a fresh environment.
    Step::new("Python package, installed", Landing, "python3 planner/python/check.py --installed --built"),
    // A driver and its validation from Debian's packages: all messages are expected, and there is a driver, or it fails.
    Step::new("tests, Vulkan", Landing, "cargo xtask vulkan"),
    // A kernel from Debian's packages, on an emulated machine with two nodes.
    Step::new("tests, two nodes", Full, "cargo xtask numa"),
    // Other processors, C libraries and systems, in QEMU's user mode and under Wine.
    Step::new("tests, aarch64 with memory tags", Full, "cargo xtask foreign aarch64").beside(),
    Step::new("tests, riscv64", Full, "cargo xtask foreign riscv64").beside(),
    Step::new("tests, musl", Full, "cargo xtask foreign musl").beside(),
    Step::new("tests, Windows", Full, "cargo xtask foreign windows").beside(),
    Step::new("tests, defmt", Landing, "cargo test --features defmt --test defmt"),
    // The step before the last has built them.
    Step::new("example, host", Landing, "{examples}host"),
    Step::new("example, caches", Landing, "{examples}cached"),
    Step::new("example, service", Landing, "{examples}service 20000"),
    Step::new("example, pressure", Landing, "{examples}under_pressure"),
    Step::new("example, zones", Landing, "{examples}zones"),
    Step::new("example, planned model", Landing, "{examples}planned_model"),
    Step::new("example, value", Landing, "{examples}plain_value"),
    Step::new("tests, gpu alone", Full, "cargo test --features half --lib --test gpu"),
    Step::new("tests, gpu, other seeds", Full, "cargo xtask gpu-seeds 3"),
    Step::new("clippy, C functions for PyTorch", Full, "cargo clippy --quiet --package allotment-capi --features gpu --all-targets -- -D warnings"),
    Step::new("tests, C library", Full, "cargo test --package allotment-capi --features gpu"),
    Step::new("tests, no features", Full, "cargo test --no-default-features --lib --test core"),
    Step::new("tests, release", Full, "cargo test --release --features {all} --lib --test global --test pool"),
    Step::new("tests, release, every placement", Full, "cargo test --release --features {asan} --test core"),
    Step::new("example on the stand-in", Full, "cargo run --release --quiet --features gpu --example gpu_pipeline -- --sim"),
    Step::new("oldest CUDA", Full, "cargo check --quiet --target-dir target/cuda --features gpu").env(("CUDARC_CUDA_VERSION", "11040")),
    // Programs that also depend on another user of cudarc.
    Step::new("beside candle", Full, "cargo check --quiet --locked --target-dir ../../target/beside --features candle").folder("tests/beside").env(("CUDARC_CUDA_VERSION", "12080")),
    Step::new("beside CubeCL", Full, "cargo check --quiet --locked --target-dir ../../target/beside --features cubecl").folder("tests/beside"),
    Step::new("in vulkano", Full, "cargo run --quiet --locked --target-dir ../../target/beside --features vulkano --bin vulkano").folder("tests/beside"),
    // Systems that nothing here runs: the standard library is checked with it, since its compiled form is not to be had.
    Step::new("Windows", Full, "rustup run nightly cargo check --quiet -Zbuild-std=std,panic_abort --target-dir target/systems --target x86_64-pc-windows-msvc --no-default-features --features std --lib"),
    Step::new("Windows, gpu", Full, "rustup run nightly cargo check --quiet -Zbuild-std=std,panic_abort --target-dir target/systems --target x86_64-pc-windows-msvc --no-default-features --features gpu --lib").env(("RUSTFLAGS", "-D warnings")),
    Step::new("macOS", Full, "rustup run nightly cargo check --quiet -Zbuild-std=std,panic_abort --target-dir target/systems --target aarch64-apple-darwin --no-default-features --features std --lib"),
    Step::new("Android", Full, "rustup run nightly cargo check --quiet -Zbuild-std=std,panic_abort --target-dir target/systems --target aarch64-linux-android --no-default-features --features std --lib"),
    Step::new("Android, C library", Full, "rustup run nightly cargo check --quiet -Zbuild-std=std,panic_abort --target-dir target/systems --target aarch64-linux-android --package allotment-capi"),
    Step::new("iOS", Full, "rustup run nightly cargo check --quiet -Zbuild-std=std,panic_abort --target-dir target/systems --target aarch64-apple-ios --no-default-features --features std --lib"),
    Step::new("stated Rust version", Full, "rustup run {msrv} cargo check --quiet --target-dir target/msrv --features {all}"),

    // Packages in ways of their own.
    Step::new("host tool alone", Full, "cargo check --quiet --package allotment-cli"),
    Step::new("Python package", Full, "python3 planner/python/check.py"),
    Step::new("tests, page in a browser", Full, "cargo test --package allotment-browser-tests"),
    Step::new("clippy, page in a browser", Full, "cargo clippy --quiet --package allotment-browser-tests --all-targets -- -D warnings"),
    Step::new("tests, firmware's parts", Full, "cargo test --package demo --package boards --lib").folder("boards").beside(),
    Step::new("tests, benchmarks", Full, "cargo test --no-default-features --features gpu,programs").folder("benches").beside(),

    Step::new("book", Full, "cargo xtask book"),
    Step::new("tests, book's renderer", Full, "cargo test --quiet --locked --package allotment-docs --features book --bin book"),
    Step::new("clippy, book's renderer", Full, "cargo clippy --quiet --locked --package allotment-docs --features book --all-targets -- -D warnings"),

    // Firmware: what is only linked, traces from a device, and instructions. The two ceilings are 5 % above the counts.
    Step::new("library's targets", Landing, "cargo xtask check-targets").beside(),
    Step::new("flash before and after moving", Landing, "cargo xtask measure --ports").beside(),
    Step::new("firmware in C", Full, "cargo xtask c-firmware").beside(),
    Step::new("boards that are linked", Full, "cargo xtask link").beside(),
    Step::new("trace of a device", Full, "cargo xtask run --trace target/ci/demo.bin").beside(),
    Step::new("callers of a device", Full, "cargo xtask run mps2-an505 --trace target/ci/rtt.bin").beside(),
    Step::new("a device followed", Full, "cargo run --quiet --package allotment-cli -- attach --elf {firmware} --output target/ci/rtt.trace --view target/ci/rtt.html -- qemu-system-arm -machine mps2-an505 -nographic -monitor none -serial null -semihosting-config enable=on,target=native -kernel {firmware}").beside(),
    // The functions that allocate, by name: in the page, and in a trace that came without them.
    Step::new("a device's functions, drawn", Full, "grep --quiet --fixed-strings mps2_an505::received target/ci/rtt.html").beside(),
    Step::new("a device's functions", Full, "cargo run --quiet --package allotment-cli -- convert --by calls --elf {firmware} target/ci/rtt.bin target/ci/rtt.folded").beside(),
    Step::new("a device's functions, one named", Full, "grep --quiet --extended-regexp ^PendSV;.*mps2_an505::received target/ci/rtt.folded").beside(),
    Step::new("instruction ceilings", Landing, "cargo xtask bench --check --no-native").beside(),
    Step::new("instruction ceilings, slow ones", Full, "cargo xtask bench --check --slow --no-native").beside(),
    Step::new("worst-case ceilings", Full, "cargo xtask wcet --check").beside(),
    Step::new("ceilings of masked times", Full, "cargo xtask wcet --masked --check").beside(),

    // Workers that share a module's memory, and its heap with caches.
    Step::new("WebAssembly with threads", Full, "cargo xtask wasm --threads"),

    // Whole programs on our `malloc`, with an eighth of the work that is timed: the same output, forks, limits. It takes some 20 s.
    Step::new("programs on malloc", Landing, "cargo xtask malloc --check").beside(),

    // What users get.
    Step::new("packages to publish", Full, "cargo package --quiet --allow-dirty --package allotment-event --package allotment --package allotment-metrics --package allotment-trace --package allotment-planner --package allotment-planner-capi --package allotment-common --package allotment-cli"),
    Step::new("tests, gpu, 100 seeds", Deep, "cargo xtask gpu-seeds 100"),
    Step::new("GPU bundle", Deep, "cargo xtask gpu-bundle --check"),

    // What a nightly compiler can look for.
    Step::new("nightly", Full, "rustup run nightly cargo test --target-dir target/nightly --features nightly,alloc --test core -- heap:: regions::"),
    Step::new("nightly, doc tests", Full, "rustup run nightly cargo test --target-dir target/nightly --features nightly,alloc --doc"),
    // Out-of-bounds accesses of the library, and of the tests themselves, some of which leak memory so that it is static.
    Step::new("address sanitizer", Deep, "env ASAN_OPTIONS=detect_leaks=0 rustup run nightly cargo test --target-dir target/asan --target {host} --features {asan} --test core -- edges:: regions:: random:: arena:: tiny::").env(("RUSTFLAGS", "-Zsanitizer=address")),
    Step::new("address sanitizer, plans", Deep, "env ASAN_OPTIONS=detect_leaks=0 rustup run nightly cargo test --target-dir target/asan --target {host} --features {asan} --test plan").env(("RUSTFLAGS", "-Zsanitizer=address")),
    // What both tools report of blocks of a heap, which tells them.
    Step::new("address sanitizer, blocks of a heap", Deep, "rustup run nightly cargo test --target-dir target/asan --target {host} --no-default-features --features sanitize --test sanitize").env(("RUSTFLAGS", "-Zsanitizer=address")),
    Step::new("valgrind, blocks of a heap", Full, "cargo test --features sanitize --test sanitize"),
    // Data races between threads' caches. The standard library must be instrumented as well.
    Step::new("thread sanitizer", Deep, "rustup run nightly cargo test -Zbuild-std --target-dir target/tsan --target {host} --features std --test core --test cached_global -- threads").env(("RUSTFLAGS", "-Zsanitizer=thread")),
    // Another C library, and the oldest compiler, for which thread-local destructors are lists on the heap.
    Step::new("caches with musl", Deep, "rustup run {msrv} cargo run --locked --package musl --target x86_64-unknown-linux-musl --target-dir target/musl"),
    Step::new("growing heap with musl", Deep, "rustup run {msrv} cargo run --locked --package musl --bin growing --target x86_64-unknown-linux-musl --target-dir target/musl"),
    Step::new("miri", Deep, "rustup run nightly cargo miri test --target-dir target/miri --lib -- harden:: region::"),
    // Blocks that are asked about while other threads write to them; caches, depot, and the heap that grows on memory of the interpreter.
    Step::new("miri, threads", Deep, "rustup run nightly cargo miri test --target-dir target/miri --no-default-features --features std --lib -- os::tests os::cached os::cache::lists os::depot os::rack lock::futex").env(("MIRIFLAGS", "-Zmiri-permissive-provenance")),
    // Small random runs of every placement. Links in blocks are offsets, which Miri allows only without strict provenance.
    Step::new("miri, every placement", Deep, "rustup run nightly cargo miri test --target-dir target/miri --features spin,allocator-api2,alloc --test core -- random::short_runs").env(("MIRIFLAGS", "-Zmiri-permissive-provenance")),
    // Every sequence of four steps in arenas of a few granules; three among all tests.
    Step::new("small worlds", Deep, "cargo test --release --features {all} --test core -- --nocapture misuse::worlds").env(("ALLOTMENT_WORLD_DEPTH", "4")),
    // Size classes, rounding and boundary bits for all inputs, by the solver z3; what threads share, in every order, by loom.
    Step::new("proofs", Deep, "python3 tests/proofs/prove.py"),
    Step::new("loom", Deep, "cargo run --quiet --locked --profile models --target-dir target/loom --package loom-models"),
    // Of all that is linked into anything here, by cargo-deny (`cargo install cargo-deny`).
    Step::new("licences", Deep, "cargo deny check licenses bans sources"),
    Step::new("licences, benchmarks", Deep, "cargo deny --config ../deny.toml check licenses bans sources").folder("benches"),
    Step::new("licences, firmware", Deep, "cargo deny --config ../deny.toml check licenses bans sources").folder("boards"),
    Step::new("licences, fuzz targets", Deep, "cargo deny --config ../deny.toml check licenses bans sources").folder("fuzz"),
    Step::new("licences, programs beside", Deep, "cargo deny --config ../../deny.toml check licenses bans sources").folder("tests/beside"),
    Step::new("advisories", Deep, "cargo deny check advisories"),
    Step::new("advisories, benchmarks", Deep, "cargo deny --config ../deny.toml check advisories").folder("benches"),
    Step::new("advisories, firmware", Deep, "cargo deny --config ../deny.toml check advisories").folder("boards"),
    Step::new("advisories, fuzz targets", Deep, "cargo deny --config ../deny.toml check advisories").folder("fuzz"),
    Step::new("advisories, programs beside", Deep, "cargo deny --config ../../deny.toml check advisories").folder("tests/beside"),
    Step::new("mutation", Deep, "cargo xtask mutants --shard 0/200"),
    Step::new("fuzz", Deep, "cargo xtask fuzz --seconds 60"),
];
