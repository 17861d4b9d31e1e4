//! A heap in memory that several processes share.

mod lock;
mod table;

use crate::error::FreeError;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use lock::SharedLock;
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use table::{Entry, Lists, Table};

/// Bytes of a granule, the unit of block sizes.
const GRANULE: usize = 256;

/// Bytes of a page: the alignment of the file's parts, and the largest alignment of blocks.
const PAGE: usize = 4096;

/// The first word of the file: the mark of all versions, and the header size of this version.
const MAGIC: u64 = MARK << 16 | size_of::<Header>() as u64;
const MARK: u64 = 0x616c_6c6f_746d;

/// Seals that fix the length of a file forever.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Header of the file. Other processes can write to all of it, so it contains only numbers.
#[repr(C)]
struct Header {
    /// [`MAGIC`], once everything else is written.
    magic: AtomicU64,
    /// Length of the file in bytes.
    bytes: AtomicU64,
    /// A word for the programs, to find their first block.
    root: AtomicU64,
    lock: SharedLock,
    lists: Lists,
}

/// Bytes from the start of the file to the entries.
const ENTRIES: usize = size_of::<Header>().next_multiple_of(PAGE);

/// The division of a file: number of granules, and offset of the blocks.
#[derive(Clone, Copy)]
struct Parts {
    granules: usize,
    data: usize,
}

impl Parts {
    /// Divides a file of `bytes` bytes; `None` if it has no room for a block, or too many granules to number or bytes to address.
    fn new(bytes: usize) -> Option<Self> {
        // Both parts are aligned to pages.
        let granules = bytes.checked_sub(ENTRIES + 2 * PAGE)? / (GRANULE + size_of::<Entry>());
        if granules > table::MOST || bytes > isize::MAX as usize {
            return None;
        }
        let data = (ENTRIES + granules * size_of::<Entry>()).next_multiple_of(PAGE);
        (granules > 0 && data + granules * GRANULE <= bytes).then_some(Self { granules, data })
    }
}

/// A heap in memory that several processes share (Linux).
///
/// An offset, which means the same in every process, identifies a block; [`SharedHeap::address`] turns it into an address, which differs
/// from process to process. One process may allocate a block and another may free it.
///
/// ```
/// use allotment::os::SharedHeap;
///
/// let heap = SharedHeap::create(1 << 20)?;
/// // Another process opens the same file: inherited, sent over a socket, or as `/proc/PID/fd/N`.
/// let other = SharedHeap::open(heap.file().try_clone_to_owned()?)?;
///
/// let block = heap.allocate(100, 8).expect("there is room");
/// // SAFETY: the block is live and has 100 bytes.
/// unsafe { heap.address(block).write(7) };
/// // SAFETY: as above.
/// assert_eq!(unsafe { other.address(block).read() }, 7);
/// other.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The file is an anonymous file in memory ([`SharedHeap::create`], [`SharedHeap::create_in`]), sealed so that it keeps its length, or,
/// in `unsafe` code, any other file ([`SharedHeap::in_unsealed`]). Blocks are multiples of 256 bytes; their tables take another 11 % of
/// the file, but only the used parts of the tables take memory.
///
/// A process may die at any moment, even while it holds the lock: the next process that acquires the lock rebuilds the lists of free
/// memory from a table in which each allocation and each free takes effect with one store. Blocks of a dead process stay live until
/// another process frees them ([`SharedHeap::free_all_of`]). If a process is stopped while it holds the lock, the others wait until it
/// continues or ends.
///
/// A process that writes beyond its blocks, or anywhere else in the file, can destroy the contents of the heap and its statistics. But
/// the heap trusts nothing in the file: every block lies within the file, and every call returns, with one exception. A lock word forged
/// to name a live thread of a process that has mapped the file keeps others waiting as long as that thread lives. If the system does not
/// show what that process has mapped, for example because it belongs to another user, its threads count as gone once they have slept for
/// 10 s. Threads of another PID namespace (container) count as gone after one second. The heap rebuilds damaged lists. It refuses a live
/// block whose length was overwritten, and never reuses its memory.
///
/// Allocation and free are O(1), and acquire the lock; after a death or damage the next operation is O(granules).
pub struct SharedHeap {
    base: NonNull<u8>,
    bytes: usize,
    parts: Parts,
    file: OwnedFd,
}

// SAFETY: shared memory is accessed atomically, and the mapping stays in place.
unsafe impl Send for SharedHeap {}
// SAFETY: as above.
unsafe impl Sync for SharedHeap {}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl SharedHeap {
    /// Creates a heap of `bytes` bytes, tables included, in a new file in memory. The file takes no memory until it is written to.
    ///
    /// # Errors
    ///
    /// The system's errors, and [`io::ErrorKind::InvalidInput`] for a size without room for a block, or with more than 1 TiB of blocks.
    pub fn create(bytes: usize) -> io::Result<Self> {
        let file = fs::memfd_create("allotment", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        Self::create_in(file, bytes)
    }

    /// Creates a heap of `bytes` bytes in the program's file, which loses its contents, and seals the file. It must come from
    /// `memfd_create` with `MFD_ALLOW_SEALING`; for other files use [`SharedHeap::in_unsealed`].
    ///
    /// # Errors
    ///
    /// As for [`SharedHeap::create`]; [`io::ErrorKind::InvalidInput`] for a file that cannot be sealed, and
    /// [`io::ErrorKind::AlreadyExists`] for a file that has the mark of a heap.
    pub fn create_in(file: impl Into<OwnedFd>, bytes: usize) -> io::Result<Self> {
        let file = File::from(file.into());
        match fs::fcntl_get_seals(&file) {
            Ok(seals) if !seals.contains(SealFlags::SEAL) => {}
            // For a file that is already sealed, report its mark first: that error says more.
            seals => {
                refuse_mark(&file).and(match seals {
                    Ok(_) => Err(invalid("the file cannot be sealed: others may have sealed it already")),
                    Err(_) => {
                        Err(invalid("a file of this kind may become shorter at any time: use `in_unsealed`"))
                    }
                })?;
            }
        }
        Self::make(file, bytes, true)
    }

    /// Opens a heap that this or another process has created, with the same version of this crate.
    ///
    /// # Errors
    ///
    /// The system's errors, and [`io::ErrorKind::InvalidInput`] for a file that holds no such heap, or that is not sealed
    /// ([`SharedHeap::in_unsealed`] opens it).
    pub fn open(file: impl Into<OwnedFd>) -> io::Result<Self> {
        let file = File::from(file.into());
        if !fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(invalid(
                "the file is not sealed and may become shorter at any time: use `in_unsealed`",
            ));
        }
        Self::open_any(file)
    }

    /// Creates (`Some(bytes)`) or opens (`None`) a heap in any file that can be mapped, such as a file of `shm_open`, which cannot be
    /// sealed. If its file system has no memory for a page on first use, the system ends the process with a signal.
    ///
    /// # Errors
    ///
    /// As for [`SharedHeap::create`] and [`SharedHeap::open`]; [`io::ErrorKind::AlreadyExists`] when creating a heap in a file that
    /// already has the mark of a heap. If the program knows that the file is not in use, it can first shorten it to 0 bytes.
    ///
    /// # Safety
    ///
    /// While the value exists, nothing may shorten the file.
    pub unsafe fn in_unsealed(file: impl Into<OwnedFd>, bytes: Option<usize>) -> io::Result<Self> {
        let file = File::from(file.into());
        match bytes {
            Some(bytes) => Self::make(file, bytes, false),
            None => Self::open_any(file),
        }
    }

    fn make(file: File, bytes: usize, seals: bool) -> io::Result<Self> {
        // A size beyond the address space becomes 0, which has no room either.
        let bytes = bytes.checked_next_multiple_of(PAGE).unwrap_or(0);
        let parts = Parts::new(bytes)
            .ok_or_else(|| invalid("the size has no room for a block, or is above 1 TiB"))?;
        refuse_mark(&file)?;
        may_have(bytes)?;
        // Discard the old contents: the file is all zero now.
        file.set_len(0)?;
        file.set_len(bytes as u64)?;
        if seals {
            fs::fcntl_add_seals(&file, SEALS)?;
            if file.metadata()?.len() != bytes as u64 {
                return Err(invalid("another process has changed the file's length meanwhile"));
            }
        }
        let heap = Self::map(file.into(), bytes, parts)?;
        heap.header().bytes.store(bytes as u64, Ordering::Relaxed);
        heap.table().begin();
        heap.header().magic.store(MAGIC, Ordering::Release);
        Ok(heap)
    }

    fn open_any(file: File) -> io::Result<Self> {
        let wrong = || invalid("the file holds no heap of this version");
        let bytes = usize::try_from(file.metadata()?.len()).map_err(|_| wrong())?;
        let parts = Parts::new(bytes).ok_or_else(wrong)?;
        let heap = Self::map(file.into(), bytes, parts)?;
        let header = heap.header();
        // Everything else may change at any time, so each use checks it.
        let agree = header.magic.load(Ordering::Acquire) == MAGIC
            && header.bytes.load(Ordering::Relaxed) == bytes as u64;
        if agree { Ok(heap) } else { Err(wrong()) }
    }

    fn map(file: OwnedFd, bytes: usize, parts: Parts) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| invalid("mapped at null"))?;
        Ok(Self { base, bytes, parts, file })
    }

    fn header(&self) -> &Header {
        // SAFETY: the file is mapped while this value exists, it is longer than the header, and no process can shorten it: it is sealed,
        // or the creator of this value promised that. Every bit pattern is valid for atomics.
        unsafe { self.base.cast().as_ref() }
    }

    fn table(&self) -> Table<'_> {
        // SAFETY: as for `header`; `Parts::new` divides the mapped bytes.
        let entries = unsafe {
            let first = self.base.as_ptr().add(ENTRIES).cast::<Entry>();
            slice::from_raw_parts(first, self.parts.granules)
        };
        Table { lists: &self.header().lists, entries }
    }

    /// Runs `f` with the lock, after repairing the state that a dead process left.
    fn with<'s, T>(&'s self, f: impl FnOnce(Table<'s>) -> T) -> T {
        let holder = self.header().lock.acquire(self.file());
        let table = self.table();
        if holder.inherits {
            table.rebuild();
        }
        f(table)
    }

    /// Allocates `bytes` bytes aligned to `align`, and returns the offset of the block, which is not 0; `None` if there is no room or the
    /// alignment is not a power of two up to 4096. O(1).
    pub fn allocate(&self, bytes: usize, align: usize) -> Option<usize> {
        if !align.is_power_of_two() || align > PAGE {
            return None;
        }
        let len = bytes.max(1).div_ceil(GRANULE);
        let owner = std::process::id();
        let granule = self.with(|table| table.allocate(len, align.div_ceil(GRANULE), owner))?;
        Some(self.parts.data + granule * GRANULE)
    }

    /// Returns the granule of an offset.
    fn granule(&self, offset: usize) -> Result<usize, FreeError> {
        let from = offset.checked_sub(self.parts.data).ok_or(FreeError::Foreign)?;
        if from >= self.parts.granules * GRANULE {
            return Err(FreeError::Foreign);
        }
        if from % GRANULE == 0 { Ok(from / GRANULE) } else { Err(FreeError::Misaligned) }
    }

    /// Frees a block that any process has allocated. O(1).
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing done, if no live block starts at this offset.
    pub fn free(&self, offset: usize) -> Result<(), FreeError> {
        let granule = self.granule(offset)?;
        if self.with(|table| table.deallocate(granule)) { Ok(()) } else { Err(FreeError::NotABlock) }
    }

    /// Frees all blocks of a process that has ended, and returns their number. O(granules).
    pub fn free_all_of(&self, process: u32) -> usize {
        self.with(|table| table.deallocate_all_of(process))
    }

    /// Returns the address of an offset in this process. O(1), without the lock.
    ///
    /// # Panics
    ///
    /// If the offset is beyond the file. To check an offset from another process, call [`SharedHeap::size`], which says whether a block
    /// starts there.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "the offset is beyond the heap");
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Returns the bytes of a live block; `None` if none starts at the offset.
    pub fn size(&self, offset: usize) -> Option<usize> {
        let granule = self.granule(offset).ok()?;
        self.with(|table| table.len(granule)).map(|len| len * GRANULE)
    }

    /// Returns the bytes in live blocks, and how often the lists were rebuilt, because a process died with the lock or overwrote them.
    pub fn used(&self) -> (usize, u64) {
        let (used, recoveries) = self.with(Table::used);
        (used * GRANULE, recoveries)
    }

    /// Returns the largest request, in bytes, that is certain to succeed now.
    pub fn largest_free(&self) -> usize {
        self.with(Table::largest) * GRANULE
    }

    /// Returns the word by which processes find their first block: 0 at first. Any process may write anything there.
    pub fn root(&self) -> &AtomicU64 {
        &self.header().root
    }

    /// Returns the file, to pass it to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Refuses a file length beyond the process's limit (`RLIMIT_FSIZE`), for which the system would end the process with a signal.
fn may_have(bytes: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the place is valid for a write.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if known && usize::try_from(limit.rlim_cur).is_ok_and(|most| bytes > most) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}

/// Refuses a file that holds a heap of any version, which other processes may have mapped.
fn refuse_mark(file: &File) -> io::Result<()> {
    let mut mark = [0; 8];
    let len = file.read_at(&mut mark, 0)?;
    if len == mark.len() && u64::from_ne_bytes(mark) >> 16 == MARK {
        let text = "the file holds a heap: open it, or shorten it to 0 bytes first if no process uses it";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    Ok(())
}

impl Drop for SharedHeap {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value. The heap lives on in the file.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem;
    use core::sync::atomic::AtomicU32;
    use std::thread;

    #[test]
    fn sizes_without_room_are_refused() {
        for bytes in [0, 1, 2 * PAGE, isize::MAX as usize + 1, usize::MAX - PAGE + 2, usize::MAX] {
            let refused = SharedHeap::create(bytes).map(drop).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{bytes}");
        }
        // More granules than this cannot be numbered.
        #[cfg(target_pointer_width = "64")]
        {
            let most = (ENTRIES + 2 * PAGE + table::MOST * (GRANULE + size_of::<Entry>())) / PAGE * PAGE;
            let parts = Parts::new(most).unwrap();
            assert!(parts.granules * GRANULE > (1 << 40) - 2 * PAGE);
            let refused = SharedHeap::create(most + 2 * PAGE).map(drop).unwrap_err();
            assert!(refused.to_string().ends_with("or is above 1 TiB"), "{refused}");
        }
    }

    /// The parts of a file do not overlap, are aligned to pages, and leave only a few pages unused.
    #[test]
    fn parts_fill_their_file() {
        let least = (0..).find(|pages| Parts::new(pages * PAGE).is_some()).unwrap();
        assert!((ENTRIES..ENTRIES + 5 * PAGE).contains(&(least * PAGE)));
        for pages in (least..least + 600).chain([1 << 16]) {
            let Parts { granules, data } = Parts::new(pages * PAGE).unwrap();
            assert!(data >= ENTRIES + granules * size_of::<Entry>() && data % PAGE == 0);
            let left = (pages * PAGE).checked_sub(data + granules * GRANULE).unwrap();
            assert!(left < 3 * PAGE, "{left} bytes of {pages} pages are left");
        }
    }

    /// A thread that ends with the lock is like a process that dies with it: the next holder rebuilds the statistics and the free memory.
    #[test]
    fn what_the_dead_leave_is_repaired() {
        let heap = SharedHeap::create(60_000).unwrap();
        let whole = heap.largest_free();
        let mut random = fastrand::Rng::with_seed(7);
        let mut live: Vec<(usize, usize)> = Vec::new();
        for round in 1..200 {
            for _ in 0..random.usize(..20) {
                if random.bool() && !live.is_empty() {
                    heap.free(live.swap_remove(random.usize(..live.len())).0).unwrap();
                } else if let Some(block) = heap.allocate(random.usize(1..3000), 1) {
                    live.push((block, heap.size(block).unwrap()));
                }
            }
            let (used, _) = heap.used();
            // The holder changes data that the next holder must rebuild.
            let die = || {
                mem::forget(heap.header().lock.acquire(heap.file()));
                let words = words(&heap);
                words[random_list(&mut fastrand::Rng::with_seed(round))].store(1, Ordering::Relaxed);
            };
            thread::scope(|scope| scope.spawn(die).join().unwrap());
            assert_eq!(heap.used(), (used, round));
            assert_eq!(used, live.iter().map(|block| block.1).sum::<usize>());
            assert!(live.iter().all(|&(block, size)| heap.size(block) == Some(size)));
            check_free(&heap, used);
        }
        assert_eq!(heap.free_all_of(std::process::id()), live.len());
        assert_eq!((heap.used().0, heap.largest_free()), (0, whole));
    }

    /// Checks that every free granule is in exactly one list, once.
    fn check_free(heap: &SharedHeap, used: usize) {
        let mut rest = Vec::new();
        while heap.largest_free() > 0 {
            rest.push(heap.allocate(1, 1).unwrap());
        }
        assert_eq!(used + rest.len() * GRANULE, heap.parts.granules * GRANULE);
        rest.into_iter().for_each(|block| heap.free(block).unwrap());
    }

    /// Returns the header and the entries, word by word.
    fn words(heap: &SharedHeap) -> &[AtomicU32] {
        // SAFETY: the words are mapped, every bit pattern is valid, and accesses are atomic.
        unsafe { slice::from_raw_parts(heap.base.as_ptr().cast(), heap.parts.data / 4) }
    }

    /// Returns a word of the lists.
    fn random_list(random: &mut fastrand::Rng) -> usize {
        random.usize(mem::offset_of!(Header, lists) / 4 + 2..size_of::<Header>() / 4)
    }

    /// Returns whether a word belongs to the part of an entry that describes the live block.
    fn is_live_part(word: usize) -> bool {
        word * 4 >= ENTRIES && (word * 4 - ENTRIES) % size_of::<Entry>() < 12
    }

    /// Uses the heap at random, and checks that blocks lie in the file and every call returns, whatever the file contains.
    fn use_it(heap: &SharedHeap, random: &mut fastrand::Rng, live: &mut Vec<usize>) {
        let (data, end) = (heap.parts.data, heap.parts.data + heap.parts.granules * GRANULE);
        let inside = |block: usize, bytes: usize| block >= data && bytes <= end - block;
        for _ in 0..12 {
            let offset = data + random.usize(..heap.parts.granules) * GRANULE;
            match random.u32(..6) {
                0 | 1 => {
                    let (bytes, align) = (random.usize(..5_000), 1 << random.u32(..13));
                    if let Some(block) = heap.allocate(bytes, align) {
                        assert!(inside(block, bytes.max(1)) && block % align == 0);
                        live.push(block);
                    }
                }
                2 if !live.is_empty() => {
                    let _ = heap.free(live.swap_remove(random.usize(..live.len())));
                }
                3 => assert!(heap.size(offset).is_none_or(|bytes| inside(offset, bytes))),
                4 => {
                    let (used, _) = heap.used();
                    assert!(used <= end - data && heap.largest_free() <= end - data);
                }
                _ if random.u32(..10) == 0 => {
                    let _ = heap.free_all_of(random.u32(..3));
                }
                _ => {
                    if heap.free(offset).is_ok() {
                        live.retain(|&block| block != offset);
                    }
                }
            }
        }
    }

    /// Returns a damaged number: with a bit flipped, off by one, zero, a valid index, or random.
    fn damaged(random: &mut fastrand::Rng, old: u32, granules: usize) -> u32 {
        match random.u32(..6) {
            0 => old ^ 1 << random.u32(..32),
            1 => old.wrapping_add(1),
            2 => old.wrapping_sub(1),
            3 => 0,
            4 => random.u32(..=granules as u32 + 1),
            _ => random.u32(..),
        }
    }

    /// The heap works while other code overwrites single words of the header and the tables, or many at once.
    #[test]
    fn no_word_of_the_file_is_trusted() {
        let mut random = fastrand::Rng::with_seed(23);
        let heap = SharedHeap::create(40_000).unwrap();
        let (count, granules) = (words(&heap).len(), heap.parts.granules);
        let mut live = Vec::new();
        let damage = |heap: &SharedHeap, random: &mut fastrand::Rng, word: usize| {
            let word = &words(heap)[word];
            word.store(damaged(random, word.load(Ordering::Relaxed), granules), Ordering::Relaxed);
        };
        // Damage all words, one after another.
        for word in (0..count).filter(|&word| word * 4 < size_of::<Header>() || word * 4 >= ENTRIES) {
            damage(&heap, &mut random, word);
            use_it(&heap, &mut random, &mut live);
        }
        // Damage many words at once, and now and then all of them.
        for round in 0..150 {
            for _ in 0..random.usize(1..60) {
                let word = if random.bool() { random.usize(..count) } else { random_list(&mut random) };
                damage(&heap, &mut random, word);
            }
            use_it(&heap, &mut random, &mut live);
            if round % 75 == 0 {
                words(&heap)[..].iter().for_each(|word| word.store(random.u32(..), Ordering::Relaxed));
                use_it(&heap, &mut random, &mut live);
                words(&heap)[..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
                heap.table().rebuild();
                live.clear();
            }
        }
    }

    /// Damaged lists lose no memory and allocate none twice: live blocks stay unchanged, and the heap finds all other memory again.
    #[test]
    fn damaged_lists_are_made_anew() {
        let mut random = fastrand::Rng::with_seed(5);
        let heap = SharedHeap::create(50_000).unwrap();
        let mut live: Vec<(usize, usize)> = Vec::new();
        let lists: Vec<usize> = (mem::offset_of!(Header, lists) / 4 + 2..words(&heap).len())
            .filter(|&word| word * 4 < size_of::<Header>() || word * 4 >= ENTRIES && !is_live_part(word))
            .collect();
        for round in 0..20_000 {
            // Mostly choose a word that is not zero.
            let says = |&word: &usize| words(&heap)[word].load(Ordering::Relaxed) != 0;
            let at = random.usize(..lists.len());
            let at = lists[at..].iter().copied().find(|word| random.u32(..8) == 0 || says(word));
            let word = &words(&heap)[at.unwrap_or(lists[0])];
            word.store(
                damaged(&mut random, word.load(Ordering::Relaxed), heap.parts.granules),
                Ordering::Relaxed,
            );
            for _ in 0..8 {
                if random.usize(..30) < live.len() {
                    let (block, _) = live.swap_remove(random.usize(..live.len()));
                    assert_eq!(heap.free(block), Ok(()));
                } else if let Some(block) = heap.allocate(random.usize(1..4_000), 1 << random.u32(..13)) {
                    let size = heap.size(block).unwrap();
                    let apart =
                        |&(other, bytes): &(usize, usize)| block + size <= other || other + bytes <= block;
                    assert!(live.iter().all(apart), "round {round}");
                    live.push((block, size));
                }
            }
            assert!(live.iter().all(|&(block, size)| heap.size(block) == Some(size)));
        }
        assert!(heap.used().1 > 100, "{} times", heap.used().1);
        heap.table().rebuild();
        check_free(&heap, live.iter().map(|block| block.1).sum());
    }

    /// A live block with an overwritten length is no longer a block, and its memory is not reused.
    #[test]
    fn a_block_whose_length_was_overwritten_stays_out_of_use() {
        let heap = SharedHeap::create(100_000).unwrap();
        let blocks = [0; 3].map(|_| heap.allocate(3 * GRANULE, 1).unwrap());
        let entry =
            &words(&heap)[(ENTRIES + (blocks[1] - heap.parts.data) / GRANULE * size_of::<Entry>()) / 4..];
        for (word, wrong) in [(0, 1), (0, u32::MAX), (0, 4), (1, 7), (2, 1)] {
            let right = entry[word].load(Ordering::Relaxed);
            entry[word].store(wrong, Ordering::Relaxed);
            assert_eq!((heap.size(blocks[1]), heap.free(blocks[1])), (None, Err(FreeError::NotABlock)));
            assert_eq!(heap.free_all_of(1), 0);
            heap.table().rebuild();
            check_free(&heap, 9 * GRANULE);
            entry[word].store(right, Ordering::Relaxed);
        }
        // A forged block with a valid check, but longer than the file.
        let granule = (blocks[1] - heap.parts.data) / GRANULE;
        let right = [0, 1].map(|word| entry[word].load(Ordering::Relaxed));
        for len in [heap.parts.granules - granule + 1, u32::MAX as usize] {
            let forged = table::check(granule, len, entry[2].load(Ordering::Relaxed)) << 32 | len as u64;
            let halves =
                if cfg!(target_endian = "big") { [forged >> 32, forged] } else { [forged, forged >> 32] };
            (0..2).for_each(|half| entry[half].store(halves[half] as u32, Ordering::Relaxed));
            assert_eq!((heap.size(blocks[1]), heap.free(blocks[1])), (None, Err(FreeError::NotABlock)));
        }
        (0..2).for_each(|half| entry[half].store(right[half], Ordering::Relaxed));
        assert!(blocks.iter().all(|&block| heap.free(block).is_ok()));
    }

    /// Another thread writes to the tables all the time.
    #[test]
    fn tables_may_change_at_any_moment() {
        let heap = SharedHeap::create(40_000).unwrap();
        let first = mem::offset_of!(Header, lists) / 4;
        thread::scope(|scope| {
            let used = scope.spawn(|| {
                let (mut random, mut live) = (fastrand::Rng::with_seed(1), Vec::new());
                (0..2_000).for_each(|_| use_it(&heap, &mut random, &mut live));
            });
            let mut random = fastrand::Rng::with_seed(2);
            let words = &words(&heap)[first..];
            while !used.is_finished() {
                let word = &words[random.usize(..words.len())];
                word.store(
                    damaged(&mut random, word.load(Ordering::Relaxed), heap.parts.granules),
                    Ordering::Relaxed,
                );
                thread::yield_now();
            }
            used.join().unwrap();
        });
    }
}
