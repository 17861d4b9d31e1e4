//! Page-locked host memory.

use super::{ALIGNMENT, check_one_address, check_size, segment};
use crate::gpu::{Context, Stream, library::call};
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::fs;
use std::path::Path;

/// Granularity of pinned segments in bytes: several pages, because each call that locks pages is slow.
const GRANULARITY: usize = 64 << 10;

/// The default limit in bytes if the system's memory is unknown.
const UNKNOWN_LIMIT: usize = 1 << 30;

/// Number of bytes pinned through this module, registered memory included.
static PINNED: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of bytes of host memory that this process has page-locked through this module, registered memory included.
pub fn pinned_bytes() -> usize {
    PINNED.load(Ordering::Relaxed)
}

/// Returns a quarter of the memory available to the process, in bytes; pinning more starves all other programs.
pub(super) fn default_limit() -> usize {
    limit_by(|file| fs::read_to_string(file).ok())
}

/// Returns the default limit according to the kernel's files. `read` reads a file by its absolute path.
fn limit_by(read: impl Fn(&Path) -> Option<String>) -> usize {
    let total = read("/proc/meminfo".as_ref()).and_then(|text| total_memory(&text));
    let allowed = read("/proc/self/cgroup".as_ref())
        .and_then(|text| group_limit(&text, |file| read(&Path::new("/sys/fs/cgroup").join(file))));
    total.into_iter().chain(allowed).min().map_or(UNKNOWN_LIMIT, |bytes| bytes / 4)
}

/// Returns the lowest limit in bytes of the process's control group (cgroup v2) and its ancestors. `groups` is the text of
/// `/proc/self/cgroup`, and `read` reads a file below the hierarchy's root.
fn group_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<usize> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |folder: &Path| read(&folder.join("memory.max"))?.trim().parse().ok();
    Path::new(own).ancestors().filter_map(limit).min()
}

/// Parses the total memory in bytes from Linux's `meminfo`.
fn total_memory(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// A share of the limit, claimed before memory is pinned; dropping this returns the share.
#[derive(Debug)]
pub(super) struct Share(usize);

impl Share {
    pub(super) fn allocate(bytes: usize, limit: usize) -> Result<Self, SourceError> {
        let fits = |pinned: usize| pinned.checked_add(bytes).filter(|&sum| sum <= limit);
        match PINNED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Self(bytes)),
            Err(_) => Err(SourceError::new(SourceErrorKind::OutOfMemory, "the limit of pinned memory")),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        PINNED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Page-locked host memory, from `cuMemHostAlloc`. A device copies to and from it at full speed and asynchronously, and its addresses are
/// the same on host and device. Releasing a segment waits for the stream.
#[derive(Debug)]
pub struct Pinned {
    context: Context,
    write_combined: bool,
    portable: bool,
    limit: usize,
}

impl Pinned {
    /// Makes a source. Its memory is pinned for every context of the process.
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), write_combined: false, portable: true, limit: default_limit() }
    }

    /// Lets the CPU's writes bypass its caches: this makes copies to the device faster and reads by the CPU very slow.
    #[must_use]
    pub fn write_combined(mut self) -> Self {
        self.write_combined = true;
        self
    }

    /// Pins the memory for this context only.
    #[must_use]
    pub fn not_portable(mut self) -> Self {
        self.portable = false;
        self
    }

    /// Sets the most bytes that the process may pin through this module, over all sources. The default is a quarter of the system's
    /// memory or of the control group's limit, whichever is less, or 1 GiB if neither is known.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

// SAFETY: the driver allocates each range once, aligned, and the CPU can use it until `cuMemFreeHost`.
unsafe impl Source for Pinned {
    describe!(|self| "pinned", cpu_visible: true, Capabilities::PINNED.union(Capabilities::DMA), granularity: GRANULARITY, alignment: ALIGNMENT, copies: OnHost);

    /// Returns the limit and the unpinned part of it. No driver call.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let total = self.limit;
        Ok(Capacity { total, free: total.saturating_sub(pinned_bytes()) })
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemHostAlloc", bytes, GRANULARITY)?;
        let share = Share::allocate(bytes, self.limit)?;
        let _bound = self.context.enter_relaxed()?;
        const MAPPED: u32 = 2;
        let flags = u32::from(self.portable) | MAPPED | u32::from(self.write_combined) << 2;
        let mut pointer = ptr::null_mut();
        // SAFETY: the output has the type that the function writes, and the flags are valid.
        unsafe { call!(cuMemHostAlloc(&mut pointer, bytes, flags))? };
        if self.write_combined {
            if let Err(error) = check_one_address(pointer.cast()) {
                // SAFETY: allocated above and not used. A second error would say less than the first.
                let _ = unsafe { call!(cuMemFreeHost(pointer)) };
                return Err(error.of_driver("one address of write-combined memory"));
            }
        }
        let segment = segment("cuMemHostAlloc", pointer.expose_provenance() as u64, bytes)?;
        core::mem::forget(share); // until the segment is released
        Ok(segment)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let _bound = self.context.enter_relaxed()?;
        let pointer = ptr::with_exposed_provenance_mut(segment.address.get());
        // SAFETY: `reserve` allocated the segment, and all work on it is done.
        unsafe { call!(cuMemFreeHost(pointer))? };
        drop(Share(segment.bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_memory_is_read() {
        assert_eq!(total_memory("MemTotal:       24689436 kB\nMemFree: 1 kB\n"), Some(24_689_436 << 10));
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
        assert_eq!(total_memory("MemTotal: many kB\n"), None);
    }

    #[test]
    fn the_least_limit_of_the_control_groups_is_found() {
        let read = |file: &Path| match file.to_str()? {
            "a/b/memory.max" => Some(String::from("max\n")),
            "a/memory.max" => Some(String::from("1073741824\n")),
            "memory.max" => Some(String::from("2147483648\n")),
            _ => None,
        };
        assert_eq!(group_limit("1:name=systemd:/x\n0::/a/b\n", read), Some(1 << 30));
        assert_eq!(group_limit("0::/\n", read), Some(2 << 30));
        assert_eq!(group_limit("0::/\n", |_| None), None);
        assert_eq!(group_limit("4:memory:/a\n", read), None);
    }

    #[test]
    fn the_default_limit_is_a_quarter_of_the_lesser() {
        let limit = |total: Option<&str>, allowed: Option<&str>| {
            limit_by(|file| match file.to_str()? {
                "/proc/meminfo" => total.map(|kib| std::format!("MemTotal: {kib} kB\n")),
                "/proc/self/cgroup" => Some(String::from("0::/own\n")),
                "/sys/fs/cgroup/own/memory.max" => allowed.map(String::from),
                _ => None,
            })
        };
        assert_eq!(limit(Some("4096"), Some("1048576\n")), 256 << 10);
        assert_eq!(limit(Some("1024"), Some("4194304\n")), 256 << 10);
        assert_eq!(limit(Some("4096"), Some("max\n")), 1 << 20);
        assert_eq!(limit(None, Some("1048576\n")), 256 << 10);
        assert_eq!(limit(None, None), UNKNOWN_LIMIT);
    }

    #[test]
    fn the_limit_holds_and_room_comes_back() {
        let first = Share::allocate(600, 1000).unwrap();
        assert!(Share::allocate(401, 1000).unwrap_err().is_out_of_memory());
        assert!(Share::allocate(usize::MAX, usize::MAX).is_err());
        let rest = Share::allocate(400, 1000).unwrap();
        drop(first);
        assert_eq!(pinned_bytes(), 400);
        drop(rest);
        assert_eq!(pinned_bytes(), 0);
    }
}
