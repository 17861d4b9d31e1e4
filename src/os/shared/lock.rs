//! The lock of a heap that processes share.

use core::cell::Cell;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::{hint, str};
use rustix::thread::futex::{self, Flags, Timespec};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// A lock that survives its holder, in memory that other processes can write to.
///
/// ```text
///  word   start of the thread, 24 bits | number space, 17 bits | waits, 1 bit | thread, 22 bits     0: free
/// ```
///
/// (The number space, which identifies the PID namespace, lies on both sides of the waits bit, so that this bit and the thread are in the
/// lower half, on which the kernel lets threads wait.) A waiting thread asks the system now and then whether the holder still exists. If
/// it does not, or if the word names no thread, the waiting thread takes over the lock. A mutex of the C library is not safe here,
/// because it follows pointers in that memory.
///
/// Based on Drepper, "Futexes Are Tricky" (2011).
#[repr(C)]
pub(super) struct SharedLock {
    word: AtomicU64,
    /// A number that changes at each acquisition.
    turn: AtomicU32,
}

const THREAD: u64 = (1 << 22) - 1;
const WAITS: u64 = 1 << 31;
const STARTS: u64 = !0 << 40;

/// Number of times that a waiting thread spins before it sleeps.
const SPINS: u32 = 100;

/// Time after which a holder counts as gone if the system cannot say whether it exists.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time after which a sleeping holder counts as gone if the system does not show its mappings, as for another user's process.
const LONG: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// The system's answer about a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Here,
    Gone,
    Unknown,
}

/// Proof that this thread holds the lock. Dropping it unlocks.
pub(super) struct Holder<'a> {
    lock: &'a SharedLock,
    own: u64,
    /// Whether the previous holder left the lock locked.
    pub(super) inherits: bool,
}

/// Opens a file in `/proc`, if there is one, without allocating the path.
fn open(path: fmt::Arguments<'_>) -> Option<File> {
    let mut text = [0u8; 32];
    write!(&mut text[..], "{path}").ok()?;
    File::open(str::from_utf8(text.split(|&byte| byte == 0).next()?).ok()?).ok()
}

/// Returns a thread's state and start time from its file in `/proc`; `None` if there is no file.
fn stat(thread: u64) -> Option<(u8, u64)> {
    let mut text = [0u8; 1024];
    let len = open(format_args!("/proc/{thread}/stat"))?.read(&mut text).ok()?;
    // The second field is a name, which may contain anything.
    let (_, rest) = str::from_utf8(&text[..len]).ok()?.rsplit_once(") ")?;
    let start = rest.split(' ').nth(19)?.parse().ok()?;
    Some((*rest.as_bytes().first()?, start))
}

/// Returns the lock's word while this thread holds it.
fn own() -> u64 {
    std::thread_local! {
        static OWN: Cell<u64> = const { Cell::new(0) };
    }
    // Ask the system each time: the child of a fork has a copy of the thread's variables.
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64 & THREAD;
    if OWN.get() & THREAD != thread {
        let space = fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
        let start = stat(thread).map_or(0, |(_, start)| start);
        OWN.set(start << 40 | (space >> 9 & 0xff) << 32 | (space & 0x1ff) << 22 | thread);
    }
    OWN.get()
}

/// Returns whether a list of mappings in `/proc` contains the file with this inode number; `None` if unknown. It allocates nothing,
/// because the program's allocator may be waiting here.
fn lists(path: fmt::Arguments<'_>, node: u64) -> Option<bool> {
    let mut list = open(path)?;
    let mut part = [0; 1024];
    // 7f1c5e400000-7f1c5e500000 rw-s 00000000 00:01 1055  /memfd:allotment (deleted)
    let (mut field, mut number) = (0, 0_u64);
    loop {
        let len = list.read(&mut part).ok()?;
        if len == 0 {
            return Some(false);
        }
        for &byte in &part[..len] {
            match byte {
                b' ' | b'\n' => {
                    if field == 4 && number == node {
                        return Some(true);
                    }
                    (field, number) = (if byte == b' ' { field + 1 } else { 0 }, 0);
                }
                b'0'..=b'9' => number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')),
                _ => {}
            }
        }
    }
}

/// Returns whether a thread's process has mapped the file. Otherwise it cannot hold a lock in the file, whatever the word says.
fn holds(thread: u64, file: BorrowedFd<'_>) -> Fate {
    // For a file that can be sealed, the list of mappings shows the file's inode number.
    let node =
        rustix::fs::fcntl_get_seals(file).and_then(|_| rustix::fs::fstat(file)).map(|file| file.st_ino);
    let Ok(node) = node else { return Fate::Unknown };
    if lists(format_args!("/proc/self/maps"), node) != Some(true) {
        return Fate::Unknown;
    }
    match lists(format_args!("/proc/{thread}/maps"), node) {
        Some(true) => Fate::Here,
        Some(false) => Fate::Gone,
        None => Fate::Unknown,
    }
}

/// Returns whether the thread that a word names exists.
fn fate(word: u64, own: u64) -> Fate {
    let thread = word & THREAD;
    if thread == 0 || word & !WAITS == own {
        // This thread does not hold the lock.
        return Fate::Gone;
    }
    if (word ^ own) & !(THREAD | WAITS | STARTS) != 0 {
        // The thread is in another number space.
        return Fate::Unknown;
    }
    // SAFETY: signal 0 sends nothing.
    let refused = unsafe { libc::kill(thread as libc::pid_t, 0) } != 0;
    if refused && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
        return Fate::Gone;
    }
    match stat(thread) {
        Some((b'Z' | b'X', _)) => Fate::Gone,
        Some((_, start)) if start << 40 == word & STARTS => Fate::Here,
        Some(_) => Fate::Gone,
        None => Fate::Unknown,
    }
}

impl SharedLock {
    /// Waits for the lock, and acquires it. It must lie in `file`, which all users of the lock have mapped.
    pub(super) fn acquire(&self, file: BorrowedFd<'_>) -> Holder<'_> {
        let own = own();
        let inherits = self.word.compare_exchange(0, own, Acquire, Relaxed).is_err() && self.wait(own, file);
        self.turn.fetch_add(1, Relaxed);
        Holder { lock: self, own, inherits }
    }

    /// Waits for the lock, and returns whether its holder is gone.
    #[cold]
    fn wait(&self, own: u64, file: BorrowedFd<'_>) -> bool {
        // Keep the bit set, because other threads may also wait.
        let take = |word| self.word.compare_exchange(word, own | WAITS, Acquire, Relaxed).is_ok();
        let mut seen = (0, 0);
        let (mut since, mut is_known) = (Instant::now(), false);
        let mut pause = Duration::from_millis(1);
        let mut spins = SPINS;
        loop {
            let word = self.word.load(Relaxed);
            if word == 0 {
                if take(0) {
                    return false;
                }
                continue;
            }
            if spins > 0 {
                spins -= 1;
                hint::spin_loop();
                continue;
            }
            let now = (word & !WAITS, self.turn.load(Relaxed));
            if now != seen {
                (seen, since, is_known) = (now, Instant::now(), false);
            } else {
                let gone = match fate(word, own) {
                    // Check this once for each holder that keeps others waiting for long.
                    Fate::Here if !is_known && since.elapsed() > PATIENCE => {
                        let held = holds(word & THREAD, file);
                        is_known = held == Fate::Here;
                        // A live holder runs or waits for a page; it appears asleep only if its container is paused.
                        let sleeps = || matches!(stat(word & THREAD), Some((b'S' | b'I', _)));
                        held == Fate::Gone || held == Fate::Unknown && since.elapsed() > LONG && sleeps()
                    }
                    Fate::Here => false,
                    Fate::Gone => true,
                    Fate::Unknown => since.elapsed() > PATIENCE,
                };
                if gone && take(word) {
                    return true;
                }
                pause = (2 * pause).min(Duration::from_millis(50));
            }
            let waits = word | WAITS;
            if word == waits || self.word.compare_exchange(word, waits, Relaxed, Relaxed).is_ok() {
                let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
                // Whatever wakes the thread, it checks the word again.
                let _ = futex::wait(self.lower_half(), Flags::empty(), waits as u32, Some(&pause));
            }
        }
    }

    /// Returns the half of the word on which the kernel lets threads wait.
    fn lower_half(&self) -> &AtomicU32 {
        let at = usize::from(cfg!(target_endian = "big"));
        // SAFETY: the word has two halves, and only the kernel reads this half through the reference.
        unsafe { &*(&raw const self.word).cast::<AtomicU32>().add(at) }
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        let mut word = self.lock.word.load(Relaxed);
        // If another process has overwritten the word, leave it.
        while word & !WAITS == self.own {
            match self.lock.word.compare_exchange(word, 0, Release, Relaxed) {
                Ok(_) if word & WAITS != 0 => {
                    let _ = futex::wake(self.lock.lower_half(), Flags::empty(), 1);
                    return;
                }
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::SharedHeap;
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::process::{self, Command};
    use std::thread;

    struct Watched;

    std::thread_local! {
        static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    }

    // SAFETY: the system's allocator keeps the contract.
    unsafe impl GlobalAlloc for Watched {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if FORBIDDEN.get() {
                process::abort();
            }
            // SAFETY: the caller's contract.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the caller's contract.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[global_allocator]
    static WATCHED: Watched = Watched;

    /// Runs `f`, which must not allocate, because the program's allocator may be waiting in it.
    fn alone<T>(f: impl FnOnce() -> T) -> T {
        FORBIDDEN.set(true);
        let result = f();
        FORBIDDEN.set(false);
        result
    }

    /// Returns a file without seals, for which `holds` is unknown.
    fn none() -> BorrowedFd<'static> {
        // SAFETY: standard input stays open.
        unsafe { BorrowedFd::borrow_raw(0) }
    }

    const fn free() -> SharedLock {
        SharedLock { word: AtomicU64::new(0), turn: AtomicU32::new(0) }
    }

    /// Eight threads increment a number that only the lock guards.
    #[test]
    fn one_thread_at_a_time_has_the_lock() {
        let (lock, number) = (free(), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let holder = lock.acquire(none());
                        assert!(!holder.inherits);
                        number.store(number.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!((number.into_inner(), lock.word.into_inner()), (16_000, 0));
    }

    /// A word that names no live thread does not keep others waiting: neither the word of an ended thread nor a random word.
    #[test]
    fn what_names_no_thread_holds_nothing() {
        let gone = thread::spawn(own).join().unwrap();
        let here = own();
        assert!(here & THREAD != 0 && here & WAITS == 0 && here & STARTS != 0 && gone != here);
        let mut random = fastrand::Rng::with_seed(11);
        let mut words: Vec<u64> =
            (0..40).map(|_| random.u64(..) & !(0xff << 32) | here & 0xff << 32).collect();
        words.extend([gone, gone | WAITS, here, here | WAITS, WAITS, here ^ 1 << 40, here & !THREAD]);
        for word in words {
            // Keep this thread's number space, because threads of another one are unknown.
            let word = word & !(0x1ff << 22) | here & 0x1ff << 22;
            let lock = SharedLock { word: AtomicU64::new(word), turn: AtomicU32::new(0) };
            assert!(lock.acquire(none()).inherits, "{word:#x}");
            assert_eq!(lock.word.into_inner(), 0, "{word:#x}");
        }
        assert_eq!(fate(here ^ 1 << 33, here), Fate::Unknown);
    }

    /// A live holder keeps the lock, however long others wait. At the end it leaves a word that others have overwritten.
    #[test]
    fn a_holder_that_lives_keeps_the_lock() {
        let lock = free();
        thread::scope(|scope| {
            let holder = lock.acquire(none());
            let other = scope.spawn(|| lock.acquire(none()).inherits);
            let own = own();
            while lock.word.load(Relaxed) & WAITS == 0 {
                thread::yield_now();
            }
            assert!((0..1000).all(|_| lock.word.load(Relaxed) & !WAITS == own));
            assert_eq!(scope.spawn(move || fate(own, self::own())).join().unwrap(), Fate::Here);
            drop(holder);
            assert!(!other.join().unwrap());
        });
        let holder = lock.acquire(none());
        lock.word.store(7, Relaxed);
        drop(holder);
        assert_eq!(lock.word.into_inner(), 7);
    }

    /// A lock word that names a live thread of an unrelated process does not keep others waiting forever.
    #[test]
    fn a_thread_without_the_file_holds_nothing() {
        let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
        let heap = SharedHeap::create(1 << 20).unwrap();
        let thread = u64::from(stranger.id());
        assert_eq!((holds(thread, heap.file()), holds(thread, none())), (Fate::Gone, Fate::Unknown));
        assert_eq!(holds(u64::from(std::process::id()), heap.file()), Fate::Here);
        let start = stat(thread).unwrap().1;
        let word = start << 40 | own() & !(STARTS | THREAD) | thread;
        heap.header().lock.word.store(word, Relaxed);
        assert_eq!(alone(|| heap.used().0), 0);
        assert!(heap.allocate(100, 8).is_some());
        // The same holds if the system does not show the stranger's mappings, as for another user's process.
        heap.header().lock.word.store(word, Relaxed);
        assert!(alone(|| heap.header().lock.acquire(none()).inherits));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
