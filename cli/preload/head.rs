//! The first page of a recording file.

use core::cell::UnsafeCell;
use core::ffi::c_char;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The first page of a file. Native byte order: the file is read on the machine that wrote it.
#[repr(C)]
pub struct Head {
    /// [`Head::MAGIC`].
    pub magic: AtomicU64,
    /// Bytes of the trace that follows at [`Head::SIZE`].
    pub length: AtomicU64,
    /// Set if recording ended before the program did: 0, the system's error number, or [`Head::CONFINED`].
    pub stopped: AtomicU64,
    /// 1 if recording ended because the wanted number of events was reached, else 0.
    pub complete: AtomicU64,
    /// The path of the program image, and its length.
    pub length_of_image: AtomicU64,
    pub image: UnsafeCell<[c_char; 1024]>,
    /// The number of programs started with an environment that does not load this library, and the path of the first.
    pub unrecorded: AtomicU64,
    pub first_unrecorded: UnsafeCell<[c_char; 1024]>,
    /// The link `/proc/self/ns/pid`: process numbers are unique only within it.
    pub namespace: UnsafeCell<[c_char; 64]>,
    /// A number that no other file of a recording has.
    pub mark: AtomicU64,
    /// How many children could not create a file.
    pub without_file: AtomicU64,
}

impl Head {
    /// The first bytes of a file.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"ALLOTREC");
    /// The program has limited its system calls, so the file cannot grow any more.
    pub const CONFINED: u64 = u64::MAX;
    /// Bytes before the trace.
    pub const SIZE: usize = 4096;
}

/// The head of the file, null before the first. It stays mapped when the window moves on.
pub static HEAD: AtomicPtr<Head> = AtomicPtr::new(ptr::null_mut());

/// Returns the head of the file; `None` if there is no file.
pub fn head() -> Option<&'static Head> {
    // SAFETY: the pointer is null, or to a head that stays mapped as long as it is the process's own or its parent's.
    unsafe { HEAD.load(Ordering::Acquire).as_ref() }
}
