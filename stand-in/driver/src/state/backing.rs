//! Host memory that stands in for physical memory. Pages take up memory only once they are touched.

use super::device::Account;
use crate::abi::{Code, Outcome};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

pub struct Memory {
    pointer: *mut u8,
    bytes: usize,
    borrowed: bool,
    /// The file through which other processes can map it.
    file: Option<OwnedFd>,
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
            _account: account,
        })
    }

    /// Wraps memory that belongs to the caller.
    pub fn borrowed(pointer: *mut u8, bytes: usize) -> Self {
        Self { pointer, bytes, borrowed: true, file: None, _account: None }
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
        // SAFETY: this value made the mapping, and nothing else keeps its address.
        let _ = unsafe { munmap(self.pointer.cast(), self.bytes.max(1)) };
    }
}
