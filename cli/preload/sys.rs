//! The few functions of the C library that are called, so that this library builds with the compiler alone: the tool's build script
//! compiles it without Cargo.
//!
//! The numbers are those of Linux on x86-64, AArch64, Arm, RISC-V and LoongArch.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether the program has limited the system calls that it may make (seccomp). Any of the recorder's own might end it then, so there are
/// none: recording goes on to the end of the window, and not in children.
pub static CONFINED: AtomicBool = AtomicBool::new(false);

pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Acquire)
}

pub type OffT = c_long;

#[repr(C)]
pub struct Timespec {
    pub seconds: c_long,
    pub nanoseconds: c_long,
}

/// A module in the dynamic linker's list.
#[repr(C)]
pub struct PhdrInfo {
    pub bias: usize,
    pub name: *const c_char,
    pub parts: *const Phdr,
    pub count: u16,
}

/// A program header of 64 bits.
#[repr(C)]
pub struct Phdr {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub physical: u64,
    pub size: u64,
    pub size_in_memory: u64,
    pub align: u64,
}

pub const O_RDWR: c_int = 2;
pub const O_CREAT: c_int = 0o100;
pub const O_EXCL: c_int = 0o200;
pub const O_CLOEXEC: c_int = 0o2_000_000;
pub const PROT_READ: c_int = 1;
pub const PROT_WRITE: c_int = 2;
pub const MAP_SHARED: c_int = 1;
pub const MAP_FAILED: *mut c_void = usize::MAX as *mut c_void;
pub const MAP_PRIVATE: c_int = 2;
pub const MAP_ANONYMOUS: c_int = 0x20;
pub const MADV_WIPEONFORK: c_int = 18;
pub const F_DUPFD_CLOEXEC: c_int = 1030;
pub const SEEK_END: c_int = 2;
pub const RLIMIT_FSIZE: c_int = 1;
pub const ESRCH: c_int = 3;
pub const EEXIST: c_int = 17;
pub const EFBIG: c_int = 27;
pub const ENOSYS: c_int = 38;
pub const ENOMEM: c_int = 12;
pub const PR_SET_SECCOMP: c_int = 22;
pub const SYS_SECCOMP: c_long = match () {
    () if cfg!(target_arch = "x86_64") => 317,
    () if cfg!(target_arch = "arm") => 383,
    () => 277,
};
pub const SYS_EXECVE: c_long = match () {
    () if cfg!(target_arch = "x86_64") => 59,
    () if cfg!(target_arch = "arm") => 11,
    () => 221,
};
pub const SYS_EXECVEAT: c_long = match () {
    () if cfg!(target_arch = "x86_64") => 322,
    () if cfg!(target_arch = "arm") => 387,
    () => 281,
};
pub const CLOCK_MONOTONIC: c_int = 1;
pub const CLOCK_MONOTONIC_COARSE: c_int = 6;
pub const RTLD_DEFAULT: *mut c_void = core::ptr::null_mut();
pub const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
pub const AT_ENTRY: usize = 9;
pub const SC_PAGESIZE: c_int = 30;

// SAFETY: these are the C library's own functions and variables, of these types.
#[link(name = "c")]
unsafe extern "C" {
    pub static environ: *const *const c_char;
    pub fn __errno_location() -> *mut c_int;
    pub fn abort() -> !;
    pub fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    pub fn close(file: c_int) -> c_int;
    pub fn fcntl(file: c_int, command: c_int, ...) -> c_int;
    pub fn dl_iterate_phdr(
        look: unsafe extern "C" fn(*const PhdrInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    pub fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn secure_getenv(name: *const c_char) -> *mut c_char;
    pub fn getauxval(which: usize) -> usize;
    pub fn getpid() -> c_int;
    pub fn getrlimit(which: c_int, limits: *mut usize) -> c_int;
    pub fn kill(process: c_int, signal: c_int) -> c_int;
    pub fn lseek(file: c_int, at: OffT, from: c_int) -> OffT;
    pub fn madvise(place: *mut c_void, size: usize, advice: c_int) -> c_int;
    pub fn mmap(
        place: *mut c_void,
        size: usize,
        access: c_int,
        flags: c_int,
        file: c_int,
        at: OffT,
    ) -> *mut c_void;
    pub fn munmap(place: *mut c_void, size: usize) -> c_int;
    pub fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub fn posix_fallocate(file: c_int, at: OffT, size: OffT) -> c_int;
    pub fn pthread_getspecific(key: c_uint) -> *mut c_void;
    pub fn pthread_key_create(
        key: *mut c_uint,
        destructor: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int;
    pub fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
    pub fn pread(file: c_int, place: *mut c_void, size: usize, at: OffT) -> isize;
    pub fn readlink(path: *const c_char, place: *mut c_char, size: usize) -> isize;
    pub fn sched_yield() -> c_int;
    pub fn snprintf(place: *mut c_char, size: usize, format: *const c_char, ...) -> c_int;
    pub fn strdup(text: *const c_char) -> *mut c_char;
    pub fn strndup(text: *const c_char, size: usize) -> *mut c_char;
    pub fn strtoull(text: *const c_char, end: *mut *mut c_char, base: c_int) -> u64;
    pub fn sysconf(name: c_int) -> c_long;
    pub fn write(file: c_int, bytes: *const c_void, size: usize) -> isize;
}
