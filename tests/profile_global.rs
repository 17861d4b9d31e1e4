//! A sampled heap as the global allocator of this test program.
#![cfg(all(feature = "backtrace", unix))]

use allotment::os::Growing;
use allotment::{Heap, HeapProfile, Memory, heap};
use allotment_trace::{Reader, decompressed};
use std::alloc::Layout;
use std::hint::black_box;
use std::io::Read;
use std::sync::Mutex;

const MEAN: u64 = 16 * 1024;

#[global_allocator]
static HEAP: HeapProfile<Growing> = HeapProfile::new(Growing::new(), MEAN);

/// Tests run one at a time, because they share the heap.
static ALONE: Mutex<()> = Mutex::new(());

#[inline(never)]
fn holds(count: usize, size: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| black_box(vec![n as u8; size])).collect()
}

/// The bytes and blocks that a trace says the function holds.
fn held(function: &str) -> (f64, f64) {
    let mut trace = Vec::new();
    HEAP.write_trace(&mut trace).unwrap();
    let mut reader = Reader::new(&*trace).unwrap().with_stacks();
    let sampling = reader.header().sampling().unwrap();
    assert_eq!(sampling.mean, MEAN);
    let mut events = Vec::new();
    for event in &mut reader {
        events.push(event.unwrap());
    }
    let stacks = reader.take_stacks();
    let (mut bytes, mut blocks) = (0.0, 0.0);
    for event in events {
        let (mut node, mut is_there) = (event.stack, false);
        while let Some(at) = stacks.node(node) {
            is_there |= stacks.frames(at).iter().any(|frame| frame.function.contains(function));
            node = at.parent;
        }
        if is_there {
            let allotment_trace::Action::Allocate { size, .. } = event.event.action else {
                panic!("{event:?}")
            };
            bytes += sampling.weight(size) * size as f64;
            blocks += sampling.weight(size);
        }
    }
    (bytes, blocks)
}

/// A block that is freed while a profile is written is not live in the next one.
#[test]
fn what_a_writer_frees_is_forgotten() {
    let _alone = ALONE.lock().unwrap();
    #[inline(never)]
    fn buffer_of_a_writer() -> std::io::BufWriter<std::io::Sink> {
        std::io::BufWriter::with_capacity(50 * MEAN as usize, std::io::sink())
    }
    HEAP.write_trace(buffer_of_a_writer()).unwrap();
    assert_eq!(held("buffer_of_a_writer"), (0.0, 0.0));
}

#[test]
fn what_a_function_holds_is_estimated() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let kept = holds(20_000, 300);
    let expected = 20_000.0 * 300.0 + 20_000.0 * 24.0;
    let (bytes, blocks) = held("::holds");
    // Three deviations.
    let error = 3.0 * (MEAN as f64 * expected).sqrt();
    assert!((bytes - expected).abs() < error, "{bytes} of {expected}");
    assert!((blocks / 20_001.0 - 1.0).abs() < 0.25, "{blocks}");
    drop(kept);
    let (bytes, _) = held("::holds");
    assert_eq!(bytes, 0.0, "what is freed is not held");
}

#[test]
fn threads_free_each_others_blocks() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (send, receive) = std::sync::mpsc::channel::<Vec<u8>>();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let send = send.clone();
            std::thread::spawn(move || {
                for n in 0..5000 {
                    let mut block = vec![0_u8; 50 + n % 500];
                    block.reserve_exact(n % 2000);
                    send.send(block).unwrap();
                }
            })
        })
        .collect();
    drop(send);
    assert_eq!(receive.iter().map(|block| usize::from(block.len() >= 50)).sum::<usize>(), 15_000);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(held("threads_free_each_others_blocks").0, 0.0);
}

/// Numbers and messages of a message of Protocol Buffers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = varint(&mut bytes);
        let mut content = &bytes[..0];
        if key & 7 == 2 {
            (content, bytes) = bytes.split_at(value as usize);
        }
        found.push((key >> 3, value, content));
    }
    found
}

#[test]
fn pprof_has_the_same_figures() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let kept = holds(10_000, 700);
    let mut profile = Vec::new();
    HEAP.write_pprof(&mut profile).unwrap();
    let mut bytes = Vec::new();
    decompressed(&*profile).unwrap().read_to_end(&mut bytes).unwrap();
    let fields_of = fields(&bytes);
    let texts: Vec<&str> = fields_of
        .iter()
        .filter(|field| field.0 == 6)
        .map(|field| std::str::from_utf8(field.2).unwrap())
        .collect();
    assert_eq!(texts[0], "");
    let default = fields_of.iter().find(|field| field.0 == 14).unwrap().1;
    assert_eq!(texts[default as usize], "inuse_space");
    assert_eq!(fields_of.iter().find(|field| field.0 == 12).unwrap().1, MEAN);
    assert!(texts.iter().any(|text| text.contains("::holds")));
    let live: u64 = fields_of
        .iter()
        .filter(|field| field.0 == 2)
        .map(|field| fields(field.2).iter().filter(|field| field.0 == 2).map(|field| field.1).nth(3).unwrap())
        .sum();
    // Every frame has a name.
    let (all, _) = held("");
    assert!(all > 5_000_000.0 && (live as f64 / all - 1.0).abs() < 0.05, "{live} of {all}");
    drop(kept);
}

/// Two fronts of different means in one thread, a heap of its own, and what a failing writer says.
#[test]
fn a_heap_of_its_own_is_sampled_as_well() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let sampled: HeapProfile<Heap> = HeapProfile::new(heap!(64 * 1024), 1);
    let layout = Layout::new::<[u8; 100]>();
    let blocks: Vec<_> = (0..100).map(|_| sampled.try_allocate(layout).unwrap()).collect();
    let mut trace = Vec::new();
    sampled.write_trace(&mut trace).unwrap();
    assert_eq!(Reader::new(&*trace).unwrap().count(), 100);
    for block in blocks {
        // SAFETY: the block is live.
        unsafe { sampled.try_deallocate(block, layout) }.unwrap();
    }
    let mut trace = Vec::new();
    sampled.write_trace(&mut trace).unwrap();
    assert_eq!(String::from_utf8(trace).unwrap(), "# name=profile events=0 sample=1\n");
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no space"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    assert_eq!(sampled.write_pprof(Full).unwrap_err().to_string(), "no space");
}
