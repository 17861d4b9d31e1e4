//! Writes events to the recording file.

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::event::{Action, Encoder, Event, Header, Record};
use crate::sys;

/// The first page of a file. Native byte order: the file is read on the machine that wrote it.
#[repr(C)]
pub struct Head {
    /// [`Head::MAGIC`].
    magic: AtomicU64,
    /// Bytes of the trace that follows at [`Head::SIZE`].
    length: AtomicU64,
    /// Set if recording ended before the program did: 0, or the system's error number.
    stopped: AtomicU64,
    /// 1 if recording ended because the wanted number of events was reached, else 0.
    complete: AtomicU64,
    /// The path of the program image, and its length.
    length_of_image: AtomicU64,
    image: UnsafeCell<[c_char; 1024]>,
}

/// The page that is shared with the tool.
#[repr(C)]
struct Control {
    /// True while nothing is recorded.
    paused: AtomicU64,
    /// The wanted number of events per image; 0 means no limit.
    most: AtomicU64,
}

/// The control page; null if the tool gave no control file.
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(ptr::null_mut());

/// Calls that were not recorded while recording was paused.
static SKIPPED: AtomicU64 = AtomicU64::new(0);

fn control() -> Option<&'static Control> {
    // SAFETY: the pointer is null, or that of a page that stays mapped.
    unsafe { CONTROL.load(Ordering::Relaxed).as_ref() }
}

impl Head {
    /// The first bytes of a file.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"ALLOTREC");
    /// Bytes before the trace.
    pub const SIZE: usize = 4096;
}

/// Bytes of the file that are mapped at a time.
const WINDOW: usize = 256 << 10;

/// The state that the lock protects.
struct State {
    file: c_int,
    head: *mut Head,
    window: *mut u8,
    /// The offset of the window in the file.
    start: u64,
    /// Bytes of the window that are in use.
    used: usize,
    encoder: Encoder,
    /// Events in the file.
    events: u64,
    /// The beginning of the files' names, and whether times are wanted.
    name: *const c_char,
    times: bool,
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
        file: -1,
        head: ptr::null_mut(),
        window: ptr::null_mut(),
        start: 0,
        used: 0,
        encoder: Encoder::new(),
        events: 0,
        name: ptr::null(),
        times: false,
    }),
};

std::thread_local! {
    /// True while this thread is inside the recorder or in a call that is already recorded. It has no destructor, so it
    /// exists as long as the thread does, and no lazy initialisation.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`; calls `real` instead, which is not recorded, if this thread is already in here or recording is off.
#[inline]
pub fn recorded<T>(real: impl FnOnce() -> T, f: impl FnOnce() -> T) -> T {
    if !RECORDER.on.load(Ordering::Relaxed) {
        return real();
    }
    if control().is_some_and(|control| control.paused.load(Ordering::Relaxed) != 0) {
        SKIPPED.fetch_add(1, Ordering::Relaxed);
        return real();
    }
    INSIDE.with(|inside| {
        if inside.replace(true) {
            return real();
        }
        let result = f();
        inside.set(false);
        result
    })
}

/// A guard for the held lock.
pub struct Held(());

/// Takes the lock. Call it only in [`recorded`].
pub fn hold() -> Held {
    while RECORDER.locked.swap(true, Ordering::Acquire) {
        // SAFETY: `sched_yield` has no preconditions.
        unsafe { sys::sched_yield() };
    }
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        RECORDER.locked.store(false, Ordering::Release);
    }
}

impl Held {
    /// Records an event.
    pub fn write(&mut self, action: Action) {
        if !RECORDER.on.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: this value proves that the thread holds the lock.
        let state = unsafe { &mut *RECORDER.state.get() };
        let time = state.times.then(now);
        let mut bytes = [0; Encoder::MAX_EVENT];
        let skipped = SKIPPED.swap(0, Ordering::Relaxed);
        if skipped > 0 {
            let record = Record::Lost { events: skipped };
            if let Ok(size) = state.encoder.encode(&record, &mut bytes) {
                state.append(&bytes[..size]);
            }
        }
        // An event is never longer than that, and all alignments are powers of two.
        if let Ok(size) = state.encoder.encode(&Event { action, time, tag: 0 }.into(), &mut bytes) {
            state.append(&bytes[..size]);
            state.events += 1;
        }
        if control().is_some_and(|control| control.most.load(Ordering::Relaxed) == state.events) {
            RECORDER.on.store(false, Ordering::Relaxed);
            // SAFETY: the head is mapped as long as recording is on, and recording was on until now.
            unsafe { (*state.head).complete.store(1, Ordering::Release) };
        }
    }
}

/// Returns the nanoseconds of a monotonic clock.
fn now() -> u64 {
    let mut time = sys::Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the pointer is to a local variable.
    unsafe { sys::clock_gettime(sys::CLOCK_MONOTONIC, &raw mut time) };
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
    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.used == WINDOW && !keeping_errno(|| self.advance()) {
                return;
            }
            let count = bytes.len().min(WINDOW - self.used);
            // SAFETY: the window has that much room behind what is used.
            unsafe { self.window.add(self.used).copy_from_nonoverlapping(bytes.as_ptr(), count) };
            self.used += count;
            bytes = &bytes[count..];
        }
        let length = self.start + self.used as u64 - Head::SIZE as u64;
        // SAFETY: the head is mapped as long as recording is on.
        unsafe { (*self.head).length.store(length, Ordering::Release) };
    }

    /// Maps the next part of the file. Returns false, with recording off, if that is not possible.
    fn advance(&mut self) -> bool {
        let start = self.start + WINDOW as u64;
        // SAFETY: the window is a map of that length, and is not used from now on.
        unsafe { sys::munmap(self.window.cast(), WINDOW) };
        self.map(start)
    }

    /// Maps the part of the file at `start`.
    fn map(&mut self, start: u64) -> bool {
        // SAFETY: `file` belongs to the recorder. The space is reserved, so a full disk does not end the program with a
        // signal when the map is written. A new map affects no other memory.
        unsafe {
            let error = sys::posix_fallocate(self.file, start as sys::OffT, WINDOW as sys::OffT);
            let access = sys::PROT_READ | sys::PROT_WRITE;
            let window = match error {
                0 => {
                    sys::mmap(ptr::null_mut(), WINDOW, access, sys::MAP_SHARED, self.file, start as sys::OffT)
                }
                _ => sys::MAP_FAILED,
            };
            if window == sys::MAP_FAILED {
                RECORDER.on.store(false, Ordering::Relaxed);
                if let Some(head) = self.head.as_ref() {
                    head.stopped.store(if error == 0 { errno() } else { error as u64 }, Ordering::Release);
                }
                return false;
            }
            self.window = window.cast();
        }
        (self.start, self.used) = (start, 0);
        true
    }

    /// Maps the control file, if there is one.
    fn open_control(&self) {
        let mut path = [0 as c_char; 4096];
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
            let access = sys::PROT_READ | sys::PROT_WRITE;
            let page = sys::mmap(ptr::null_mut(), Head::SIZE, access, sys::MAP_SHARED, file, 0);
            sys::close(file);
            if page != sys::MAP_FAILED {
                CONTROL.store(page.cast(), Ordering::Relaxed);
            }
        }
    }

    /// Opens this process's next file and starts a trace in it. `lost` is the number of earlier events that were lost.
    fn open(&mut self, lost: u64) -> bool {
        let mut path = [0 as c_char; 4096];
        // SAFETY: `getpid` cannot fail.
        let process = unsafe { sys::getpid() };
        for image in 0..10_000 {
            // SAFETY: the buffer has that length; the format fits its arguments, of which the first is a string of
            // the environment's. `snprintf` does not allocate for these.
            let length = unsafe {
                sys::snprintf(path.as_mut_ptr(), path.len(), c"%s.%d.%d".as_ptr(), self.name, process, image)
            };
            if length < 0 || length as usize >= path.len() {
                return false;
            }
            let flags = sys::O_RDWR | sys::O_CREAT | sys::O_EXCL | sys::O_CLOEXEC;
            // SAFETY: the path ends with a zero byte.
            self.file = unsafe { sys::open(path.as_ptr(), flags, 0o600) };
            if self.file >= 0 {
                break;
            }
            if errno() != sys::EEXIST as u64 {
                return false;
            }
        }
        self.head = ptr::null_mut();
        if self.file < 0 || !self.map(0) {
            return false;
        }
        // The head stays mapped when the window moves on.
        let access = sys::PROT_READ | sys::PROT_WRITE;
        // SAFETY: a new map affects no other memory, and the file is longer than the head.
        let head = unsafe { sys::mmap(ptr::null_mut(), Head::SIZE, access, sys::MAP_SHARED, self.file, 0) };
        if head == sys::MAP_FAILED {
            return false;
        }
        self.head = head.cast();
        self.events = 0;
        // SAFETY: the head was mapped just now, and the image's path has that much room in it.
        unsafe {
            let image = (*self.head).image.get().cast::<c_char>();
            let length = sys::readlink(c"/proc/self/exe".as_ptr(), image, 1024);
            let length = u64::try_from(length).unwrap_or(0);
            (*self.head).length_of_image.store(length, Ordering::Release);
        }
        self.used = Head::SIZE;
        self.encoder = Encoder::new();
        self.append(&Header { lost, ..Header::HERE }.encode());
        // SAFETY: the head was mapped just now.
        unsafe { (*self.head).magic.store(Head::MAGIC, Ordering::Release) };
        true
    }
}

/// Starts recording if the environment names a file. Called once, when the real functions are known.
pub fn start() {
    keeping_errno(|| {
        // A program that runs with more rights than its caller writes no file of the caller's choice.
        // SAFETY: the names end with a zero byte; the program has not started to change its environment.
        let [name, times] = [c"ALLOTMENT_RECORD", c"ALLOTMENT_RECORD_TIMES"]
            .map(|name| unsafe { sys::secure_getenv(name.as_ptr()) });
        if name.is_null() {
            return;
        }
        INSIDE.with(|inside| inside.set(true));
        {
            let held = hold();
            // SAFETY: the lock is held.
            let state = unsafe { &mut *RECORDER.state.get() };
            // The program may change its environment later, which a fork must not notice.
            // SAFETY: the string belongs to the environment; `strdup` allocates, which is not recorded.
            state.name = unsafe { sys::strdup(name) };
            state.times = !times.is_null();
            if !state.name.is_null() {
                state.open_control();
            }
            let on = !state.name.is_null() && state.open(0);
            RECORDER.on.store(on, Ordering::Release);
            drop(held);
        }
        // SAFETY: the loaded functions have the declared types.
        unsafe { sys::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
        INSIDE.with(|inside| inside.set(false));
    });
}

/// Takes the lock before a fork, so no other thread is in the recorder when the process is copied.
extern "C" fn before_fork() {
    INSIDE.with(|inside| inside.set(true));
    core::mem::forget(hold());
}

extern "C" fn after_fork() {
    drop(Held(()));
    INSIDE.with(|inside| inside.set(false));
}

/// Opens a separate file for a child process. Its header states that blocks from before the fork are missing.
extern "C" fn in_child() {
    if RECORDER.on.load(Ordering::Relaxed) {
        keeping_errno(|| {
            // SAFETY: the lock was taken before the fork, and this is the only thread. The parent keeps its own copies of the
            // maps and the file.
            unsafe {
                let state = &mut *RECORDER.state.get();
                sys::munmap(state.window.cast::<c_void>(), WINDOW);
                sys::munmap(state.head.cast::<c_void>(), Head::SIZE);
                sys::close(state.file);
                SKIPPED.store(0, Ordering::Relaxed);
                let on = state.open(1);
                RECORDER.on.store(on, Ordering::Relaxed);
            }
        });
    }
    after_fork();
}
