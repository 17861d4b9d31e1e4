//! Sequences that grow page by page and share their beginnings.

use crate::support::{Gpu, on_system};
use allotment::gpu::sequences::{KvCache, Sequence};
use allotment::gpu::{Buffer, MemoryKind, Stream};
use allotment::pool::SourceErrorKind;

const MIB: usize = 1 << 20;

/// The bytes of a part of a sequence.
fn part(sequence: &Sequence, stream: &Stream, start: usize, len: usize) -> Buffer<u8> {
    assert!(start + len <= sequence.bytes());
    // SAFETY: the memory is the sequence's, whose work runs on this stream; the tests keep it longer.
    unsafe { Buffer::from_raw(MemoryKind::Device, sequence.address() + start as u64, len, (), stream) }
}

fn fill(sequence: &Sequence, stream: &Stream, start: usize, len: usize, value: u8) {
    part(sequence, stream, start, len).as_view_mut().fill(value).unwrap();
}

fn is_all(sequence: &Sequence, stream: &Stream, start: usize, len: usize, value: u8) -> bool {
    part(sequence, stream, start, len).to_vec().unwrap().iter().all(|&byte| byte == value)
}

#[test]
fn sequences_grow_shrink_and_share() {
    let gpu = Gpu::new();
    if !gpu.context.device().virtual_memory {
        return gpu.finish();
    }
    let other = Stream::new(&gpu.context).unwrap();
    let cache = KvCache::new(&gpu.context, 7 * MIB, 5 * 2 * MIB).unwrap();
    // The pages that all devices have so far.
    let page = 2 * MIB;
    assert_eq!(cache.reserved(), 0);
    let mut prompt = cache.sequence(&gpu.stream).unwrap();
    let address = prompt.address();
    prompt.resize(3 * MIB).unwrap();
    fill(&prompt, &gpu.stream, 0, 3 * MIB, 1);
    if !on_system() {
        let maps = gpu.control().calls("cuMemMap");
        prompt.resize(4 * MIB).unwrap();
        assert_eq!(gpu.control().calls("cuMemMap"), maps, "the last page has room");
        prompt.resize(3 * MIB).unwrap();
    }
    // Two answers begin with the prompt: its first page is theirs as well, the half of the second one is copied.
    let streams = [&gpu.stream, &other];
    let mut answers = streams.map(|stream| prompt.fork(3 * MIB, stream).unwrap());
    assert_eq!(cache.reserved(), 4 * page);
    for ((answer, stream), value) in answers.iter_mut().zip(streams).zip([2, 3]) {
        assert_eq!(answer.bytes(), 3 * MIB);
        answer.resize(7 * MIB / 2).unwrap();
        fill(answer, stream, 3 * MIB, MIB / 2, value);
    }
    fill(&prompt, &gpu.stream, 2 * MIB, MIB, 9);
    for ((answer, stream), value) in answers.iter().zip(streams).zip([2, 3]) {
        assert!(is_all(answer, stream, 0, 3 * MIB, 1) && is_all(answer, stream, 3 * MIB, MIB / 2, value));
    }
    assert!(is_all(&prompt, &gpu.stream, 0, 2 * MIB, 1) && is_all(&prompt, &gpu.stream, 2 * MIB, MIB, 9));
    // The fifth page is the last that the limit allows, and no sequence is longer than its addresses.
    prompt.resize(5 * MIB).unwrap();
    let full = answers[0].resize(5 * MIB).unwrap_err();
    assert_eq!((full.kind, answers[0].bytes()), (SourceErrorKind::OutOfMemory, 7 * MIB / 2));
    assert_eq!(prompt.resize(8 * MIB + 1).unwrap_err().kind, SourceErrorKind::OutOfMemory);
    assert_eq!(prompt.fork(6 * MIB, &other).unwrap_err().kind, SourceErrorKind::Invalid);
    // Pages that come back go to others, and then go back to the device.
    prompt.resize(MIB).unwrap();
    assert_eq!((prompt.bytes(), cache.reserved(), cache.trim().unwrap()), (MIB, 5 * page, 2 * page));
    answers[0].resize(5 * MIB).unwrap();
    fill(&answers[0], &gpu.stream, 4 * MIB, MIB, 4);
    let [first, second] = answers;
    drop(second);
    assert_eq!((cache.trim().unwrap(), cache.reserved()), (page, 3 * page));
    drop(prompt);
    assert!(is_all(&first, &gpu.stream, 0, 3 * MIB, 1) && is_all(&first, &gpu.stream, 4 * MIB, MIB, 4));
    assert!(
        cache.sequence(&gpu.stream).unwrap().address() != address || cache.clone().reserved() == 3 * page
    );
    drop((first, cache, other));
    gpu.finish();
}

/// A page is not given to others before the work on it is done, and failures leave a sequence as it was.
#[test]
fn sequences_wait_for_their_work_and_survive_failures() {
    let gpu = Gpu::new();
    if on_system() {
        return gpu.finish();
    }
    let other = Stream::new(&gpu.context).unwrap();
    let cache = KvCache::new(&gpu.context, 8 * MIB, 8 * MIB).unwrap();
    let control = gpu.control();
    let mut sequence = cache.sequence(&gpu.stream).unwrap();
    for name in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        control.fail(name, 1, 1, 999);
        let failed = sequence.resize(4 * MIB).unwrap_err();
        assert_eq!((failed.call, failed.code, sequence.bytes()), (name, 999, 0));
    }
    assert!(cache.reserved() <= 4 * MIB);
    sequence.resize(4 * MIB).unwrap();
    assert_eq!(cache.reserved(), 4 * MIB, "pages of failed attempts are used");
    control.hold_all(true);
    fill(&sequence, &gpu.stream, 0, 4 * MIB, 1);
    let fork = sequence.fork(3 * MIB, &other).unwrap();
    assert_eq!(control.run(Gpu::number(&other)), 0, "the copy comes after the fill");
    fill(&sequence, &gpu.stream, 2 * MIB, MIB, 2);
    assert!(control.run(Gpu::number(&gpu.stream)) <= 2, "the second fill comes after the copy");
    drop(sequence);
    assert_eq!(control.pending(Gpu::number(&gpu.stream)), 0, "its work was waited for");
    control.hold_all(false);
    assert!(is_all(&fork, &other, 0, 3 * MIB, 1));
    drop((fork, cache, other));
    gpu.finish();
}

/// Every length around a page and around the greatest one: what is there, how many pages, and which calls it takes.
#[test]
fn sequences_have_as_many_pages_as_they_need() {
    let gpu = Gpu::new();
    if on_system() {
        return gpu.finish();
    }
    let page = 2 * MIB;
    let cache = KvCache::new(&gpu.context, 4 * page - 1, 100 * page).unwrap();
    let control = gpu.control();
    let calls = |names: &[&str]| names.iter().map(|name| control.calls(name)).sum::<u64>();
    let mapping = || calls(&["cuMemMap", "cuMemUnmap", "cuMemSetAccess"]);
    let mut sequence = cache.sequence(&gpu.stream).unwrap();
    let lengths = [0, 1, page - 1, page, page, page + 1, 2 * page, 4 * page, 3 * page + 1, 3 * page, page, 0];
    for (before, after) in [0].into_iter().chain(lengths).zip(lengths) {
        let (made, pages) = (mapping(), after.div_ceil(page));
        sequence.resize(after).unwrap();
        let is_same = pages == before.div_ceil(page);
        assert_eq!((sequence.bytes(), mapping() == made), (after, is_same), "{before} to {after}");
        if after > 0 {
            fill(&sequence, &gpu.stream, after - 1, 1, 7);
        }
    }
    assert_eq!(cache.reserved(), 4 * page);
    // One byte more than the greatest length is refused, whatever else there would be.
    sequence.resize(5).unwrap();
    let made = mapping();
    let longer = sequence.resize(4 * page + 1).unwrap_err();
    assert_eq!(
        (longer.kind, longer.call),
        (SourceErrorKind::OutOfMemory, "the greatest length of a sequence")
    );
    assert_eq!((sequence.bytes(), mapping()), (5, made));

    // Forks share whole pages, and copy what is left of one.
    sequence.resize(4 * page).unwrap();
    fill(&sequence, &gpu.stream, 0, 4 * page, 3);
    for len in [0, 1, page - 1, page, page + 1, 2 * page, 4 * page] {
        let (copied, shared) = (calls(&["cuMemcpyAsync"]), cache.reserved());
        let fork = sequence.fork(len, &gpu.stream).unwrap();
        assert_eq!(calls(&["cuMemcpyAsync"]) - copied, u64::from(len % page > 0), "{len}");
        assert_eq!(fork.bytes(), len);
        assert!(is_all(&fork, &gpu.stream, 0, len, 3), "{len}");
        assert!(cache.reserved() - shared <= page, "{len}");
        drop(fork);
        cache.trim().unwrap();
    }
    drop(sequence);
    assert_eq!(cache.trim(), Ok(4 * page));
    drop(cache);
    gpu.finish();
}

/// What is released to the device is not the cache's any more, so that others may come to the limit.
#[test]
fn trimmed_pages_can_be_made_anew() {
    let gpu = Gpu::new();
    if on_system() {
        return gpu.finish();
    }
    let page = 2 * MIB;
    let cache = KvCache::new(&gpu.context, 8 * page, 8 * page - 1).unwrap();
    for kept in 0..=8 {
        let mut sequence = cache.sequence(&gpu.stream).unwrap();
        sequence.resize(8 * page).unwrap();
        let mut other = cache.sequence(&gpu.stream).unwrap();
        let full = other.resize(1).unwrap_err();
        assert_eq!((full.kind, full.call), (SourceErrorKind::OutOfMemory, "the limit of the cache"));
        sequence.resize(kept * page).unwrap();
        assert_eq!(cache.reserved(), 8 * page);
        assert_eq!((cache.trim(), cache.reserved()), (Ok((8 - kept) * page), kept * page));
        assert_eq!(gpu.live().bytes, (kept * page) as u64);
        sequence.resize(8 * page).unwrap();
        assert_eq!(cache.reserved(), 8 * page);
    }
    // What could not be mapped at all is not unmapped either.
    let mut sequence = cache.sequence(&gpu.stream).unwrap();
    let unmapped = gpu.control().calls("cuMemUnmap");
    gpu.control().fail("cuMemMap", 1, 1, 999);
    assert_eq!(sequence.resize(2 * page).unwrap_err().code, 999);
    assert_eq!(gpu.control().calls("cuMemUnmap"), unmapped);
    gpu.control().fail("cuMemMap", 2, 1, 999);
    assert_eq!(sequence.resize(2 * page).unwrap_err().code, 999);
    assert_eq!(gpu.control().calls("cuMemUnmap"), unmapped + 1);
    drop((sequence, cache));
    gpu.finish();
}
