//! Sequences that grow page by page and share their beginnings.

use crate::support::{Gpu, on_system};
use allotment::gpu::{Buffer, Foreign, KvCache, Sequence, Stream};
use allotment::pool::SourceErrorKind;

const MIB: usize = 1 << 20;

/// The bytes of a part of a sequence.
fn part(sequence: &Sequence, stream: &Stream, start: usize, len: usize) -> Buffer<u8, Foreign<()>> {
    assert!(start + len <= sequence.bytes());
    // SAFETY: the memory is the sequence's, whose work runs on this stream; the tests keep it longer.
    unsafe { Buffer::from_raw(sequence.address() + start as u64, len, (), stream) }
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
    // Pages that come back serve others, and then go back to the device.
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
