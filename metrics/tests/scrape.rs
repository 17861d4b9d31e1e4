//! A scrape of a program with a heap of each kind, as Prometheus does it.

use std::alloc::Layout;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use allotment::lock::{Contention, Counted, Futex, Unsync};
use allotment::observe::Timings;
use allotment::os::{Growing, GrowingStats};
use allotment::pool::{DevicePool, PoolOptions, PoolStats, SourceCalls};
use allotment::sim::DeviceMemory;
use allotment::{Heap, Memory as _, Region, Stats, Timed, Tlsf, Tlsf16, heap};
use allotment_metrics::Memory;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

#[global_allocator]
static HEAP: Growing = Growing::new();

/// A heap with one live block, that has refused one request.
fn stats_of_a_heap() -> Stats {
    let mut memory = [0_u64; 128];
    let heap = Heap::<Tlsf16, Unsync>::empty();
    // SAFETY: the array outlives the heap, which is the only one to use it.
    unsafe { heap.claim(Region::new(memory.as_mut_ptr(), size_of_val(&memory))) }.unwrap();
    heap.try_allocate(Layout::new::<[u64; 9]>()).unwrap();
    heap.try_allocate(Layout::new::<[u64; 900]>()).unwrap_err();
    heap.stats()
}

/// The timings and the lock's counts of a heap in which an allocation took 100 ns and another one 3 µs.
fn counts_of_a_heap() -> (Timings, Contention) {
    static CLOCK: AtomicU64 = AtomicU64::new(0);
    static STEP: AtomicU64 = AtomicU64::new(100);
    static HEAP: Timed<Heap<Tlsf, Counted<Futex>>> =
        Timed::new(heap!(4096), || CLOCK.fetch_add(STEP.load(Relaxed), Relaxed));
    static COUNTS: LazyLock<(Timings, Contention)> = LazyLock::new(|| {
        HEAP.try_allocate(Layout::new::<u64>()).unwrap();
        STEP.store(3000, Relaxed);
        HEAP.try_allocate(Layout::new::<u64>()).unwrap();
        (HEAP.timings(), HEAP.memory().contention())
    });
    *COUNTS
}

/// The statistics of a timed pool with a live block, whose source took 50 µs for it.
fn stats_of_a_pool() -> PoolStats {
    let device = DeviceMemory::<false>::new(8 << 20).with_latency(Duration::from_micros(50), Duration::ZERO);
    let pool = DevicePool::new(device.clone(), PoolOptions::new().timed(true)).unwrap();
    let _block = pool.allocate(1000, &device.stream()).unwrap();
    device.advance(Duration::from_micros(50));
    pool.stats()
}

fn registry() -> Registry {
    let stats = stats_of_a_heap();
    let heap = move || stats;
    let growing = || GrowingStats { used: 5, committed: 4096, purged: 8192, ..GrowingStats::default() };
    let calls = SourceCalls { synchronize: 3, time: Duration::from_millis(1500), ..SourceCalls::default() };
    let pool = move || PoolStats { hits: 7, misses: 1, calls, lock_waits: 3, ..PoolStats::default() };
    let timed = stats_of_a_pool();
    let mut registry = Registry::default();
    let (timings, contention) = counts_of_a_heap();
    registry.register_collector(Box::new(
        Memory::default()
            .heap("main", heap)
            .growing("host", growing)
            .pool("gpu \"0\"", pool)
            .pool("sim", move || timed)
            .timings("timed", 1e9, move || timings)
            .contention("timed", move || contention),
    ));
    registry
}

/// Every metric is named once, with one value for each heap that has it, as OpenMetrics wants.
#[test]
fn each_metric_stands_once() {
    let mut text = String::new();
    encode(&mut text, &registry()).unwrap();
    let kinds: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let mut names = kinds.clone();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), kinds.len()), (20, 20), "{text}");
    for line in [
        "# TYPE allotment_memory_used_bytes gauge",
        "# UNIT allotment_memory_used_bytes bytes",
        "allotment_memory_blocks{heap=\"main\"} 1",
        "# TYPE allotment_memory_operation_duration_seconds histogram",
        "allotment_memory_operation_duration_seconds_sum{heap=\"timed\",operation=\"allocate\"} 0.0000031",
        "allotment_memory_operation_duration_seconds_count{heap=\"timed\",operation=\"allocate\"} 2",
        "allotment_memory_operation_duration_seconds_bucket{le=\"1.28e-7\",heap=\"timed\",operation=\"allocate\"} 1",
        "allotment_memory_operation_duration_seconds_bucket{le=\"0.000004096\",heap=\"timed\",operation=\"allocate\"} 2",
        "allotment_memory_operation_duration_seconds_bucket{le=\"+Inf\",heap=\"timed\",operation=\"free\"} 0",
        "allotment_memory_lock_waits_total{heap=\"timed\"} 0",
        "allotment_memory_used_bytes{heap=\"host\"} 5",
        "allotment_memory_failures_total{heap=\"main\"} 1",
        "allotment_memory_released_bytes_total{heap=\"host\"} 8192",
        "allotment_memory_requests_total{heap=\"gpu \\\"0\\\"\",result=\"miss\"} 1",
        "allotment_memory_waits_total{heap=\"gpu \\\"0\\\"\"} 3",
        "allotment_memory_source_seconds_total{heap=\"gpu \\\"0\\\"\"} 1.5",
        "allotment_memory_lock_waits_total{heap=\"gpu \\\"0\\\"\"} 3",
        "allotment_memory_mean_bytes{heap=\"sim\"} 500",
        "allotment_memory_operation_duration_seconds_sum{heap=\"sim\",operation=\"allocate\"} 0.00005",
        "allotment_memory_recovery_seconds_total{heap=\"sim\",stage=\"growth\"} 0.00005",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}: {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

/// The recipe of the book: a server that answers with the stats of this moment.
#[test]
fn a_scrape_has_the_figures_of_its_moment() {
    let server = tiny_http::Server::http("127.0.0.1:0").unwrap();
    let address = server.server_addr().to_ip().unwrap();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Memory::default().growing("main", || HEAP.stats())));
    let answering = thread::spawn(move || {
        for request in server.incoming_requests().take(2) {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            request.respond(tiny_http::Response::from_string(text)).unwrap();
        }
    });
    let scrape = || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let used = |answer: String| {
        let line =
            answer.lines().find_map(|line| line.strip_prefix("allotment_memory_used_bytes{heap=\"main\"} "));
        line.unwrap_or_else(|| panic!("{answer}")).parse::<u64>().unwrap()
    };
    let before = used(scrape());
    let held = vec![1_u8; 64 << 20];
    let after = used(scrape());
    assert!(held[7] == 1 && after >= before + (63 << 20), "{before} to {after}");
    answering.join().unwrap();
}
