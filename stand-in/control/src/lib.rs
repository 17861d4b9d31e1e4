//! Builds, loads and controls the stand-in CUDA driver (`stand-in/driver`).
//!
//! ```no_run
//! use allotment_stand_in::StandIn;
//!
//! let driver = StandIn::exclusive().expect("it can be built"); // before any other code loads the driver
//! driver.fail("cuMemAlloc_v2", 1, 1, 2); // the next call fails with "out of memory"
//! driver.hold_all(true); // work waits for `step` or `run`
//! ```

mod load;

pub use load::LoadError;

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

macro_rules! functions {
    ($($name:ident: fn($($type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that the driver exports for tests.
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Functions {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {$(
                    // SAFETY: the driver's `control` exports this name with this type.
                    $name: unsafe { *library.get(concat!("stand_in_", stringify!($name)).as_bytes())? },
                )*})
            }
        }
    };
}

functions! {
    reset: fn();
    set_devices: fn(u64, u64);
    set_attribute: fn(i32, u32, i32);
    poison: fn(u32);
    rate: fn(u64);
    seed: fn(u64);
    late_pageable: fn(bool);
    hold: fn(u64, bool);
    step: fn(u64) -> bool;
    pending: fn(u64) -> u64;
    default_stream: fn(i32) -> u64;
    fail: fn(*const std::ffi::c_char, u64, u64, u32);
    clear_failures: fn();
    use_again: fn(u64);
    fault: fn(i32, u32);
    calls: fn(*const std::ffi::c_char) -> u64;
    misuse: fn(u32) -> u64;
    clear_misuse: fn();
    report: fn(*mut u8, usize) -> usize;
    live: fn(*mut Live);
}

/// What has not been freed: the number of objects of each kind, and the bytes of physical memory on all devices.
#[allow(missing_docs, reason = "the names are self-explanatory")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub device: u64,
    pub ordered: u64,
    pub host: u64,
    pub registered: u64,
    pub managed: u64,
    pub imported: u64,
    pub reserved: u64,
    pub mapped: u64,
    pub physical: u64,
    pub streams: u64,
    pub events: u64,
    pub pools: u64,
    pub modules: u64,
    pub contexts: u64,
    pub bytes: u64,
}

/// Something that a program did wrong.
#[allow(missing_docs, reason = "documented at the driver's `misuse::Kind`")]
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    FreeUnknown = 0,
    FreeTwice = 1,
    OutOfBounds = 2,
    Destroyed = 3,
    UnknownHandle = 4,
    UseAfterFree = 5,
    UseBeforeAllocation = 6,
    NoAccess = 7,
    StillMapped = 8,
    LeftInContext = 9,
    Forbidden = 10,
    FreedInUse = 11,
}

/// The driver, loaded into this process.
pub struct StandIn {
    library: libloading::Library,
    functions: Functions,
}

static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// The driver, reset and reserved for a single test. The next test waits until this is dropped.
pub struct Exclusive {
    driver: &'static StandIn,
    _guard: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Exclusive {
    type Target = StandIn;

    fn deref(&self) -> &StandIn {
        self.driver
    }
}

impl StandIn {
    /// Builds and loads the driver if it is not loaded yet. Call it before any other code loads `libcuda.so`. The
    /// environment variable `ALLOTMENT_STAND_IN` can name a file that is already built.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the driver cannot be built or loaded.
    pub fn load() -> Result<&'static Self, &'static LoadError> {
        load::once()
    }

    /// Loads the driver like [`StandIn::load`], resets it, and reserves it for a single test.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the driver cannot be built or loaded.
    pub fn exclusive() -> Result<Exclusive, &'static LoadError> {
        let guard = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = Self::load()?;
        driver.reset();
        Ok(Exclusive { driver, _guard: guard })
    }

    /// Returns the library itself, to call the driver's functions by name.
    pub fn library(&self) -> &libloading::Library {
        &self.library
    }

    /// Resets the driver to its initial state: all handles become stale, and all memory is gone.
    pub fn reset(&self) {
        // SAFETY: exported with this type, like all functions below; it has no preconditions.
        unsafe { (self.functions.reset)() }
    }

    /// Sets the number of devices and their memory in bytes. Call it before the driver is used.
    pub fn set_devices(&self, count: u64, bytes: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.set_devices)(count, bytes) }
    }

    /// Sets the value that a device returns for an attribute (`CUdevice_attribute`).
    pub fn set_attribute(&self, device: i32, attribute: u32, value: i32) {
        // SAFETY: as above.
        unsafe { (self.functions.set_attribute)(device, attribute, value) }
    }

    /// Makes events measure a simulated time that only copies and fills take, at this many bytes per second; 0 for
    /// real time.
    pub fn rate(&self, bytes_per_second: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.rate)(bytes_per_second) }
    }

    /// Sets the byte that new device memory is filled with.
    pub fn poison(&self, byte: u8) {
        // SAFETY: as above.
        unsafe { (self.functions.poison)(u32::from(byte)) }
    }

    /// Makes work run late, and in an order between streams that the seed decides, as on a device; at once if the seed is 0.
    /// By default the seed is that of the environment variable `ALLOTMENT_STAND_IN_SEED`, else 1.
    pub fn seed(&self, seed: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.seed)(seed) }
    }

    /// Makes asynchronous copies from and to ordinary host memory run when the stream reaches them, which the driver's
    /// documentation allows, instead of within the call. By default the environment variable
    /// `ALLOTMENT_STAND_IN_LATE_PAGEABLE` decides, else they run within the call.
    pub fn late_pageable(&self, late: bool) {
        // SAFETY: as above.
        unsafe { (self.functions.late_pageable)(late) }
    }

    /// Holds the work of a stream, or releases it.
    pub fn hold(&self, stream: u64, hold: bool) {
        assert!(stream != 0, "the default stream has a handle of its own: `default_stream`");
        // SAFETY: as above.
        unsafe { (self.functions.hold)(stream, hold) }
    }

    /// Holds or releases the work of all streams, existing and new ones.
    pub fn hold_all(&self, hold: bool) {
        // SAFETY: as above.
        unsafe { (self.functions.hold)(0, hold) }
    }

    /// Runs one piece of work of a stream if it may run now, and returns whether there was one.
    pub fn step(&self, stream: u64) -> bool {
        // SAFETY: as above.
        unsafe { (self.functions.step)(stream) }
    }

    /// Runs everything that a stream may run now, and returns the number of pieces.
    pub fn run(&self, stream: u64) -> usize {
        std::iter::from_fn(|| self.step(stream).then_some(())).count()
    }

    /// Returns the number of pieces of work that a stream still has.
    pub fn pending(&self, stream: u64) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.pending)(stream) }
    }

    /// Returns the handle of the default stream of a device's primary context.
    pub fn default_stream(&self, device: i32) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.default_stream)(device) }
    }

    /// Makes calls of `name` fail with `code`, `times` times from the `nth` on (1 is the next call).
    pub fn fail(&self, name: &str, nth: u64, times: u64, code: u32) {
        let name = CString::new(name).expect("a name has no zero in it");
        // SAFETY: as above; the text ends with a zero.
        unsafe { (self.functions.fail)(name.as_ptr(), nth, times, code) }
    }

    /// Cancels all failures set by `fail`.
    pub fn clear_failures(&self) {
        // SAFETY: as above.
        unsafe { (self.functions.clear_failures)() }
    }

    /// Gives the next object that is made the handle of one that was destroyed, as a driver may do.
    pub fn use_again(&self, handle: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.use_again)(handle) }
    }

    /// Simulates a fault in the work of a device: every later call returns `code`.
    pub fn fault(&self, device: i32, code: u32) {
        // SAFETY: as above.
        unsafe { (self.functions.fault)(device, code) }
    }

    /// Returns the number of calls of a function since the last reset, failed ones included.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name has no zero in it");
        // SAFETY: as above; the text ends with a zero.
        unsafe { (self.functions.calls)(name.as_ptr()) }
    }

    /// Returns how often this kind of misuse was noticed.
    pub fn misuse(&self, kind: Misuse) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.misuse)(kind as u32) }
    }

    /// Returns how often any misuse was noticed.
    pub fn misuse_of_any_kind(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.misuse)(u32::MAX) }
    }

    /// Forgets the misuse noticed so far.
    pub fn clear_misuse(&self) {
        // SAFETY: as above.
        unsafe { (self.functions.clear_misuse)() }
    }

    /// Returns what has not been freed.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        // SAFETY: as above; the output has the type that the function writes.
        unsafe { (self.functions.live)(&mut live) };
        live
    }

    /// Returns all misuse and all live memory as text, one line each.
    pub fn report(&self) -> String {
        // SAFETY: as above; null asks for the length.
        let bytes = unsafe { (self.functions.report)(std::ptr::null_mut(), 0) };
        let mut text = vec![0; bytes];
        // SAFETY: as above; the buffer has this length.
        let written = unsafe { (self.functions.report)(text.as_mut_ptr(), bytes) };
        text.truncate(written);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Panics unless there was no misuse and everything has been freed.
    #[track_caller]
    pub fn assert_clean(&self) {
        let report = self.report();
        assert!(
            self.misuse_of_any_kind() == 0 && self.live() == Live::default(),
            "{:?}\n{report}",
            self.live()
        );
    }
}
