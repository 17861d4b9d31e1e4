//! System memory for a heap, a zone or a pool: huge pages, NUMA nodes, prefaulted pages, locked pages.

use crate::region::Region;
use std::io;

/// The pages that the system uses for a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Huge {
    /// Asks the kernel for transparent huge pages (`MADV_HUGEPAGE`): it uses them at once where it has them, and joins ordinary pages
    /// later.
    Advise,
    /// Asks the kernel for ordinary pages (`MADV_NOHUGEPAGE`), even where huge ones are its default.
    Never,
    /// Uses pages of this size in bytes, a power of two, from the table that the administrator has filled (`hugetlbfs`,
    /// `vm.nr_hugepages`).
    Table(usize),
}

/// Why the system does not provide the memory that a [`Mapping`] requests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// This system cannot do it at all: it is not Linux, or its kernel or processor lacks the feature.
    #[error("this system cannot map memory in this way")]
    Unsupported,
    /// The size is zero or too large, or the page size is no power of two.
    #[error("a mapping cannot have this size, or pages of this size")]
    Size,
    /// There are no addresses or no memory left: request less, or raise the address limit (`ulimit -v`).
    #[error("the system has no addresses or memory left: {0}")]
    Memory(#[source] io::Error),
    /// The machine's table has too few free pages of this size, or none at all: raise `vm.nr_hugepages`.
    #[error("the table of huge pages has not enough of this size: {0}")]
    Table(#[source] io::Error),
    /// A node does not exist, or the process may not use it.
    #[error("the memory cannot be on these nodes: {0}")]
    Node(#[source] io::Error),
    /// The system cannot provide the pages now: memory has run out on these nodes, or in the process's control group.
    #[error("the pages cannot be provided now: {0}")]
    Populate(#[source] io::Error),
    /// The process may not lock that much memory: raise its limit (`ulimit -l`, `RLIMIT_MEMLOCK`).
    #[error("the process may not lock so much memory: {0}")]
    Lock(#[source] io::Error),
}

/// The choice of nodes for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Any nodes that the kernel chooses.
    Any,
    /// These nodes only.
    Bind,
    /// These nodes in turn, page by page.
    Interleave,
}

/// Maximum number of nodes in a machine.
const NODES: usize = 1024;

/// A set of nodes, one bit each, in the words that the kernel reads.
type Nodes = [usize; NODES / usize::BITS as usize];

/// A builder for a region of system memory, for any heap, zone or pool.
///
/// ```
/// use allotment::os::{Huge, Mapping};
/// use allotment::{Heap, Tlsf, lock::Unsync};
///
/// let heap = Heap::<Tlsf, Unsync>::empty();
/// # #[cfg(target_os = "linux")]
/// // SAFETY: the mapping is new, and it is never unmapped.
/// unsafe { heap.claim(Mapping::new(8 << 20).huge(Huge::Advise).populate().map()?) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The memory is zero, private to the process, and stays until [`Mapping::unmap`]. If the kernel refuses an option, the error names it,
/// and nothing stays mapped. All other options take effect before the first page is present, so that `populate` and `lock` provide pages
/// of the right kind, on the right node.
///
/// Linux. Elsewhere [`Mapping::map`] returns [`MapError::Unsupported`].
#[derive(Clone, Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "no other system grants these wishes"))]
pub struct Mapping {
    size: usize,
    huge: Option<Huge>,
    policy: Policy,
    nodes: Nodes,
    /// Whether the list of nodes is empty or has a number that no machine has.
    no_node: bool,
    populate: bool,
    lock: bool,
    tagged: bool,
}

impl Mapping {
    /// Requests `size` bytes, rounded up to whole pages.
    pub const fn new(size: usize) -> Self {
        Self {
            size,
            huge: None,
            policy: Policy::Any,
            nodes: [0; NODES / usize::BITS as usize],
            no_node: false,
            populate: false,
            lock: false,
            tagged: false,
        }
    }

    /// Requests huge pages, or none. The default is the machine's setting. With [`Huge::Advise`], a mapping of 2 MiB or more starts at a
    /// multiple of 2 MiB.
    pub const fn huge(mut self, huge: Huge) -> Self {
        self.huge = Some(huge);
        self
    }

    /// Requests memory of one node only, by the kernel's number (`/sys/devices/system/node`). Replaces an earlier choice of nodes.
    pub fn node(self, node: u32) -> Self {
        self.on(Policy::Bind, &[node])
    }

    /// Requests memory of several nodes in turn, page by page. Replaces an earlier choice of nodes.
    pub fn interleave(self, nodes: &[u32]) -> Self {
        self.on(Policy::Interleave, nodes)
    }

    fn on(mut self, policy: Policy, nodes: &[u32]) -> Self {
        (self.policy, self.nodes, self.no_node) = (policy, [0; _], nodes.is_empty());
        for &node in nodes {
            match self.nodes.get_mut(node as usize / usize::BITS as usize) {
                Some(word) => *word |= 1 << (node % usize::BITS),
                None => self.no_node = true,
            }
        }
        self
    }

    /// Requests all pages at once, so that later accesses cause no page faults.
    pub const fn populate(mut self) -> Self {
        self.populate = true;
        self
    }

    /// Requests pages that stay in memory and are never swapped out (`mlock`). They are also present at once.
    pub const fn lock(mut self) -> Self {
        self.lock = true;
        self
    }

    /// Requests tagged memory for [`Tagged`](super::Tagged), from an Arm processor and a kernel that support tags. From then on, the
    /// processor checks the accesses of this thread and of the threads that it starts later. Earlier threads must request a tagged
    /// mapping too, or must not use the blocks.
    pub const fn tagged(mut self) -> Self {
        self.tagged = true;
        self
    }

    /// Maps the memory.
    ///
    /// # Errors
    ///
    /// [`MapError`], with nothing mapped.
    pub fn map(&self) -> Result<Region, MapError> {
        #[cfg(all(target_os = "linux", not(miri)))]
        return linux::map(self);
        #[cfg(not(all(target_os = "linux", not(miri))))]
        Err(MapError::Unsupported)
    }

    /// Releases a mapping to the system.
    ///
    /// # Errors
    ///
    /// [`MapError::Memory`] if the system refuses, because it has no room to record the hole in its mappings.
    ///
    /// # Safety
    ///
    /// The region must be unchanged since [`Mapping::map`] returned it, and nothing may use it any more.
    pub unsafe fn unmap(region: Region) -> Result<(), MapError> {
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: the caller's contract.
        return unsafe { linux::unmap(region) };
        #[cfg(not(all(target_os = "linux", not(miri))))]
        {
            let _ = region;
            Err(MapError::Unsupported)
        }
    }
}

/// Returns the node that the calling thread runs on.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
pub(super) fn current_node() -> Option<u32> {
    let mut node = 0_u32;
    let (processor, cache) = (core::ptr::null_mut::<u32>(), core::ptr::null_mut::<u8>());
    // SAFETY: the place is valid for a write, and the kernel writes nowhere else.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, processor, &raw mut node, cache) };
    (result == 0).then_some(node)
}

/// Turns transparent huge pages for a region on or off.
///
/// # Safety
///
/// The region must be a mapping of the caller.
#[cfg(any(unix, windows))]
pub(super) unsafe fn advise(region: Region, huge: Huge) -> Result<(), MapError> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let advice = match huge {
            Huge::Advise => rustix::mm::Advice::LinuxHugepage,
            Huge::Never => rustix::mm::Advice::LinuxNoHugepage,
            Huge::Table(_) => return Err(MapError::Unsupported),
        };
        // SAFETY: the caller's contract. A kernel without such pages rejects the advice.
        if unsafe { rustix::mm::madvise(region.start.as_ptr().cast(), region.size, advice) }.is_ok() {
            return Ok(());
        }
    }
    let _ = (region, huge);
    Err(MapError::Unsupported)
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use super::{Huge, MapError, Mapping, NODES, Policy};
    use crate::os::tagged;
    use crate::region::Region;
    use core::ptr::{self, NonNull};
    use rustix::io::Errno;
    use rustix::mm::{self, Advice, MapFlags, ProtFlags};
    use std::io;

    /// Bytes of a transparent huge page on nearly all machines.
    const TRANSPARENT: usize = 2 << 20;

    /// A guard that unmaps a new mapping unless all options take effect.
    struct Guard(Region);

    impl Drop for Guard {
        fn drop(&mut self) {
            // SAFETY: the mapping is new, and nothing else uses it.
            let _ = unsafe { unmap(self.0) };
        }
    }

    fn page() -> usize {
        // SAFETY: it has no preconditions.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(64 * 1024)
    }

    /// Creates the error for an option that the kernel refused.
    fn refused(error: fn(io::Error) -> MapError) -> impl Fn(Errno) -> MapError {
        move |cause| if cause == Errno::NOSYS { MapError::Unsupported } else { error(cause.into()) }
    }

    pub(super) fn map(wish: &Mapping) -> Result<Region, MapError> {
        let (unit, flags, error): (_, _, fn(_) -> _) = match wish.huge {
            Some(Huge::Table(size)) if !size.is_power_of_two() => return Err(MapError::Size),
            Some(Huge::Table(size)) => {
                let log = size.trailing_zeros() << libc::MAP_HUGE_SHIFT;
                let flags = MapFlags::HUGETLB | MapFlags::from_bits_retain(log);
                (size, flags, MapError::Table)
            }
            _ => (page(), MapFlags::empty(), MapError::Memory),
        };
        let size = wish.size.checked_next_multiple_of(unit).filter(|&size| size > 0).ok_or(MapError::Size)?;
        let align = match wish.huge {
            Some(Huge::Advise) if size >= TRANSPARENT => TRANSPARENT,
            _ => unit,
        };
        // A mapping is aligned to its own page size.
        let long = size.checked_add(align - unit).ok_or(MapError::Size)?;
        let (mut access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | flags);
        if wish.tagged {
            if !tagged::begin() {
                return Err(MapError::Unsupported);
            }
            // PROT_MTE, which rustix defines for one processor only.
            access |= ProtFlags::from_bits_retain(0x20);
        }
        // SAFETY: a new mapping.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), long, access, flags) };
        let start = start.map_err(refused(error))?.cast::<u8>();
        let front = start.addr().next_multiple_of(align) - start.addr();
        let region = Region { zeroed: true, ..Region::new(start.wrapping_add(front), size) };
        for (part, bytes) in [(start, front), (start.wrapping_add(front + size), align - unit - front)] {
            if bytes > 0 {
                // SAFETY: the part is in the mapping and not in the region.
                let _ = unsafe { mm::munmap(part.cast(), bytes) };
            }
        }
        let guard = Guard(region);
        keep(wish, region)?;
        core::mem::forget(guard);
        Ok(region)
    }

    /// Applies the options that follow the mapping, in an order that lets them affect even the first pages.
    fn keep(wish: &Mapping, region: Region) -> Result<(), MapError> {
        let (start, size) = (region.start.as_ptr().cast(), region.size);
        if let Some(huge @ (Huge::Advise | Huge::Never)) = wish.huge {
            // SAFETY: the memory is a new mapping of this call.
            unsafe { super::advise(region, huge)? };
        }
        if wish.policy != Policy::Any {
            if wish.no_node {
                return Err(MapError::Node(Errno::INVAL.into()));
            }
            let mode = if wish.policy == Policy::Bind { libc::MPOL_BIND } else { libc::MPOL_INTERLEAVE };
            // The kernel reads one bit fewer than the number it gets.
            // SAFETY: the memory is a new mapping of this call; the set of nodes has that many bits.
            let result = unsafe {
                libc::syscall(libc::SYS_mbind, start, size, mode, wish.nodes.as_ptr(), NODES + 1, 0)
            };
            if result != 0 {
                let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL);
                return Err(refused(MapError::Node)(errno));
            }
        }
        if wish.populate {
            populate(region.start, size).map_err(refused(MapError::Populate))?;
        }
        if wish.lock {
            // SAFETY: as above.
            unsafe { mm::mlock(start, size) }.map_err(refused(MapError::Lock))?;
        }
        Ok(())
    }

    /// Makes the kernel provide all pages of memory. Before Linux 5.14 this takes a write to each page.
    fn populate(start: NonNull<u8>, size: usize) -> Result<(), Errno> {
        // SAFETY: the mapping is new.
        match unsafe { mm::madvise(start.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) => {}
            done => return done,
        }
        for offset in (0..size).step_by(page()) {
            // SAFETY: as above.
            unsafe { start.as_ptr().add(offset).write_volatile(0) };
        }
        Ok(())
    }

    /// Unmaps a region.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::unmap`].
    pub(super) unsafe fn unmap(region: Region) -> Result<(), MapError> {
        // SAFETY: the caller guarantees that nothing uses it.
        unsafe { mm::munmap(region.start.as_ptr().cast(), region.size) }.map_err(refused(MapError::Memory))
    }
}
