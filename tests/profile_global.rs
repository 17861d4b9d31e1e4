//! A sampled heap as the global allocator of this test program.
#![cfg(all(feature = "backtrace", unix))]

use allotment::lock::Lock;
use allotment::os::Growing;
use allotment::{Heap, HeapProfile, Memory, heap};
use allotment_trace::decompressed;
use std::alloc::Layout;
use std::collections::BTreeSet;
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

/// The bytes and blocks that a profile says the function holds.
fn held<L: Lock, M: Memory>(heap: &HeapProfile<M, L>, function: &str) -> (u64, u64) {
    let mut profile = Vec::new();
    heap.write_pprof(&mut profile).unwrap();
    let mut bytes = Vec::new();
    decompressed(&*profile).unwrap().read_to_end(&mut bytes).unwrap();
    let profile = fields(&bytes);
    let messages = |number: u64| profile.iter().filter(move |field| field.0 == number).map(|field| field.2);
    let number = |message: &[u8], number: u64| {
        fields(message).iter().find(|field| field.0 == number).map(|field| field.1)
    };
    let texts: Vec<&[u8]> = messages(6).collect();
    let is_wanted = |id: u64| {
        let name = messages(5)
            .find(|message| number(message, 1) == Some(id))
            .and_then(|message| number(message, 2))
            .unwrap();
        std::str::from_utf8(texts[name as usize]).unwrap().contains(function)
    };
    let wanted: BTreeSet<u64> = messages(4)
        .filter(|place| fields(place).iter().any(|line| line.0 == 4 && is_wanted(number(line.2, 1).unwrap())))
        .map(|place| number(place, 1).unwrap())
        .collect();
    let (mut bytes, mut blocks) = (0, 0);
    for sample in messages(2).map(fields) {
        let of = |number: u64| sample.iter().filter(move |field| field.0 == number).map(|field| field.1);
        if of(1).any(|place| wanted.contains(&place)) {
            blocks += of(2).nth(2).unwrap();
            bytes += of(2).nth(3).unwrap();
        }
    }
    (bytes, blocks)
}

#[test]
fn what_a_function_holds_is_estimated() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let kept = holds(20_000, 300);
    let expected = 20_000.0 * 300.0 + 20_000.0 * 24.0;
    let (bytes, blocks) = held(&HEAP, "::holds");
    // Three deviations.
    let error = 3.0 * (MEAN as f64 * expected).sqrt();
    assert!((bytes as f64 - expected).abs() < error, "{bytes} of {expected}");
    assert!((blocks as f64 / 20_001.0 - 1.0).abs() < 0.25, "{blocks}");
    drop(kept);
    let (bytes, _) = held(&HEAP, "::holds");
    assert_eq!(bytes, 0, "what is freed is not held");
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
    assert_eq!(held(&HEAP, "threads_free_each_others_blocks").0, 0);
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
    let (all, _) = held(&HEAP, "");
    assert!(all > 5_000_000 && (live as f64 / all as f64 - 1.0).abs() < 0.05, "{live} of {all}");
    drop(kept);
}

/// Two fronts of different means in one thread, a heap of its own, and what a failing writer says.
#[test]
fn a_heap_of_its_own_is_sampled_as_well() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let sampled: HeapProfile<Heap> = HeapProfile::new(heap!(64 * 1024), 1);
    let layout = Layout::new::<[u8; 100]>();
    let blocks: Vec<_> = (0..100).map(|_| sampled.try_allocate(layout).unwrap()).collect();
    let (bytes, blocks_held) = held(&sampled, "");
    assert!((99..=101).contains(&blocks_held) && (9_900..=10_100).contains(&bytes), "{bytes} bytes");
    for block in blocks {
        // SAFETY: the block is live.
        unsafe { sampled.try_deallocate(block, layout) }.unwrap();
    }
    assert_eq!(held(&sampled, ""), (0, 0));
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
