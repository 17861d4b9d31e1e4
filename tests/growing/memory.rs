//! What the process has of the system, by the kernel's own count.

use crate::{HEAP, alone};
use allotment::pressure::Pressure;
use std::hint::black_box;

/// Bytes of memory that the process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

const MIB: usize = 1 << 20;

#[test]
fn trimming_gives_large_blocks_back() {
    let _alone = alone();
    let blocks: Vec<Vec<u8>> = (0..40).map(|_| vec![1; 4 * MIB]).collect();
    let full = resident();
    assert!(full >= 160 * MIB);
    drop(black_box(blocks));
    HEAP.trim();
    assert!(full - resident() >= 150 * MIB, "{} MiB of {}", resident() / MIB, full / MIB);
    assert!(HEAP.stats().purged > 0);
}

/// Much free memory goes back without being asked for: more than 16 MiB and a quarter of what is in use.
#[test]
fn much_free_memory_goes_back_by_itself() {
    let _alone = alone();
    let blocks: Vec<Vec<u8>> = (0..100).map(|_| vec![1; 2 * MIB]).collect();
    let full = resident();
    drop(black_box(blocks));
    assert!(full - resident() >= 100 * MIB, "{} MiB of {}", resident() / MIB, full / MIB);
}

/// The shorter memory is outside the heap, the less of its free memory stays, until the pressure ends.
#[test]
fn less_stays_free_under_pressure() {
    let _alone = alone();
    // The most that is free between the frees. All may go back for its age, but so soon only once: two rounds.
    let round = || {
        let blocks: Vec<Vec<u8>> = (0..16).map(|_| vec![1; MIB / 2]).collect();
        black_box(blocks).into_iter().map(|block| (drop(block), HEAP.stats().dirty).1).max().unwrap()
    };
    let kept = |pressure| {
        HEAP.set_pressure(pressure);
        round().max(round())
    };
    let used = HEAP.stats().used;
    let (low, critical, normal) = (kept(Pressure::Low), kept(Pressure::Critical), kept(Pressure::Normal));
    assert!(normal >= 8 * MIB, "{normal}");
    assert!(low > critical && low <= 2 * MIB + used / 16 + MIB, "{low}");
    assert!(critical <= MIB, "{critical}");
    // What is free when the pressure begins goes back at once, and an end of pressure is no reason to.
    let (free, before) = (HEAP.stats().dirty, resident());
    let gone = HEAP.set_pressure(Pressure::Critical);
    assert!(gone >= free && before - resident() >= free / 2, "{gone} of {free}");
    assert_eq!(HEAP.set_pressure(Pressure::Normal), 0);
}

/// Pages of small blocks of which a few are live keep no more than the slots with these.
#[test]
fn trimming_takes_the_free_slots_of_sparse_pages() {
    let _alone = alone();
    let mut blocks: Vec<Box<[u8; 200]>> = (0..400_000).map(|at| Box::new([at as u8; 200])).collect();
    let full = resident();
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 200 == 0
    });
    let before = resident();
    let gone = HEAP.trim();
    let sparse = resident();
    assert!(full - sparse >= 55 * MIB, "{} MiB of {}", sparse / MIB, full / MIB);
    assert!(gone.abs_diff(before - sparse) <= 4 * MIB, "{gone} B, by the kernel {}", before - sparse);
    assert!(blocks.iter().enumerate().all(|(at, block)| block[0] == ((at + 1) * 200 - 1) as u8));
    // The slots are filled again, and nothing that is live is allocated twice.
    let more: Vec<Box<[u8; 200]>> = (0..400_000).map(|_| Box::new([0xee; 200])).collect();
    assert!(blocks.iter().enumerate().all(|(at, block)| block[0] == ((at + 1) * 200 - 1) as u8));
    assert!(resident() < full + 20 * MIB, "{} MiB, before {}", resident() / MIB, full / MIB);
    assert!(more.iter().all(|block| block.iter().all(|&byte| byte == 0xee)));
}

/// A block that lies across two slots, of which one is gone already, is no reason to keep the other.
#[test]
fn slots_beside_those_that_are_gone_go_too() {
    let _alone = alone();
    let mut blocks: Vec<Box<[u8; 600]>> = (0..40_000).map(|at| Box::new([at as u8; 600])).collect();
    let thin = |blocks: &mut Vec<Box<[u8; 600]>>, every: usize| {
        let mut at = 0;
        blocks.retain(|_| {
            at += 1;
            at % every == 1
        });
        HEAP.trim()
    };
    // Three blocks of a page are left, and then one.
    thin(&mut blocks, 17);
    let gone = thin(&mut blocks, 3);
    assert!(gone >= 4 * MIB, "{gone} B of some 1500 slots");
    assert!(blocks.iter().enumerate().all(|(at, block)| **block == [(at * 51) as u8; 600]));
}

/// Zeroed memory that was never used is not touched.
#[test]
fn fresh_zeroed_memory_costs_nothing() {
    let _alone = alone();
    HEAP.trim();
    let before = resident();
    let zeroes = vec![0_u8; 256 * MIB];
    assert!(resident() < before + 8 * MIB);
    assert!(zeroes.iter().step_by(4096).all(|&byte| byte == 0));
}

/// A long vector grows in place or by moving its memory, never with twice as much in use.
#[test]
fn long_vectors_grow_without_copies() {
    let _alone = alone();
    HEAP.trim();
    let before = HEAP.stats().committed;
    let mut bytes = vec![1_u8; MIB];
    // In the way of the vector.
    let mut others = Vec::new();
    while bytes.len() < 64 * MIB {
        bytes.reserve_exact(MIB);
        bytes.resize(bytes.len() + MIB, 1);
        others.push(vec![2_u8; 64 * 1024]);
    }
    assert!(bytes.iter().all(|&byte| byte == 1));
    assert!(resident() < 400 * MIB && HEAP.stats().committed < before + 512 * MIB);
}
