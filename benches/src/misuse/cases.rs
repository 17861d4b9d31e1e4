//! The misuses.

use std::alloc::Layout;

use super::lab::{Block, Lab, layout};

/// A misuse.
pub struct Case {
    /// Its name in tables.
    pub name: &'static str,
    /// Commits it. Returns false if it does not apply to the allocator.
    pub run: fn(&mut Lab) -> bool,
}

macro_rules! cases {
    ($($name:literal: |$lab:ident| $run:expr;)*) => {
        /// All misuses.
        pub const ALL: &[Case] = &[$(Case { name: $name, run: |$lab| { $run; true } }),*];
    };
}

cases! {
    // Frees of what is free.
    "double free, 8 B": |lab| twice(lab, 8);
    "double free, 48 B": |lab| twice(lab, 48);
    "double free, 600 B": |lab| twice(lab, 600);
    "double free, 40,000 B": |lab| twice(lab, 40_000);
    "double free, one free between": |lab| {
        let [a, _, b, _] = lab.blocks(48);
        lab.free(a);
        lab.free(b);
        lab.allocator.dealloc(a.start, a.layout);
    };
    "double free, 100 frees between": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.free(b);
        lab.churn(100, 48);
        lab.allocator.dealloc(b.start, b.layout);
    };
    "double free, neighbours freed before": |lab| merged(lab, 48, true);
    "double free, neighbours freed after": |lab| merged(lab, 48, false);
    "double free, 600 B, merged": |lab| merged(lab, 600, false);
    "double free, all free": |lab| {
        let blocks: [_; 40] = lab.blocks(600);
        blocks.into_iter().for_each(|block| lab.free(block));
        lab.allocator.dealloc(blocks[20].start, blocks[20].layout);
    };
    "double free, place in use with another size": |lab| {
        let [_, b, _] = lab.blocks(600);
        lab.free(b);
        lab.churn(40, 600);
        let _: [_; 60] = lab.blocks(200);
        lab.allocator.dealloc(b.start, b.layout);
    };
    "triple free": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.free(b);
        lab.allocator.dealloc(b.start, b.layout);
        lab.allocator.dealloc(b.start, b.layout);
    };
    "double free by two threads at once": |lab| {
        if !lab.shared { return false; }
        for _ in 0..20 {
            let [_, b, _] = lab.blocks(48);
            lab.free_in_two_threads(b);
        }
    };
    "double free by another thread": |lab| {
        if !lab.shared { return false; }
        let [_, b, _] = lab.blocks(48);
        lab.free(b);
        lab.free_in_another_thread(b);
    };
    "free of a block that realloc has moved": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.forget(b);
        let moved = lab.allocator.realloc(b.start, b.layout, 2000);
        if moved == b.start { return false; }
        lab.allocator.dealloc(b.start, b.layout);
    };

    // Frees of what is no block, or another one.
    "free inside a block, + 8": |lab| inside(lab, 48, 8);
    "free inside a block, + 16": |lab| inside(lab, 48, 16);
    "free inside a block of 600 B": |lab| inside(lab, 600, 304);
    "free, + 1": |lab| inside(lab, 48, 1);
    "free, + 4": |lab| inside(lab, 600, 4);
    "free in front of a block, - 8": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.allocator.dealloc(b.start.wrapping_sub(8), b.layout);
    };
    "free of a place on the stack": |lab| {
        let place = [0x5555_5555_5555_5555_u64; 16];
        lab.allocator.dealloc((&raw const place[8]).cast_mut().cast(), layout(48));
    };
    "free of a static": |lab| {
        static PLACE: [u64; 16] = [0; 16];
        if lab.arena.is_none() { return false; }
        let copy = Box::leak(Box::new(PLACE));
        lab.allocator.dealloc((&raw mut copy[8]).cast(), layout(48));
    };
    "free of another heap's block": |lab| {
        let Some(other) = &lab.other else { return false };
        let block = other.alloc(layout(48));
        lab.allocator.dealloc(block, layout(48));
    };
    "free of the arena's start": |lab| {
        let Some(arena) = lab.arena else { return false };
        let [_, _, _, _] = lab.blocks(48);
        lab.allocator.dealloc(arena.start.wrapping_add(24), layout(40));
    };
    "realloc of another heap's block": |lab| {
        let Some(other) = &lab.other else { return false };
        let block = other.alloc(layout(48));
        lab.allocator.realloc(block, layout(48), 80);
    };
    "free beyond the arena": |lab| {
        let Some(arena) = lab.arena else { return false };
        lab.allocator.dealloc(arena.start.wrapping_add(arena.size + 64), layout(48));
    };

    // Wrong layouts.
    "free with 40 for 48 B": |lab| otherwise(lab, 48, layout(40));
    "free with 56 for 48 B": |lab| otherwise(lab, 48, layout(56));
    "free with 1 for 48 B": |lab| otherwise(lab, 48, layout(1));
    "free with 600 for 48 B": |lab| otherwise(lab, 48, layout(600));
    "free with 48 for 600 B": |lab| otherwise(lab, 600, layout(48));
    "free with 6,000 for 600 B": |lab| otherwise(lab, 600, layout(6000));
    "free with alignment 64 for 8": |lab| {
        otherwise(lab, 48, Layout::from_size_align(48, 64).unwrap_or(layout(48)))
    };
    "realloc of a freed block": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.free(b);
        lab.allocator.realloc(b.start, b.layout, 80);
    };
    "realloc of a freed block, in place": |lab| {
        let [_, b, _] = lab.blocks(600);
        lab.free(b);
        lab.allocator.realloc(b.start, b.layout, 560);
    };
    "realloc with 600 for 48 B": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.forget(b);
        lab.allocator.realloc(b.start, layout(600), 500);
    };
    "realloc inside a block": |lab| {
        let [_, b, _] = lab.blocks(600);
        lab.allocator.realloc(b.start.wrapping_add(64), layout(536), 100);
    };

    // Writes beyond a block.
    "overflow, 1 B": |lab| beyond(lab, 48, 48, 1);
    "overflow, 1 B behind 44": |lab| beyond(lab, 44, 44, 1);
    "overflow, 1 B behind 600": |lab| beyond(lab, 600, 600, 1);
    "overflow, 8 B": |lab| beyond(lab, 48, 48, 8);
    "overflow, 64 B": |lab| beyond(lab, 48, 48, 64);
    "overflow into a free block": |lab| {
        let [_, b, c, _] = in_order(lab, 600);
        lab.free(c);
        write(b.start.wrapping_add(600), 24, 0xee);
    };
    "underflow, 1 B": |lab| beyond(lab, 48, usize::MAX, 1);
    "underflow, 8 B": |lab| beyond(lab, 48, usize::MAX - 7, 8);
    "underflow, 16 B behind a free block": |lab| {
        let [_, b, c, _] = in_order(lab, 600);
        lab.free(b);
        write(c.start.wrapping_sub(16), 16, 0xee);
    };

    // Writes to freed blocks: each word that can be a link, with what breaks it differently.
    "write to freed 48 B, all zero": |lab| after(lab, 48, 0, 48, 0);
    "write to freed 48 B, all ones": |lab| after(lab, 48, 0, 48, 0xff);
    "write to freed 48 B, bytes 0 to 3": |lab| after(lab, 48, 0, 4, 0x11);
    "write to freed 48 B, bytes 4 to 7": |lab| after(lab, 48, 4, 4, 0x11);
    "write to freed 48 B, bytes 8 to 11": |lab| after(lab, 48, 8, 4, 0x11);
    "write to freed 48 B, bytes 12 to 15": |lab| after(lab, 48, 12, 4, 0x11);
    "write to freed 48 B, last word": |lab| after(lab, 48, 44, 4, 0x11);
    "write to freed 600 B, first word": |lab| after(lab, 600, 0, 8, 0x11);
    "write to freed 600 B, second word": |lab| after(lab, 600, 8, 8, 0x11);
    "write to freed 600 B, last word": |lab| after(lab, 600, 592, 8, 0x11);
    "write to freed 600 B, middle": |lab| after(lab, 600, 200, 8, 0x11);
    "write to freed 48 B, link to itself": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.free(b);
        // SAFETY: none: the misuse that is tested.
        unsafe { b.start.cast::<*mut u8>().write(b.start) };
    };
    "write to freed 48 B, link to a live block": |lab| {
        let [_, b, c] = lab.blocks(48);
        lab.free(b);
        // SAFETY: none: the misuse that is tested.
        unsafe { b.start.cast::<*mut u8>().write(c.start) };
    };
    "write 100 frees after the free": |lab| {
        let [_, b, _] = lab.blocks(600);
        lab.free(b);
        lab.churn(100, 48);
        write(b.start, 16, 0x11);
    };
    "write to the old place of a moved block": |lab| {
        let [_, b, _] = lab.blocks(48);
        lab.forget(b);
        let moved = lab.allocator.realloc(b.start, b.layout, 2000);
        if moved == b.start { return false; }
        write(b.start, 48, 0x11);
    };
}

/// Allocates four blocks, and returns them in the order of their addresses.
fn in_order(lab: &mut Lab, size: usize) -> [Block; 4] {
    let mut blocks: [Block; 4] = lab.blocks(size);
    blocks.sort_by_key(|block| block.start.addr());
    blocks
}

fn twice(lab: &mut Lab, size: usize) {
    let [_, b, _] = lab.blocks(size);
    lab.free(b);
    lab.allocator.dealloc(b.start, b.layout);
}

fn merged(lab: &mut Lab, size: usize, before: bool) {
    let [_, a, b, c, _] = lab.blocks(size);
    if before {
        lab.free(a);
        lab.free(c);
    }
    lab.free(b);
    if !before {
        lab.free(a);
        lab.free(c);
    }
    lab.allocator.dealloc(b.start, b.layout);
}

fn inside(lab: &mut Lab, size: usize, offset: usize) {
    let [_, b, _] = lab.blocks(size);
    lab.allocator.dealloc(b.start.wrapping_add(offset), layout(size - offset.next_multiple_of(8)));
}

fn otherwise(lab: &mut Lab, size: usize, wrong: Layout) {
    let [_, b, _] = lab.blocks(size);
    lab.forget(b);
    lab.allocator.dealloc(b.start, wrong);
}

/// Writes `bytes` bytes at `offset` of a live block, which may be negative, and frees the block later.
fn beyond(lab: &mut Lab, size: usize, offset: usize, bytes: usize) {
    let [_, b, _] = lab.blocks(size);
    write(b.start.wrapping_add(offset), bytes, 0xee);
    lab.free(b);
}

/// Writes to a freed block whose neighbours are live.
fn after(lab: &mut Lab, size: usize, offset: usize, bytes: usize, value: u8) {
    let [_, a, _, b, _] = lab.blocks(size);
    lab.free(a);
    lab.free(b);
    write(a.start.wrapping_add(offset), bytes, value);
}

fn write(start: *mut u8, bytes: usize, value: u8) {
    // SAFETY: none: the misuse that is tested, in a process that ends after it. The memory is mapped.
    unsafe { start.write_bytes(value, bytes) }
}
