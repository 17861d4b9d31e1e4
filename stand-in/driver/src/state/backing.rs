//! Host memory that stands in for physical memory. Pages take up memory only once they are touched.

use super::device::Account;
use crate::abi::{Code, Outcome};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

pub struct Memory {
    pointer: *mut u8,
    bytes: usize,
    borrowed: bool,
    /// The file through which other processes can map it.
    file: Option<OwnedFd>,
    /// Where the program reaches memory that host and device use in turns.
    window: Option<*mut u8>,
    _account: Option<Account>,
}

// SAFETY: the memory is reached only through this value, and the driver's lock orders all accesses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes zeroed memory of `bytes` bytes.
    pub fn new(bytes: usize, account: Option<Account>) -> Outcome<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: this makes a new mapping at an address of the system's choice.
        let pointer = unsafe { mmap_anonymous(ptr::null_mut(), bytes.max(1), protection, flags) };
        Ok(Self {
            pointer: pointer.map_err(|_| Code::OUT_OF_MEMORY)?.cast(),
            bytes,
            borrowed: false,
            file: None,
            window: None,
            _account: account,
        })
    }

    /// Makes zeroed memory in an anonymous file, which other processes can map.
    pub fn shared(bytes: usize, account: Option<Account>) -> Outcome<Self> {
        let file =
            memfd_create("allotment-stand-in", MemfdFlags::CLOEXEC).map_err(|_| Code::OPERATING_SYSTEM)?;
        ftruncate(&file, bytes as u64).map_err(|_| Code::OPERATING_SYSTEM)?;
        Self::open(file, bytes, account)
    }

    /// Opens memory that another process shares.
    pub fn open(file: OwnedFd, bytes: usize, account: Option<Account>) -> Outcome<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: this makes a new mapping at an address of the system's choice.
        let pointer = unsafe { mmap(ptr::null_mut(), bytes.max(1), protection, flags, &file, 0) };
        Ok(Self {
            pointer: pointer.map_err(|_| Code::OUT_OF_MEMORY)?.cast(),
            bytes,
            borrowed: false,
            file: Some(file),
            window: None,
            _account: account,
        })
    }

    /// Makes zeroed memory that the program reaches through a window, which is closed at first.
    pub fn with_window(bytes: usize, account: Option<Account>) -> Outcome<Self> {
        let mut memory = Self::shared(bytes, account)?;
        let file = memory.file().ok_or(Code::OPERATING_SYSTEM)?;
        let (protection, flags) = (ProtFlags::empty(), MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: this makes a new mapping at an address of the system's choice.
        let window = unsafe { mmap(ptr::null_mut(), bytes.max(1), protection, flags, file, 0) };
        memory.window = Some(window.map_err(|_| Code::OUT_OF_MEMORY)?.cast());
        Ok(memory)
    }

    /// Opens or closes the window, if there is one.
    pub fn open_window(&self, open: bool) {
        let Some(window) = self.window else { return };
        let protection =
            if open { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: this value has made the mapping. A program that uses it while it is closed is ended, as it is by a real driver.
        let _ = unsafe { mprotect(window.cast(), self.bytes.max(1), protection) };
    }

    /// Where the program reaches the memory.
    pub fn address(&self) -> *mut u8 {
        self.window.unwrap_or(self.pointer)
    }

    /// Wraps memory that belongs to the caller.
    pub fn borrowed(pointer: *mut u8, bytes: usize) -> Self {
        Self { pointer, bytes, borrowed: true, file: None, window: None, _account: None }
    }

    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        for mapped in [Some(self.pointer), self.window].into_iter().flatten() {
            // SAFETY: this value made the mapping, and nothing else keeps its address.
            let _ = unsafe { munmap(mapped.cast(), self.bytes.max(1)) };
        }
    }
}
