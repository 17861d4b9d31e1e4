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

/// A lock in memory that other processes can write to, and that survives its holder.
///
/// ```text
///  word   start of the thread, 24 bits | number space, 17 bits | waits, 1 bit | thread, 22 bits     0: free
/// ```
///
/// (The number space lies on both sides of the bit that says whether someone waits, so that this one and the thread are in the lower
/// half, for which the kernel lets threads wait.) A thread that waits asks the system now and then whether the holder still exists. If it does
/// not, or if the word names no thread, the lock passes on. A mutex of the C library would not do: it follows pointers in that memory.
///
/// After Drepper, "Futexes Are Tricky" (2011).
#[repr(C)]
pub(super) struct SharedLock {
    word: AtomicU64,
    /// Changes whenever the lock is taken.
    turn: AtomicU32,
}

const THREAD: u64 = (1 << 22) - 1;
const WAITS: u64 = 1 << 31;
const STARTS: u64 = !0 << 40;

/// Times that a waiting thread spins before it sleeps.
const SPINS: u32 = 100;

/// Time after which a holder counts as dead if the system cannot say whether it exists.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time after which a sleeping holder counts as gone, if the system does not show its mappings: one of another user.
const LONG: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// The system's answer about a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Here,
    Gone,
    Unknown,
}

/// Proves that this thread holds the lock, which it unlocks when it is dropped.
pub(super) struct Holder<'a> {
    lock: &'a SharedLock,
    own: u64,
    /// Whether the thread that held the lock before has not unlocked it.
    pub(super) inherits: bool,
}

/// Opens a file in `/proc`, if there is one, without allocating the path.
fn open(path: fmt::Arguments<'_>) -> Option<File> {
    let mut text = [0u8; 32];
    write!(&mut text[..], "{path}").ok()?;
    File::open(str::from_utf8(text.split(|&byte| byte == 0).next()?).ok()?).ok()
}

/// Returns the state of a thread and when it started, as the system tells in a file; `None` if there is none.
fn stat(thread: u64) -> Option<(u8, u64)> {
    let mut text = [0u8; 1024];
    let len = open(format_args!("/proc/{thread}/stat"))?.read(&mut text).ok()?;
    // The second field is a name, which may have anything in it.
    let (_, rest) = str::from_utf8(&text[..len]).ok()?.rsplit_once(") ")?;
    let start = rest.split(' ').nth(19)?.parse().ok()?;
    Some((*rest.as_bytes().first()?, start))
}

/// Returns the lock's word while this thread holds it.
fn own() -> u64 {
    std::thread_local! {
        static OWN: Cell<u64> = const { Cell::new(0) };
    }
    // Not a variable of the thread: the child of a fork has a copy of those.
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64 & THREAD;
    if OWN.get() & THREAD != thread {
        let space = fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
        let start = stat(thread).map_or(0, |(_, start)| start);
        OWN.set(start << 40 | (space >> 9 & 0xff) << 32 | (space & 0x1ff) << 22 | thread);
    }
    OWN.get()
}

/// Asks whether a list of mappings in `/proc` has the file of this number; `None` if the system does not tell. It allocates nothing: the
/// program's allocator may be what waits.
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

/// Asks whether a thread's process has the file mapped, without which it holds no lock in it, whatever a word there says.
fn holds(thread: u64, file: BorrowedFd<'_>) -> Fate {
    // Of a file that can be sealed, the list of mappings has the number that the file itself has.
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

/// Asks whether the thread exists that a word names.
fn fate(word: u64, own: u64) -> Fate {
    let thread = word & THREAD;
    if thread == 0 || word & !WAITS == own {
        // This thread does not hold it.
        return Fate::Gone;
    }
    if (word ^ own) & !(THREAD | WAITS | STARTS) != 0 {
        // Of another number space.
        return Fate::Unknown;
    }
    // SAFETY: signal 0 is not sent.
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
    /// Waits for the lock, which is in a file that all who take it have mapped, and takes it.
    pub(super) fn acquire(&self, file: BorrowedFd<'_>) -> Holder<'_> {
        let own = own();
        let inherits = self.word.compare_exchange(0, own, Acquire, Relaxed).is_err() && self.wait(own, file);
        self.turn.fetch_add(1, Relaxed);
        Holder { lock: self, own, inherits }
    }

    /// Waits for the lock, and returns whether its holder is gone.
    #[cold]
    fn wait(&self, own: u64, file: BorrowedFd<'_>) -> bool {
        // Other threads may wait as well.
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
                    // Asked once of each holder that keeps others waiting for long.
                    Fate::Here if !is_known && since.elapsed() > PATIENCE => {
                        let held = holds(word & THREAD, file);
                        is_known = held == Fate::Here;
                        // A holder runs or waits for a page; only one that a container's pause has frozen seems to sleep.
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
                // Whatever wakes it, the word is looked at again.
                let _ = futex::wait(self.lower_half(), Flags::empty(), waits as u32, Some(&pause));
            }
        }
    }

    /// Returns the half of the word that the kernel lets threads wait for.
    fn lower_half(&self) -> &AtomicU32 {
        let at = usize::from(cfg!(target_endian = "big"));
        // SAFETY: the word has two halves; the kernel alone reads this one through the reference.
        unsafe { &*(&raw const self.word).cast::<AtomicU32>().add(at) }
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        let mut word = self.lock.word.load(Relaxed);
        // If another process has written something else there, that is not ours to undo.
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

    // SAFETY: the system's allocator does the work.
    unsafe impl GlobalAlloc for Watched {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if FORBIDDEN.get() {
                process::abort();
            }
            // SAFETY: as the caller promises.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[global_allocator]
    static WATCHED: Watched = Watched;

    /// Runs `f`, which must allocate nothing: it may be what the program's allocator waits for.
    fn alone<T>(f: impl FnOnce() -> T) -> T {
        FORBIDDEN.set(true);
        let result = f();
        FORBIDDEN.set(false);
        result
    }

    /// Returns a file of which nothing is asked: it has no seals.
    fn none() -> BorrowedFd<'static> {
        // SAFETY: standard input stays open.
        unsafe { BorrowedFd::borrow_raw(0) }
    }

    const fn free() -> SharedLock {
        SharedLock { word: AtomicU64::new(0), turn: AtomicU32::new(0) }
    }

    /// More threads than processors add to a number that only the lock guards.
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

    /// Words that are no holder's end no wait: those of threads that have ended, and whatever else is written there.
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
            // Not of a number space that this thread cannot see into.
            let word = word & !(0x1ff << 22) | here & 0x1ff << 22;
            let lock = SharedLock { word: AtomicU64::new(word), turn: AtomicU32::new(0) };
            assert!(lock.acquire(none()).inherits, "{word:#x}");
            assert_eq!(lock.word.into_inner(), 0, "{word:#x}");
        }
        assert_eq!(fate(here ^ 1 << 33, here), Fate::Unknown);
    }

    /// A holder that lives keeps the lock, however long others wait; what it finds there at the end is left alone if it is not its own.
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

    /// A lock word that names a live thread of an unrelated process does not keep others waiting for ever.
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
        // Nor if the system does not show what the stranger has mapped, as of another user's process.
        heap.header().lock.word.store(word, Relaxed);
        assert!(alone(|| heap.header().lock.acquire(none()).inherits));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
