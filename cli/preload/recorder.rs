//! Writes events to the recording file.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::{offset_of, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use allotment_event::{Action, Encoder, Event, Header, Record};

use crate::head::{HEAD, Head, head};
use crate::modules::Module;
use crate::stacks::{self, Stack};
use crate::table::Table;
use crate::tree::{Line, Tree};
use crate::{sample, starts, sys};

/// The page that is shared with the tool.
#[repr(C)]
struct Control {
    /// True while nothing is recorded.
    paused: AtomicU64,
    /// The wanted number of events per image; 0 means no limit.
    most: AtomicU64,
    /// The mean of a sample, which the tool notes for itself.
    mean: AtomicU64,
    /// The tool's process, if it attached to this one; else 0.
    tool: AtomicU64,
}

/// The control page; null if the tool gave no control file.
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(ptr::null_mut());

/// Calls that were not recorded while recording was paused.
static SKIPPED: AtomicU64 = AtomicU64::new(0);

fn control() -> Option<&'static Control> {
    // SAFETY: the pointer is null, or that of a page that stays mapped.
    unsafe { CONTROL.load(Ordering::Relaxed).as_ref() }
}

/// Returns whether the tool that attached to this process was killed: it does not end the recording any more, or remove its file.
fn is_abandoned() -> bool {
    let tool = control().map_or(0, |control| control.tool.load(Ordering::Relaxed)) as c_int;
    // SAFETY: the signal 0 is not sent, it only tells whether the process is there.
    tool > 0 && unsafe { sys::kill(tool, 0) } != 0 && errno() == sys::ESRCH as u64
}

/// Bytes of the file that are mapped at a time.
const WINDOW: usize = 256 << 10;

/// When an event is written with its time.
#[derive(Clone, Copy, PartialEq)]
pub enum Times {
    Never,
    /// When a clock that is cheap to read has moved on: every few milliseconds.
    Coarse,
    /// Always, in nanoseconds.
    Exact,
}

/// The state that the lock protects.
struct State {
    /// The path of the file, and a descriptor of it for a process that may not open the path any more, or -1.
    path: [c_char; 4096],
    kept: c_int,
    window: *mut u8,
    /// Bytes of the window: fewer than [`WINDOW`] before a limit on the size of files.
    size: usize,
    /// The offset of the window in the file.
    start: u64,
    /// Bytes of the window that are in use.
    used: usize,
    encoder: Encoder,
    /// Events in the file.
    events: u64,
    /// The beginning of the files' names.
    name: *const c_char,
    times: Times,
    /// The time that was written last.
    time: Option<u64>,
    tree: Tree,
    /// The node of the last event.
    tag: u32,
    /// The number of its thread.
    thread: usize,
    /// The live blocks of a sample, by address.
    sampled: Table,
}

struct Recorder {
    /// True if there is a file to record to.
    on: AtomicBool,
    locked: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: only the thread that holds `locked` accesses `state`.
unsafe impl Sync for Recorder {}

static RECORDER: Recorder = Recorder {
    on: AtomicBool::new(false),
    locked: AtomicBool::new(false),
    state: UnsafeCell::new(State {
        path: [0; 4096],
        kept: -1,
        window: ptr::null_mut(),
        size: 0,
        start: 0,
        used: 0,
        encoder: Encoder::new(),
        events: 0,
        name: ptr::null(),
        times: Times::Never,
        time: None,
        tree: Tree::new(),
        tag: 0,
        thread: 0,
        sampled: Table::new(),
    }),
};

/// Tells a process from its children, however they were made (`_Fork` and the raw system call run no handlers): a word in a page
/// that the system fills with zeros in every copy of the address space. A child by `vfork` shares the parent's memory, heap and
/// trace. Where there is no such page, the word is a static, which the handler of `fork` clears.
static OWN: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
static WITHOUT_PAGE: AtomicU32 = AtomicU32::new(COPY);
const COPY: u32 = 0;
const OPENING: u32 = 1;
const OPEN: u32 = 2;

/// The process that opened the file.
static PROCESS: AtomicI32 = AtomicI32::new(0);

fn own() -> &'static AtomicU32 {
    // SAFETY: the pointer is null, or to a page that stays mapped.
    unsafe { OWN.load(Ordering::Relaxed).as_ref() }.unwrap_or(&WITHOUT_PAGE)
}

fn make_own_page() {
    let access = sys::PROT_READ | sys::PROT_WRITE;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    // SAFETY: a new map affects no other memory; the advice and the unmapping are for this map only.
    unsafe {
        let page = sys::mmap(ptr::null_mut(), Head::SIZE, access, flags, -1, 0);
        if page == sys::MAP_FAILED {
            return;
        }
        if sys::madvise(page, Head::SIZE, sys::MADV_WIPEONFORK) == 0 {
            OWN.store(page.cast(), Ordering::Relaxed);
        } else {
            sys::munmap(page, Head::SIZE);
        }
    }
}

/// Calls `limit`, which limits the program's system calls unless it returns a negative number.
pub fn confining<T: PartialOrd + Default>(limit: impl FnOnce() -> T) -> T {
    if !RECORDER.on.load(Ordering::Acquire) {
        return limit();
    }
    let is_first = {
        // No other thread is in the middle of a system call of the recorder's then.
        let _held = Inside::enter().map(|inside| {
            own_file();
            (hold(), inside)
        });
        !sys::CONFINED.swap(true, Ordering::AcqRel)
    };
    let result = limit();
    if is_first && result < T::default() {
        sys::CONFINED.store(false, Ordering::Release);
    }
    result
}

/// Makes sure that this process has a file of its own, before it records.
#[inline(always)]
fn own_file() {
    if own().load(Ordering::Acquire) != OPEN {
        adopt();
    }
}

/// Opens a file for this process, which is a copy of the one that recorded so far. Its header says that blocks from before are
/// missing.
#[cold]
fn adopt() {
    let own = own();
    if own.compare_exchange(COPY, OPENING, Ordering::Acquire, Ordering::Acquire).is_err() {
        while own.load(Ordering::Acquire) == OPENING {
            pause();
        }
        return;
    }
    keeping_errno(|| {
        // A thread that held the lock is not in this process, and may have left the state half changed: then the parent's maps stay.
        let is_whole = !RECORDER.locked.swap(true, Ordering::Acquire);
        if sys::is_confined() {
            RECORDER.on.store(false, Ordering::Relaxed);
            RECORDER.locked.store(false, Ordering::Release);
            own.store(OPEN, Ordering::Release);
            return;
        }
        // SAFETY: all other threads of this process wait above, or find recording off.
        let state = unsafe { &mut *RECORDER.state.get() };
        if is_whole {
            state.leave();
        }
        SKIPPED.store(0, Ordering::Relaxed);
        state.tree.forget();
        stacks::forget();
        state.sampled.clear();
        sample::forget();
        let parent = HEAD.load(Ordering::Relaxed);
        let on = state.open(1);
        if !on {
            HEAD.store(ptr::null_mut(), Ordering::Relaxed);
        }
        if is_whole && !parent.is_null() {
            // SAFETY: the map is this process's copy, which it does not use any more.
            unsafe { sys::munmap(parent.cast(), Head::SIZE) };
        }
        RECORDER.on.store(on, Ordering::Relaxed);
        RECORDER.locked.store(false, Ordering::Release);
        own.store(OPEN, Ordering::Release);
    });
}

/// The key of each thread's value, a [`Thread`]. Not a thread-local variable, because only the GNU C library would load this library then.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// The first key whose value may have to be allocated (glibc).
const FIRST_ALLOCATED_KEY: c_uint = 32;

/// Files that were opened: in each, threads are named anew.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// Threads other than the first that were numbered.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// What is known of a thread, in a word: bit 0 is set while it is inside the recorder or in a call that is already recorded; 8 bits count
/// its calls as far as they go; 7 are of the number of the file in which it was named; the others are its number, from 1 on.
#[derive(Clone, Copy)]
struct Thread(usize);

impl Thread {
    const COUNT: usize = 0xFF << 1;
    const FILE: usize = 0x7F << 9;
    /// The first thread of a process.
    const MAIN: usize = 1;

    fn this() -> Self {
        // SAFETY: the key was made before recording began.
        Self(unsafe { sys::pthread_getspecific(INSIDE.load(Ordering::Relaxed)) }.addr())
    }

    fn keep(self) {
        // SAFETY: the key was made before recording began. Setting the value of so small a key allocates nothing.
        unsafe { sys::pthread_setspecific(INSIDE.load(Ordering::Relaxed), ptr::without_provenance(self.0)) };
    }

    /// Its number; 0 before it has one.
    fn number(self) -> usize {
        self.0 >> 16
    }

    /// Counts a call of a thread that is inside, and names it where that is due. Programs name threads after these have begun: it is looked at again, less
    /// and less often.
    #[inline]
    fn count(&mut self) {
        let (count, file) = (self.0 & Self::COUNT, FILES.load(Ordering::Relaxed) << 9 & Self::FILE);
        let mut is_due = self.0 & Self::FILE != file;
        if count < Self::COUNT {
            self.0 += 2;
            is_due |= ((count >> 1) + 1).is_power_of_two();
        }
        if is_due {
            keeping_errno(|| self.name(file));
        }
    }

    #[cold]
    #[inline(never)]
    fn name(&mut self, file: usize) {
        let (mut name, mut length, mut is_main) = ([0_u8; 64], 0, self.number() == Self::MAIN);
        if !sys::is_confined() {
            // SAFETY: the paths end with a zero byte, the places are of local variables of these lengths, and the descriptor is this
            // function's.
            unsafe {
                let path = c"/proc/thread-self".as_ptr();
                let size = sys::readlink(path, name.as_mut_ptr().cast(), name.len());
                let mut parts = name[..usize::try_from(size).unwrap_or(0)].split(|&byte| byte == b'/');
                is_main = parts.next() == parts.next_back() && size > 0;
                let comm = sys::open(c"/proc/thread-self/comm".as_ptr(), sys::O_CLOEXEC);
                if comm >= 0 {
                    let size = sys::pread(comm, name.as_mut_ptr().cast(), name.len(), 0);
                    length = usize::try_from(size).unwrap_or(0).saturating_sub(1);
                    sys::close(comm);
                }
            }
        }
        let number = match self.number() {
            _ if is_main => Self::MAIN,
            0 | Self::MAIN => Self::MAIN + 1 + THREADS.fetch_add(1, Ordering::Relaxed) % 0xFFF0,
            known => known,
        };
        self.0 = number << 16 | file | self.0 & Self::COUNT;
        Self(self.0 | 1).keep();
        if number > Self::MAIN {
            let mut line = Line::<96>::new();
            line.text("t ");
            line.number(number);
            line.text(" ");
            line.text(core::str::from_utf8(&name[..length]).unwrap_or("?"));
            let _held = hold();
            // SAFETY: the lock is held.
            unsafe { (*RECORDER.state.get()).record::<128>(&Record::Note { text: line.as_str() }) };
        }
    }
}

/// A mark that this thread is inside.
struct Inside(Thread);

impl Inside {
    /// Marks this thread; `None` if it is marked.
    fn enter() -> Option<Self> {
        let thread = Thread::this();
        if thread.0 & 1 != 0 {
            return None;
        }
        Thread(thread.0 | 1).keep();
        Some(Self(thread))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.keep();
    }
}

/// Calls `f`; calls `real` instead, which is not recorded, if this thread is already in here or recording is off.
#[inline]
pub fn recorded<T>(real: impl FnOnce() -> T, f: impl FnOnce() -> T) -> T {
    if !RECORDER.on.load(Ordering::Acquire) {
        return real();
    }
    if control().is_some_and(|control| control.paused.load(Ordering::Relaxed) != 0) {
        SKIPPED.fetch_add(1, Ordering::Relaxed);
        return real();
    }
    let Some(mut inside) = Inside::enter() else { return real() };
    own_file();
    inside.0.count();
    f()
}

/// Lets another thread go on.
fn pause() {
    if sys::is_confined() {
        core::hint::spin_loop();
        return;
    }
    // SAFETY: `sched_yield` has no preconditions.
    unsafe { sys::sched_yield() };
}

/// A guard for the held lock.
pub struct Held(());

/// Takes the lock. Call it only in [`recorded`].
pub fn hold() -> Held {
    while RECORDER.locked.swap(true, Ordering::Acquire) {
        pause();
    }
    Held(())
}

/// Takes the lock, unless it stays held: the tool may have stopped the very thread that holds it, to call this.
fn hold_soon() -> Option<Held> {
    for _ in 0..1000 {
        if !RECORDER.locked.swap(true, Ordering::Acquire) {
            return Some(Held(()));
        }
        pause();
    }
    None
}

impl Drop for Held {
    fn drop(&mut self) {
        RECORDER.locked.store(false, Ordering::Release);
    }
}

impl Held {
    /// Remembers a block that was recorded, if not all are.
    pub fn keep(&mut self, block: *mut c_void) {
        // SAFETY: this value proves that the thread holds the lock.
        let state = unsafe { &mut *RECORDER.state.get() };
        if sample::is_on() && !block.is_null() && state.sampled.insert(block.addr(), 0, 1) {
            sample::count(block.addr(), true);
        }
    }

    /// Forgets a block; returns whether it was recorded.
    pub fn forget(&mut self, block: *mut c_void) -> bool {
        if !sample::is_on() {
            return true;
        }
        // SAFETY: this value proves that the thread holds the lock.
        let known = unsafe { &mut *RECORDER.state.get() }.sampled.remove(block.addr(), 0);
        if known {
            sample::count(block.addr(), false);
        }
        known
    }

    /// Records an event and the stack that made it.
    pub fn write(&mut self, action: Action, stack: &Stack) {
        if !RECORDER.on.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: this value proves that the thread holds the lock.
        let state = unsafe { &mut *RECORDER.state.get() };
        let time = state.now();
        let thread = Thread::this().number();
        if thread != state.thread {
            state.thread = thread;
            let mut line = Line::<16>::new();
            line.text("t ");
            line.number(thread);
            state.record::<32>(&Record::Note { text: line.as_str() });
        }
        // A tag that does not change takes no room: the tool does not ask for that of a free.
        if !matches!(action, Action::Free { .. }) {
            state.tag = state.node(stack);
        }
        let tag = state.tag;
        let mut bytes = [0; Encoder::MAX_EVENT];
        let skipped = SKIPPED.swap(0, Ordering::Relaxed);
        if skipped > 0 {
            let record = Record::Lost { events: skipped };
            if let Ok(size) = state.encoder.encode(&record, &mut bytes) {
                state.append(&bytes[..size]);
            }
        }
        // An event is never longer than that, and all alignments are powers of two.
        if let Ok(size) = state.encoder.encode(&Event { action, time, tag }.into(), &mut bytes) {
            state.append(&bytes[..size]);
            state.events += 1;
        }
        if control().is_some_and(|control| control.most.load(Ordering::Relaxed) == state.events) {
            RECORDER.on.store(false, Ordering::Relaxed);
            if let Some(head) = head() {
                head.complete.store(1, Ordering::Release);
            }
        }
    }
}

/// Writes a module's addresses and path, unless they are known. Call it only in [`recorded`], without the lock.
fn name_module(module: &Module) {
    let _held = hold();
    // SAFETY: the lock is held.
    let state = unsafe { &mut *RECORDER.state.get() };
    if !RECORDER.on.load(Ordering::Relaxed) || state.tree.knows_module(module.start) {
        return;
    }
    let mut line = Line::<1200>::new();
    line.text("m");
    for number in [module.start, module.end, module.bias] {
        line.text(" ");
        line.number(number);
    }
    line.text(" ");
    line.text(module.path());
    state.record::<1232>(&Record::Note { text: line.as_str() });
}

/// A library was unloaded: what is known of addresses may be wrong.
pub fn unloaded() {
    if RECORDER.on.load(Ordering::Acquire)
        && let Some(_inside) = Inside::enter()
    {
        own_file();
        let _held = hold();
        // SAFETY: the lock is held.
        unsafe { (*RECORDER.state.get()).tree.forget() };
        stacks::forget();
    }
}

/// Returns the nanoseconds of a monotonic clock.
fn now(clock: c_int) -> u64 {
    let mut time = sys::Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the pointer is to a local variable.
    unsafe { sys::clock_gettime(clock, &raw mut time) };
    (time.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds as u64)
}

/// Runs `f` and restores `errno`, because allocating programs do not expect it to change.
fn keeping_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the location belongs to this thread.
    unsafe {
        let errno = sys::__errno_location();
        let before = *errno;
        let result = f();
        *errno = before;
        result
    }
}

/// Returns the system's error number.
fn errno() -> u64 {
    // SAFETY: the location belongs to this thread.
    (unsafe { *sys::__errno_location() }) as u64
}

impl State {
    /// Returns the time to be written with the next event, if any.
    fn now(&mut self) -> Option<u64> {
        let clock = match self.times {
            Times::Never => return None,
            Times::Coarse => sys::CLOCK_MONOTONIC_COARSE,
            Times::Exact => sys::CLOCK_MONOTONIC,
        };
        let time = Some(now(clock));
        if self.times == Times::Coarse && time == self.time {
            return None;
        }
        self.time = time;
        time
    }

    /// Returns the node of a stack, after the nodes that it needs were written; 0 of none.
    fn node(&mut self, stack: &Stack) -> u32 {
        if stack.frames().is_empty() {
            return 0;
        }
        if let Some(known) = self.tree.whole(stack) {
            return known;
        }
        let mut node = 0;
        for &frame in stack.frames().iter().rev() {
            let parent = node;
            let is_new;
            (node, is_new) = self.tree.node(parent, frame);
            if is_new {
                let mut line = Line::<40>::new();
                line.number(parent as usize);
                line.text(" ");
                line.number(frame);
                self.record::<72>(&Record::Name { tag: node, name: line.as_str() });
            }
        }
        self.tree.keep(stack, node);
        node
    }

    /// Appends a record of text, of at most `MOST` bytes. Out of line, since the program's stack may be short.
    #[cold]
    #[inline(never)]
    fn record<const MOST: usize>(&mut self, record: &Record<'_>) {
        let mut bytes = [0; MOST];
        if let Ok(size) = self.encoder.encode(record, &mut bytes) {
            self.append(&bytes[..size]);
        }
    }

    /// Appends a record; nothing once the recording has ended.
    fn append(&mut self, mut bytes: &[u8]) {
        let Some(head) = head().filter(|head| head.stopped.load(Ordering::Relaxed) == 0) else { return };
        while !bytes.is_empty() {
            if self.used == self.size && !keeping_errno(|| self.advance(head)) {
                return;
            }
            let count = bytes.len().min(self.size - self.used);
            // SAFETY: the window has that much room behind what is used.
            unsafe { self.window.add(self.used).copy_from_nonoverlapping(bytes.as_ptr(), count) };
            self.used += count;
            bytes = &bytes[count..];
        }
        head.length.store(self.start + self.used as u64 - Head::SIZE as u64, Ordering::Release);
    }

    /// Moves the window on. Returns false, with recording off and the window where it was, if that is not possible.
    fn advance(&mut self, head: &Head) -> bool {
        if sys::is_confined() {
            RECORDER.on.store(false, Ordering::Relaxed);
            head.stopped.store(Head::CONFINED, Ordering::Release);
            return false;
        }
        if is_abandoned() {
            RECORDER.on.store(false, Ordering::Relaxed);
            head.stopped.store(sys::ESRCH as u64, Ordering::Release);
            return false;
        }
        // SAFETY: the path ends with a zero byte.
        let mut file = unsafe { sys::open(self.path.as_ptr(), sys::O_RDWR | sys::O_CLOEXEC) };
        let opened = file >= 0;
        // A program that changed its root or its user may still have the descriptor; one that closed it may have another file there.
        if !opened && self.has_kept() {
            file = self.kept;
        }
        let (old, old_size) = (self.window, self.size);
        let moved = self.map(file, self.start + old_size as u64);
        // SAFETY: the old window is a map of that length, and is not used any more; the descriptor is this function's.
        unsafe {
            if opened {
                sys::close(file);
            }
            if moved.is_ok() {
                sys::munmap(old.cast(), old_size);
            }
        }
        if let Err(error) = moved {
            RECORDER.on.store(false, Ordering::Relaxed);
            head.stopped.store(error, Ordering::Release);
        }
        moved.is_ok()
    }

    /// Makes the part of the file at `start` the window.
    ///
    /// # Errors
    /// The system's error number; the window is unchanged.
    fn map(&mut self, file: c_int, start: u64) -> Result<(), u64> {
        if file < 0 {
            return Err(errno());
        }
        // Beyond this limit the system ends a program with a signal.
        let mut limit = [0; 2];
        // SAFETY: the place is that of a local variable.
        unsafe { sys::getrlimit(sys::RLIMIT_FSIZE, limit.as_mut_ptr()) };
        let room =
            (limit[0] as u64).saturating_sub(start).min(WINDOW as u64) as usize / Head::SIZE * Head::SIZE;
        if room == 0 || (start == 0 && room == Head::SIZE) {
            return Err(sys::EFBIG as u64);
        }
        // The space is reserved, so a full disk does not end the program with a signal when the map is written.
        // SAFETY: the file is the recorder's. A new map affects no other memory.
        let window = unsafe {
            match sys::posix_fallocate(file, start as sys::OffT, room as sys::OffT) {
                0 => {}
                error => return Err(error as u64),
            }
            let access = sys::PROT_READ | sys::PROT_WRITE;
            sys::mmap(ptr::null_mut(), room, access, sys::MAP_SHARED, file, start as sys::OffT)
        };
        if window == sys::MAP_FAILED {
            return Err(errno());
        }
        (self.window, self.size, self.start, self.used) = (window.cast(), room, start, 0);
        Ok(())
    }

    /// Returns whether the descriptor that was kept is still that of the file. Its path in `/proc` would not be had in another root, and would
    /// take more of the stack than signal handlers and coroutines may have.
    fn has_kept(&self) -> bool {
        let (mut mark, at) = (0_u64, offset_of!(Head, mark) as sys::OffT);
        // SAFETY: the place is that of a local variable of this length. What is no file, or too short, is not read.
        let read = unsafe { sys::pread(self.kept, (&raw mut mark).cast(), size_of::<u64>(), at) };
        read == size_of::<u64>() as isize
            && head().is_some_and(|head| head.mark.load(Ordering::Relaxed) == mark)
    }

    /// Lets go of the parent's file, which it keeps, but not of the head.
    fn leave(&mut self) {
        // SAFETY: the maps are this process's copies, which it does not use any more, and the descriptor is that of the file.
        unsafe {
            if self.has_kept() {
                sys::close(self.kept);
            }
            sys::munmap(self.window.cast::<c_void>(), self.size);
        }
        (self.window, self.size, self.used, self.kept) = (ptr::null_mut(), 0, 0, -1);
    }

    /// Maps the control file, if there is one.
    fn open_control(&mut self) {
        // There is no file yet, so that its path is free for another one.
        let path = &mut self.path;
        // SAFETY: the buffer has that length; the format fits its argument. `snprintf` does not allocate for it. The descriptor is
        // closed once the page is mapped, which it stays.
        unsafe {
            let length = sys::snprintf(path.as_mut_ptr(), path.len(), c"%s.control".as_ptr(), self.name);
            if length < 0 || length as usize >= path.len() {
                return;
            }
            let file = sys::open(path.as_ptr(), sys::O_RDWR | sys::O_CLOEXEC);
            if file < 0 {
                return;
            }
            // A page behind the end of a file cannot be read.
            if sys::lseek(file, 0, sys::SEEK_END) >= size_of::<Control>() as sys::OffT {
                let access = sys::PROT_READ | sys::PROT_WRITE;
                let page = sys::mmap(ptr::null_mut(), Head::SIZE, access, sys::MAP_SHARED, file, 0);
                if page != sys::MAP_FAILED {
                    CONTROL.store(page.cast(), Ordering::Relaxed);
                }
            }
            sys::close(file);
        }
    }

    /// Opens this process's next file and starts a trace in it. `lost` is the number of earlier events that were lost.
    fn open(&mut self, lost: u64) -> bool {
        // SAFETY: `getpid` cannot fail.
        let process = unsafe { sys::getpid() };
        PROCESS.store(process, Ordering::Relaxed);
        let mut file = -1;
        for image in 0..10_000 {
            let path = self.path.as_mut_ptr();
            // SAFETY: the buffer has that length; the format fits its arguments, of which the first is a string of
            // the environment's. `snprintf` does not allocate for these.
            let length =
                unsafe { sys::snprintf(path, 4096, c"%s.%d.%d".as_ptr(), self.name, process, image) };
            if length < 0 || length as usize >= self.path.len() {
                return false;
            }
            let flags = sys::O_RDWR | sys::O_CREAT | sys::O_EXCL | sys::O_CLOEXEC;
            // SAFETY: the path ends with a zero byte.
            file = unsafe { sys::open(self.path.as_ptr(), flags, 0o600) };
            if file >= 0 || errno() != sys::EEXIST as u64 {
                break;
            }
        }
        // The head is still that of the parent, if there is one.
        if let Some(parent) = head().filter(|_| file < 0) {
            parent.without_file.fetch_add(1, Ordering::Relaxed);
        }
        let access = sys::PROT_READ | sys::PROT_WRITE;
        let mut head = sys::MAP_FAILED.cast::<Head>();
        if self.map(file, 0).is_ok() {
            // SAFETY: a new map affects no other memory, and the file is longer than the head.
            head = unsafe { sys::mmap(ptr::null_mut(), Head::SIZE, access, sys::MAP_SHARED, file, 0).cast() };
        }
        if file >= 0 {
            // SAFETY: the descriptor is this function's. Programs number theirs from below.
            unsafe {
                self.kept = sys::fcntl(file, sys::F_DUPFD_CLOEXEC, 500);
                sys::close(file);
            }
        }
        if head.addr() == sys::MAP_FAILED.addr() {
            return false;
        }
        (self.events, self.time, self.used, self.tag, self.thread) = (0, None, Head::SIZE, 0, 0);
        FILES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the head was mapped just now, and the links have that much room in it.
        unsafe {
            let length = sys::readlink(c"/proc/self/exe".as_ptr(), (*head).image.get().cast(), 1024);
            (*head).length_of_image.store(u64::try_from(length).unwrap_or(0), Ordering::Release);
            sys::readlink(c"/proc/self/ns/pid".as_ptr(), (*head).namespace.get().cast(), 63);
            let mark = now(sys::CLOCK_MONOTONIC) ^ (process as u64) << 40;
            (*head).mark.store(mark | 1, Ordering::Relaxed);
        }
        HEAD.store(head, Ordering::Release);
        self.encoder = Encoder::new();
        self.append(&Header { lost, ..Header::HERE }.encode());
        // SAFETY: the head was mapped just now.
        unsafe { (*head).magic.store(Head::MAGIC, Ordering::Release) };
        true
    }
}

/// What to record, and where to.
pub struct Wanted {
    /// The beginning of the files' names.
    pub name: *const c_char,
    pub times: Times,
    pub stacks: bool,
    /// The mean of a sample in bytes, or 0.
    pub mean: u64,
}

impl Times {
    /// Reads the first letter of its name; 0 stands for none.
    pub fn of(letter: u8) -> Self {
        match letter {
            0 => Self::Never,
            b'e' => Self::Exact,
            _ => Self::Coarse,
        }
    }
}

/// Starts recording if the environment names a file. Called once, when the real functions are known.
pub fn start() {
    // A program that runs with more rights than its caller writes no file of the caller's choice.
    // SAFETY: the names end with a zero byte; the program has not started to change its environment.
    let [name, times, stacks, mean] = [
        c"ALLOTMENT_RECORD",
        c"ALLOTMENT_RECORD_TIMES",
        c"ALLOTMENT_RECORD_STACKS",
        c"ALLOTMENT_RECORD_SAMPLE",
    ]
    .map(|name| unsafe { sys::secure_getenv(name.as_ptr()) });
    if name.is_null() {
        return;
    }
    // SAFETY: a variable's value is a string.
    let (times, mean) = unsafe {
        let letter = if times.is_null() { 0 } else { *times as u8 };
        (Times::of(letter), if mean.is_null() { 0 } else { sys::strtoull(mean, ptr::null_mut(), 10) })
    };
    // Before recording begins, because it allocates.
    starts::watch();
    begin(&Wanted { name, times, stacks: !stacks.is_null(), mean }, 0);
}

/// Ends the recording, and lets go of its file. Returns false if a thread keeps the lock.
pub fn end() -> bool {
    let Some(_held) = hold_soon() else { return false };
    if RECORDER.on.swap(false, Ordering::Relaxed) || head().is_some() {
        // SAFETY: the lock is held.
        keeping_errno(|| unsafe { (*RECORDER.state.get()).leave() });
    }
    true
}

/// Makes the key of [`INSIDE`], unless there is one; false if the process has too many.
fn make_key() -> bool {
    static MADE: AtomicBool = AtomicBool::new(false);
    let mut key = 0;
    if !MADE.load(Ordering::Relaxed) {
        // SAFETY: the place is that of a local variable.
        if unsafe { sys::pthread_key_create(&raw mut key, None) } != 0 || key >= FIRST_ALLOCATED_KEY {
            return false;
        }
        INSIDE.store(key, Ordering::Relaxed);
        MADE.store(true, Ordering::Relaxed);
    }
    true
}

/// Starts a recording, of which `lost` earlier events are missing. Returns whether it began; `None` if a thread keeps the lock.
pub fn begin(wanted: &Wanted, lost: u64) -> Option<bool> {
    keeping_errno(|| {
        if !make_key() {
            return Some(false);
        }
        let _held = hold_soon()?;
        // SAFETY: the lock is held.
        let state = unsafe { &mut *RECORDER.state.get() };
        // The program may change its environment later, which a fork must not notice.
        // SAFETY: the name is a string; `strdup` allocates, which is not recorded.
        state.name = unsafe { sys::strdup(wanted.name) };
        state.times = wanted.times;
        if state.name.is_null() {
            return Some(false);
        }
        let is_first = OWN.load(Ordering::Relaxed).is_null();
        if is_first {
            make_own_page();
        } else {
            state.tree.forget();
            state.sampled.clear();
            stacks::forget();
        }
        SKIPPED.store(0, Ordering::Relaxed);
        state.open_control();
        let on = state.open(lost);
        own().store(OPEN, Ordering::Release);
        if on {
            if wanted.stacks {
                stacks::start(name_module);
            }
            if wanted.mean > 0 {
                sample::start(wanted.mean, now(sys::CLOCK_MONOTONIC));
            }
            if is_first {
                watch_forks();
            }
        }
        // Last, because the calls above may allocate.
        RECORDER.on.store(on, Ordering::Release);
        Some(on)
    })
}

type Handler = Option<extern "C" fn()>;

/// Has a child by `fork` open its file at once: it may lose the right to do so before its first request.
fn watch_forks() {
    // C libraries have either function. The fourth argument of the first is a library that may be unloaded, which this is not.
    for name in [c"__register_atfork", c"pthread_atfork"] {
        // SAFETY: the names end with a zero byte; both functions have this type, apart from an argument more than the second uses.
        unsafe {
            let register = sys::dlsym(ptr::null_mut(), name.as_ptr());
            if !register.is_null() {
                type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
                transmute::<*mut c_void, Register>(register)(None, None, Some(in_child), ptr::null_mut());
                return;
            }
        }
    }
}

extern "C" fn in_child() {
    if !RECORDER.on.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: `getpid` cannot fail.
    if PROCESS.load(Ordering::Relaxed) != unsafe { sys::getpid() } {
        own().store(COPY, Ordering::Relaxed);
    }
    if let Some(_inside) = Inside::enter() {
        own_file();
    }
}
