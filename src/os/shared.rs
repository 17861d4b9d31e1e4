//! A heap in memory that several processes share.

use crate::meta::{Block, FreeError, Meta, NodeSlot, SideTable};
use crate::placement::{Placement, Tlsf};
use crate::region::Region;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of a granule: what blocks are multiples of.
const GRANULE: usize = 256;

/// Bytes of a page, to which the parts of the file are aligned, and the largest alignment of blocks.
const PAGE: usize = 4096;

/// Which granules are free. The memory itself is not touched, so that it needs no address here.
type Free = Tlsf<SideTable<u32, GRANULE, 1, false>>;

/// The first word of the file: the layout of this version.
const MAGIC: u64 = 0x616c_6c6f_746d_0000 | size_of::<Header>() as u64;

/// What the file starts with.
#[repr(C)]
struct Header {
    /// [`MAGIC`], once everything else is written.
    magic: AtomicU64,
    bytes: u64,
    granules: u64,
    mutex: libc::pthread_mutex_t,
    /// For the programs: where they find their first block.
    root: AtomicU64,
    /// How often a process died with the lock.
    recoveries: u64,
    /// Bytes in live blocks.
    used: u64,
    free: MaybeUninit<Free>,
}

/// What is known of the granule with the same number. This is what counts: `free` is made anew from it after a process has died.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    /// Granules of the live block that starts here; 0 if none does.
    len: u32,
    /// The process that allocated it.
    owner: u32,
    /// The block's node in the side table.
    node: u32,
}

/// Where the parts are in a file of so many bytes.
#[derive(Clone, Copy)]
struct Parts {
    granules: usize,
    nodes: usize,
    data: usize,
}

/// Bytes from the start of the file to the entries.
const ENTRIES: usize = size_of::<Header>().next_multiple_of(PAGE);

impl Parts {
    /// Divides a file; `None` if it has no room for a block.
    fn new(bytes: usize) -> Option<Self> {
        let each = GRANULE + size_of::<Entry>() + size_of::<NodeSlot<u32>>();
        // One node more than granules, and the parts start with pages.
        let granules = bytes.checked_sub(ENTRIES + 3 * PAGE)? / each;
        let granules = granules.min(<Free as Placement>::MAX_LEN);
        let nodes = (ENTRIES + granules * size_of::<Entry>()).next_multiple_of(PAGE);
        let data = (nodes + (granules + 1) * size_of::<NodeSlot<u32>>()).next_multiple_of(PAGE);
        (granules > 0 && data + granules * GRANULE <= bytes).then_some(Self { granules, nodes, data })
    }
}

/// A heap in memory that several processes share (Linux).
///
/// A block is named by its offset, a number that means the same in every process; [`SharedHeap::address`] makes an address of it, which
/// differs from process to process. A block may be allocated by one process and freed by another.
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
/// The file is an anonymous one in memory ([`SharedHeap::create`]) or any that you have, such as one of `shm_open`
/// ([`SharedHeap::create_in`]). Blocks are multiples of 256 bytes; tables for them take another 16 % of the file, but only what was used
/// of them takes memory.
///
/// A process may die at any moment, also with the lock: the mutex is robust, and the next process that takes it makes the lists of free
/// memory anew from a table in which each allocation and each free takes effect with one store. Blocks of a dead process stay
/// live until another one frees them ([`SharedHeap::free_all_of`]). A process that writes beyond its blocks can destroy the heap.
///
/// Allocation and free are O(1), and take the lock; after a death the next one is O(granules).
pub struct SharedHeap {
    base: NonNull<u8>,
    bytes: usize,
    parts: Parts,
    file: OwnedFd,
}

// SAFETY: what is shared is accessed under the mutex in it, or atomically.
unsafe impl Send for SharedHeap {}
// SAFETY: as above.
unsafe impl Sync for SharedHeap {}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Turns the result of a function of pthread into one of Rust.
fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// Returns the placement's number of the first granule.
fn first_of(free: &Free) -> usize {
    free.meta().regions().first().map_or(0, |region| region.first)
}

impl SharedHeap {
    /// Creates a heap of `bytes` bytes, tables included, in a new file in memory. No memory is used until it is written to.
    ///
    /// # Errors
    ///
    /// Those of the system, and [`io::ErrorKind::InvalidInput`] for a size that has no room for a block.
    pub fn create(bytes: usize) -> io::Result<Self> {
        // SAFETY: the name is a string, and the descriptor is new.
        let file = unsafe {
            let descriptor = libc::memfd_create(c"allotment".as_ptr(), libc::MFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        Self::create_in(file, bytes)
    }

    /// Creates a heap of `bytes` bytes in a file, whose contents are lost.
    ///
    /// # Errors
    ///
    /// As for [`SharedHeap::create`].
    pub fn create_in(file: impl Into<OwnedFd>, bytes: usize) -> io::Result<Self> {
        // Beyond the address space there is no room either.
        let bytes = bytes.checked_next_multiple_of(PAGE).unwrap_or(0);
        let parts = Parts::new(bytes).ok_or_else(|| invalid("the size has no room for a block"))?;
        let file = File::from(file.into());
        // All zeros, whatever it was.
        file.set_len(0)?;
        file.set_len(bytes as u64)?;
        let heap = Self::map(file.into(), bytes, parts)?;
        let header = heap.header();
        // SAFETY: the file is mapped, and no other process uses it before `magic` is written.
        unsafe {
            (*header).bytes = bytes as u64;
            (*header).granules = parts.granules as u64;
            let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            checked(libc::pthread_mutexattr_init(attributes.as_mut_ptr()))?;
            let attributes = attributes.as_mut_ptr();
            checked(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
            checked(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
            checked(libc::pthread_mutex_init(&raw mut (*header).mutex, attributes))?;
            libc::pthread_mutexattr_destroy(attributes);
            heap.rebuild();
            (*header).magic.store(MAGIC, Ordering::Release);
        }
        Ok(heap)
    }

    /// Opens a heap that this or another process has created, with the same version of this crate.
    ///
    /// # Errors
    ///
    /// Those of the system, and [`io::ErrorKind::InvalidInput`] for a file that holds no such heap.
    pub fn open(file: impl Into<OwnedFd>) -> io::Result<Self> {
        let file = File::from(file.into());
        let wrong = || invalid("the file holds no heap of this version");
        let bytes = usize::try_from(file.metadata()?.len()).map_err(|_| wrong())?;
        let parts = Parts::new(bytes).ok_or_else(wrong)?;
        let heap = Self::map(file.into(), bytes, parts)?;
        let header = heap.header();
        // SAFETY: the header is mapped.
        unsafe {
            if (*header).magic.load(Ordering::Acquire) != MAGIC || (*header).bytes != bytes as u64 {
                return Err(wrong());
            }
        }
        Ok(heap)
    }

    fn map(file: OwnedFd, bytes: usize, parts: Parts) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| invalid("mapped at null"))?;
        Ok(Self { base, bytes, parts, file })
    }

    fn header(&self) -> *mut Header {
        self.base.as_ptr().cast()
    }

    fn entry(&self, granule: usize) -> *mut Entry {
        debug_assert!(granule < self.parts.granules, "the file has no such granule");
        self.base.as_ptr().wrapping_add(ENTRIES).cast::<Entry>().wrapping_add(granule)
    }

    fn nodes(&self) -> *mut NodeSlot<u32> {
        self.base.as_ptr().wrapping_add(self.parts.nodes).cast()
    }

    /// Makes the lists of free memory from the entries.
    ///
    /// # Safety
    ///
    /// The caller must hold the lock, or be alone.
    unsafe fn rebuild(&self) {
        let Parts { granules, data, .. } = self.parts;
        // SAFETY: the caller's contract; the nodes are in the file, which has room for one more than there are granules, and `data` and
        // `granules` describe memory that the placement does not touch. So nothing here can fail.
        unsafe {
            let free = (*self.header()).free.write(Free::EMPTY);
            let slots = slice::from_raw_parts_mut(self.nodes(), granules + 1);
            let _ = free.meta_mut().provide(slots);
            let region = Region { zeroed: false, ..Region::new(data, granules * GRANULE) };
            let claimed = free.claim(region);
            debug_assert!(claimed.is_ok());
            let Some(mut rest) = Placement::allocate(free, granules, 1) else { return };
            let mut used = 0;
            let (mut at, mut gap) = (0, 0);
            // Cut from the front: gaps, which become free, and live blocks.
            while at < granules {
                let entry = self.entry(at);
                let len = (*entry).len as usize;
                if len == 0 {
                    at += 1;
                    gap += 1;
                    continue;
                }
                if gap > 0 {
                    rest = Self::cut(free, rest, gap, true).1;
                    gap = 0;
                }
                used += len;
                at += len;
                if at >= granules {
                    (*entry).node = rest.token;
                    break;
                }
                let (block, back) = Self::cut(free, rest, len, false);
                (*entry).node = block.token;
                rest = back;
            }
            if gap > 0 {
                let _ = free.deallocate(rest, gap, 1);
            }
            (*self.header()).used = (used * GRANULE) as u64;
        }
    }

    /// Cuts the first `len` granules off a block, and frees them if `give` is true. Returns both parts.
    ///
    /// # Safety
    ///
    /// The block must be longer.
    unsafe fn cut(free: &mut Free, block: Block<u32>, len: usize, give: bool) -> (Block<u32>, Block<u32>) {
        // SAFETY: the caller guarantees the length, and there is a node for each granule.
        unsafe {
            let parts = free.meta_mut().cut(block, len).unwrap_unchecked();
            if give {
                let _ = free.deallocate(parts.0, len, 1);
            }
            parts
        }
    }

    /// Runs `f` with the lock, after what a dead process has left is mended.
    fn with<T>(&self, f: impl FnOnce(&mut Header, &mut Free) -> T) -> T {
        /// Unlocks, even if the closure unwinds.
        struct Guard(*mut libc::pthread_mutex_t);
        impl Drop for Guard {
            fn drop(&mut self) {
                // SAFETY: this thread holds the mutex.
                unsafe { libc::pthread_mutex_unlock(self.0) };
            }
        }
        let header = self.header();
        // SAFETY: the mutex was initialised when the heap was created; all that it guards is accessed by its holder only.
        unsafe {
            let mutex = &raw mut (*header).mutex;
            let result = libc::pthread_mutex_lock(mutex);
            // Every other error is one of a damaged mutex.
            assert!(result == 0 || result == libc::EOWNERDEAD, "the lock of a shared heap is damaged");
            let _guard = Guard(mutex);
            if result == libc::EOWNERDEAD {
                self.rebuild();
                (*header).recoveries += 1;
                libc::pthread_mutex_consistent(mutex);
            }
            let free = (*header).free.as_mut_ptr();
            (*free).meta_mut().nodes_moved(self.nodes());
            f(&mut *header, &mut *free)
        }
    }

    /// Allocates `bytes` bytes aligned to `align`, and returns the offset of the block, which is not 0; `None` if there is no room or the
    /// alignment is no power of two up to 4096. O(1).
    pub fn allocate(&self, bytes: usize, align: usize) -> Option<usize> {
        if !align.is_power_of_two() || align > PAGE {
            return None;
        }
        let len = bytes.max(1).div_ceil(GRANULE);
        let align = align.div_ceil(GRANULE);
        let owner = std::process::id();
        self.with(|header, free| {
            if len > self.parts.granules {
                return None;
            }
            let block = Placement::allocate(free, len, align)?;
            let granule = block.offset - first_of(free);
            let entry = self.entry(granule);
            // SAFETY: the granule is one of the file's, and ours. The length is written last: with it, the block is live.
            unsafe {
                (*entry).owner = owner;
                (*entry).node = block.token;
                compiler_fence(Ordering::Release);
                (&raw mut (*entry).len).write_volatile(block.len as u32);
            }
            header.used += (block.len * GRANULE) as u64;
            Some(self.parts.data + granule * GRANULE)
        })
    }

    /// Returns the granule at which a live block starts whose offset is this one. The caller must hold the lock.
    fn live(&self, offset: usize) -> Result<usize, FreeError> {
        let from = offset.checked_sub(self.parts.data).ok_or(FreeError::Foreign)?;
        if from >= self.parts.granules * GRANULE {
            return Err(FreeError::Foreign);
        }
        if from % GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        // SAFETY: the granule is one of the file's.
        if unsafe { (*self.entry(from / GRANULE)).len } == 0 {
            return Err(FreeError::NotABlock);
        }
        Ok(from / GRANULE)
    }

    /// Frees the block that starts at a granule.
    fn give(&self, header: &mut Header, free: &mut Free, granule: usize) -> Result<(), FreeError> {
        // SAFETY: the caller has found a live block there. Once its length is gone, it is free.
        unsafe {
            let entry = self.entry(granule);
            let Entry { len, node, .. } = *entry;
            (&raw mut (*entry).len).write_volatile(0);
            let len = len as usize;
            header.used -= (len * GRANULE) as u64;
            free.deallocate(Block { offset: first_of(free) + granule, len, token: node }, len, 1).map(drop)
        }
    }

    /// Frees a block, whichever process has allocated it. O(1).
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing done, if no live block starts at this offset.
    pub fn free(&self, offset: usize) -> Result<(), FreeError> {
        self.with(|header, free| {
            let granule = self.live(offset)?;
            self.give(header, free, granule)
        })
    }

    /// Frees all blocks that a process has allocated, which has ended, and returns their number. O(granules).
    pub fn free_all_of(&self, process: u32) -> usize {
        self.with(|header, free| {
            let (mut at, mut count) = (0, 0);
            while at < self.parts.granules {
                // SAFETY: the granule is one of the file's.
                let Entry { len, owner, .. } = unsafe { *self.entry(at) };
                if len != 0 && owner == process && self.give(header, free, at).is_ok() {
                    count += 1;
                }
                at += len.max(1) as usize;
            }
            count
        })
    }

    /// Returns the address of an offset in this process. O(1), without the lock.
    ///
    /// # Panics
    ///
    /// If the offset is beyond the file.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "the offset is beyond the heap");
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Returns the bytes of a live block; `None` if none starts there.
    pub fn size(&self, offset: usize) -> Option<usize> {
        self.with(|_, _| {
            let granule = self.live(offset).ok()?;
            // SAFETY: the granule is one of the file's.
            Some(unsafe { (*self.entry(granule)).len } as usize * GRANULE)
        })
    }

    /// Returns the bytes in live blocks, and how often a process died with the lock.
    pub fn used(&self) -> (usize, u64) {
        self.with(|header, _| (header.used as usize, header.recoveries))
    }

    /// Returns the largest request, in bytes, that is sure to succeed now.
    pub fn largest_free(&self) -> usize {
        self.with(|_, free| free.largest() * GRANULE)
    }

    /// The word by which processes find their first block: 0 at first.
    pub fn root(&self) -> &AtomicU64 {
        // SAFETY: the header stays mapped as long as the heap, and the word is only accessed atomically.
        unsafe { &(*self.header()).root }
    }

    /// Returns the file, to hand it to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedHeap {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. The heap lives on in the file.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::vec::Vec;

    #[test]
    fn results_of_pthread_are_errors_of_the_system() {
        assert!(checked(0).is_ok());
        assert_eq!(checked(libc::EINVAL).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn sizes_without_room_are_refused() {
        for bytes in [0, 1, 2 * PAGE, isize::MAX as usize + 1, usize::MAX - PAGE + 2, usize::MAX] {
            let refused = SharedHeap::create(bytes).map(drop).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{bytes}");
        }
    }

    /// The parts of a file do not overlap, begin with pages, and leave less than some pages over.
    #[test]
    fn parts_fill_their_file() {
        let least = (0..).find(|pages| Parts::new(pages * PAGE).is_some()).unwrap();
        assert!((ENTRIES..ENTRIES + 5 * PAGE).contains(&(least * PAGE)));
        for pages in (least..least + 600).chain([1 << 16]) {
            let Parts { granules, nodes, data } = Parts::new(pages * PAGE).unwrap();
            assert!(nodes >= ENTRIES + granules * size_of::<Entry>() && nodes % PAGE == 0);
            assert!(data >= nodes + (granules + 1) * size_of::<NodeSlot<u32>>() && data % PAGE == 0);
            let left = (pages * PAGE).checked_sub(data + granules * GRANULE).unwrap();
            assert!(left < 4 * PAGE, "{left} bytes of {pages} pages are left");
        }
    }

    /// A thread that ends with the lock is like a process that dies with it: the figures and the free memory are made anew.
    #[test]
    fn what_the_dead_leave_is_mended() {
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
            thread::scope(|scope| {
                let die = || {
                    // SAFETY: the mutex is initialised. Its holder changes figures that the next one has to make anew.
                    unsafe {
                        let header = heap.header();
                        libc::pthread_mutex_lock(&raw mut (*header).mutex);
                        (*header).used = 1;
                    }
                };
                scope.spawn(die).join().unwrap();
            });
            assert_eq!(heap.used(), (used, round));
            assert_eq!(used, live.iter().map(|block| block.1).sum());
            assert!(live.iter().all(|&(block, size)| heap.size(block) == Some(size)));
            // What is free is free once.
            let mut rest = Vec::new();
            while heap.largest_free() > 0 {
                rest.push(heap.allocate(1, 1).unwrap());
            }
            assert_eq!(used + rest.len() * GRANULE, heap.parts.granules * GRANULE);
            rest.into_iter().for_each(|block| heap.free(block).unwrap());
        }
        assert_eq!(heap.free_all_of(std::process::id()), live.len());
        assert_eq!((heap.used().0, heap.largest_free()), (0, whole));
    }
}
