//! System calls of the growing heap.

use core::ptr::NonNull;
use core::sync::atomic::AtomicUsize;

/// Outcome of a move without copying.
#[derive(Clone, Copy, PartialEq, Eq)]
// Only Linux moves memory.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) enum Shift {
    /// The memory is at its new place.
    Moved,
    /// The memory is unmoved.
    Refused,
    /// The memory is unmoved, and the target addresses may belong to other code.
    Lost,
}

/// Address ranges from the operating system.
///
/// # Safety
///
/// A reserved range must belong to this program alone, and committed memory must be valid for reads and writes, and zero until it is
/// written to.
pub(super) unsafe trait System {
    /// Reserves `bytes` bytes of addresses without memory, aligned to a page of the system.
    fn reserve(bytes: usize) -> Option<NonNull<u8>>;

    /// Releases reserved addresses.
    ///
    /// # Safety
    ///
    /// The range must come from [`System::reserve`] and must not be used any more.
    unsafe fn release(start: NonNull<u8>, bytes: usize);

    /// Commits memory to reserved addresses, and returns whether that was possible. `start` and `bytes` are multiples of
    /// 64 KiB.
    ///
    /// # Safety
    ///
    /// The range must be reserved, and not committed yet.
    unsafe fn commit(start: *mut u8, bytes: usize) -> bool;

    /// Decommits the memory at these addresses. They stay committed, and read as zero. Returns whether that was possible;
    /// otherwise the contents are unchanged. `start` and `bytes` are multiples of [`System::page`].
    ///
    /// # Safety
    ///
    /// The range must be committed, and its contents must not be needed any more.
    unsafe fn purge(start: *mut u8, bytes: usize) -> bool;

    /// Moves the memory at `from` to `to` without copying, and returns the outcome. `from` reads as zero after a move. All arguments are
    /// multiples of [`System::page`].
    ///
    /// # Safety
    ///
    /// Both ranges must be committed and must not overlap, and the contents of `to` must not be needed any more. If the outcome is
    /// [`Shift::Lost`], `to` must not be used again.
    unsafe fn shift(_from: *mut u8, _to: *mut u8, _bytes: usize) -> Shift {
        Shift::Refused
    }

    /// Makes the system provide the pages of committed memory at once, without changing their contents. Returns whether it did. `start`
    /// and `bytes` are multiples of [`System::page`].
    ///
    /// # Safety
    ///
    /// The range must be committed.
    unsafe fn populate(_start: *mut u8, _bytes: usize) -> bool {
        false
    }

    /// Returns the bytes of a system page.
    fn page() -> usize;

    /// Returns the granularity of purges in bytes: a page, or a huge page while the heap uses those.
    fn unit() -> usize {
        Self::page()
    }

    /// Returns the bytes of the machine's memory; 0 if unknown.
    fn memory() -> u64 {
        0
    }

    /// Returns the bytes of addresses that the process may have now; `usize::MAX` if there is no limit, or if the system enforces the
    /// limit itself.
    fn address_space() -> usize {
        usize::MAX
    }

    /// Returns the milliseconds of a clock that never goes back. A coarse clock is enough.
    fn now() -> u64;

    /// Resets the records of free blocks whose memory is about to have other contents.
    fn forget(_start: *mut u8, _bytes: usize) {}
}

/// Bytes of the largest page on any system.
pub(super) const LARGEST_PAGE: usize = 64 * 1024;

/// Bytes of a huge page while the heap uses huge pages; otherwise 0.
pub(super) static UNIT: AtomicUsize = AtomicUsize::new(0);

/// The operating system that the program runs on.
pub(super) struct Host;

#[cfg(all(unix, not(miri)))]
mod unix {
    #[cfg(target_os = "linux")]
    use super::Shift;
    use super::{Host, LARGEST_PAGE, NonNull, System};
    use core::ffi::c_void;
    use core::ptr;
    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

    /// Returns the preferred place for reserved addresses, or null for any place. Addresses there lack a bit that other mappings have, so
    /// that a free can distinguish sampled blocks. The place is as random as the addresses of the stack and of this code together.
    fn wish(bytes: usize) -> *mut c_void {
        /// A bit that the addresses of mappings and of the stack have on x86-64, and on other processors with 47 bits or more. The thread
        /// sanitizer can watch addresses without it, too.
        const ABSENT: u64 = 1 << 42;
        const RANDOM: u64 = 0xff_ffff_0000;
        let (stack, code) = (ptr::from_ref(&bytes).addr() as u64, wish as *const () as u64);
        if !cfg!(target_os = "linux") || stack & ABSENT == 0 {
            return ptr::null_mut();
        }
        let end = stack & !ABSENT & !(LARGEST_PAGE as u64 - 1);
        ptr::without_provenance_mut(end.saturating_sub((code & RANDOM) + bytes as u64) as usize)
    }

    // SAFETY: `mmap` returns a range that nothing else uses; anonymous memory is zero at first, and again after it was
    // returned to the system.
    unsafe impl System for Host {
        fn reserve(bytes: usize) -> Option<NonNull<u8>> {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping, which replaces no other.
            let start = unsafe { rustix::mm::mmap_anonymous(wish(bytes), bytes, ProtFlags::empty(), flags) };
            NonNull::new(start.ok()?.cast())
        }

        unsafe fn release(start: NonNull<u8>, bytes: usize) {
            // SAFETY: the caller guarantees that the range is not used any more.
            let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
        }

        unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the range is reserved.
            unsafe { rustix::mm::mprotect(start.cast::<c_void>(), bytes, flags) }.is_ok()
        }

        #[cfg(any(target_os = "linux", target_os = "android"))]
        unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
            // SAFETY: the caller guarantees that the contents are not needed.
            unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
        }

        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
            // On other systems the advice may keep the contents, so map the range again.
            let _ = Advice::DontNeed;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: the range belongs to this program, and its contents are not needed.
            unsafe {
                rustix::mm::mmap_anonymous(start.cast(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
            }
            .is_ok()
        }

        #[cfg(target_os = "linux")]
        unsafe fn populate(start: *mut u8, bytes: usize) -> bool {
            // SAFETY: the advice changes no contents.
            unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok()
        }

        fn unit() -> usize {
            super::UNIT.load(core::sync::atomic::Ordering::Relaxed).max(Self::page())
        }

        #[cfg(target_os = "linux")]
        unsafe fn shift(from: *mut u8, to: *mut u8, bytes: usize) -> Shift {
            use rustix::mm::MremapFlags;
            // rustix lacks the second flag with some of its backends.
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
            // First move to a place that the kernel chooses. Before Linux 6.17 the kernel cannot move two mappings in one call, and a
            // call that names the target fails only after it has unmapped the target.
            // SAFETY: the range is committed. rustix does not pass the target, which the kernel reads with this flag.
            let between =
                unsafe { libc::mremap(from.cast(), bytes, bytes, flags, ptr::null_mut::<c_void>()) };
            if between == libc::MAP_FAILED {
                return Shift::Refused;
            }
            // SAFETY: the memory is a single mapping now, and the contents at `to` are not needed.
            let moved = unsafe {
                rustix::mm::mremap_fixed(between, bytes, bytes, MremapFlags::MAYMOVE, to.cast::<c_void>())
            };
            if moved.is_ok() {
                return Shift::Moved;
            }
            // The kernel has run out of memory or mappings.
            // SAFETY: `from` is still mapped, but empty, so its contents can return there; nothing else uses the mapping in between.
            unsafe {
                ptr::copy_nonoverlapping(between.cast::<u8>(), from, bytes);
                let _ = rustix::mm::munmap(between, bytes);
            }
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: it maps only free addresses: those of `to`, if the failed call has unmapped them.
            let there = unsafe {
                rustix::mm::mmap_anonymous(to.cast(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
            };
            match there {
                Ok(_) => Shift::Refused,
                // The old mapping still exists, or another thread has mapped something in its place.
                Err(rustix::io::Errno::EXIST) => Shift::Lost,
                // The heap relies on these addresses.
                Err(_) => std::process::abort(),
            }
        }

        fn page() -> usize {
            // SAFETY: it has no preconditions.
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(super::LARGEST_PAGE)
        }

        #[cfg(any(target_os = "linux", target_os = "android"))]
        fn memory() -> u64 {
            let info = rustix::system::sysinfo();
            (info.totalram as u64).saturating_mul(info.mem_unit.into())
        }

        #[cfg(any(target_os = "linux", target_os = "android"))]
        fn address_space() -> usize {
            // The system checks the limit when it reserves addresses, but not when it commits memory.
            let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the place is valid for a write.
            unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
            usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
        }

        fn now() -> u64 {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
            #[cfg(not(any(target_os = "linux", target_os = "android")))]
            const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the place is valid for a write. Every such system has the clock.
            unsafe { libc::clock_gettime(CLOCK, &mut time) };
            time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
        }

        #[cfg(target_os = "linux")]
        fn forget(start: *mut u8, bytes: usize) {
            super::super::record::forget(start, bytes);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// The time is in milliseconds of the kernel's clock. The coarse clock lags the precise clock by a tick, for which a second is
        /// plenty.
        #[test]
        fn time_is_in_milliseconds() {
            let precise = || {
                let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: the place is valid for a write.
                unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
                std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_millis() as u64
            };
            let before = precise();
            let now = Host::now();
            assert!(now + 1000 >= before && now <= precise(), "{now} ms, {before} ms before");
        }

        /// If the kernel keeps the memory as two mappings, a call moves all of it or none, and the target stays mapped.
        #[test]
        #[cfg(target_os = "linux")]
        fn what_cannot_be_moved_is_left_alone() {
            const BYTES: usize = 1 << 20;
            let range = Host::reserve(3 * BYTES).unwrap().as_ptr();
            // SAFETY: the range belongs to the test, which commits it before use and releases it at the end.
            unsafe {
                assert!(Host::commit(range, 3 * BYTES));
                let (from, to) = (range, range.add(2 * BYTES));
                for (round, parts) in [false, true].into_iter().enumerate() {
                    let fill = round as u8 + 1;
                    if parts {
                        assert_eq!(
                            libc::madvise(from.add(BYTES / 2).cast(), BYTES / 2, libc::MADV_DONTDUMP),
                            0
                        );
                    }
                    from.write_bytes(fill, BYTES);
                    to.write_bytes(9, BYTES);
                    let place = if Host::shift(from, to, BYTES) == Shift::Moved { to } else { from };
                    let bytes = core::slice::from_raw_parts(place, BYTES);
                    assert!(bytes.iter().all(|&byte| byte == fill));
                    from.write_bytes(7, BYTES);
                    to.write_bytes(7, BYTES);
                }
                Host::release(NonNull::new_unchecked(range), 3 * BYTES);
            }
        }
    }
}

/// Miri has no reserved addresses, so all memory is committed at once.
#[cfg(miri)]
mod interpreter {
    use super::{Host, LARGEST_PAGE, NonNull, System};
    use std::alloc::{GlobalAlloc, Layout};

    /// Maximum number of bytes, so that Miri finishes soon.
    const MOST: usize = 16 << 20;

    // SAFETY: each block of Miri's allocator belongs to this program alone, and is zero at first.
    unsafe impl System for Host {
        fn reserve(bytes: usize) -> Option<NonNull<u8>> {
            let layout = Layout::from_size_align(bytes, LARGEST_PAGE).ok().filter(|_| bytes <= MOST)?;
            // SAFETY: heaps never reserve zero bytes.
            NonNull::new(unsafe { std::alloc::System.alloc_zeroed(layout) })
        }

        unsafe fn release(start: NonNull<u8>, bytes: usize) {
            // SAFETY: the range was allocated above with this layout.
            unsafe {
                let layout = Layout::from_size_align_unchecked(bytes, LARGEST_PAGE);
                std::alloc::System.dealloc(start.as_ptr(), layout);
            }
        }

        unsafe fn commit(_: *mut u8, _: usize) -> bool {
            true
        }

        unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
            // SAFETY: the caller guarantees that the contents are not needed.
            unsafe { start.write_bytes(0, bytes) };
            true
        }

        fn page() -> usize {
            4096
        }

        fn now() -> u64 {
            0
        }
    }
}

#[cfg(all(windows, not(miri)))]
mod windows {
    use super::{Host, NonNull, System};
    use core::ffi::c_void;
    use core::ptr;

    /// Kinds of `VirtualAlloc` and `VirtualFree`.
    const COMMIT: u32 = 0x1000;
    const RESERVE: u32 = 0x2000;
    const DECOMMIT: u32 = 0x4000;
    const RELEASE: u32 = 0x8000;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn VirtualAlloc(address: *mut c_void, size: usize, kind: u32, protection: u32) -> *mut c_void;
        fn VirtualFree(address: *mut c_void, size: usize, kind: u32) -> i32;
        fn GetTickCount64() -> u64;
    }

    /// Protections of pages.
    const NO_ACCESS: u32 = 1;
    const READ_WRITE: u32 = 4;

    // SAFETY: `VirtualAlloc` returns a range that nothing else uses, aligned to a page; committed memory is zero.
    unsafe impl System for Host {
        fn reserve(bytes: usize) -> Option<NonNull<u8>> {
            // SAFETY: a new range at an address that the system chooses.
            NonNull::new(unsafe { VirtualAlloc(ptr::null_mut(), bytes, RESERVE, NO_ACCESS) }.cast())
        }

        unsafe fn release(start: NonNull<u8>, _: usize) {
            // SAFETY: the caller guarantees that the range is not used any more.
            unsafe { VirtualFree(start.as_ptr().cast(), 0, RELEASE) };
        }

        unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
            // SAFETY: the range is reserved.
            !unsafe { VirtualAlloc(start.cast(), bytes, COMMIT, READ_WRITE) }.is_null()
        }

        unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
            // SAFETY: the contents are not needed; decommitted memory is zero when it is committed again.
            unsafe {
                if VirtualFree(start.cast(), bytes, DECOMMIT) == 0 {
                    return false;
                }
                if VirtualAlloc(start.cast(), bytes, COMMIT, READ_WRITE).is_null() {
                    // Another process has used up the system's memory in between, and the caller relies on these addresses.
                    std::process::abort();
                }
            }
            true
        }

        fn page() -> usize {
            4096
        }

        fn now() -> u64 {
            // SAFETY: it has no preconditions.
            unsafe { GetTickCount64() }
        }
    }
}

#[cfg(all(test, not(miri), any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::{Host, System};

    #[test]
    fn the_memory_is_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find(|line| line.starts_with("MemTotal:")).unwrap();
        let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert_eq!(Host::memory(), kibibytes << 10);
    }
}
