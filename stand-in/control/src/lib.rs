//! Builds, loads and controls the stand-in CUDA driver (`stand-in/driver`).
//!
//! ```no_run
//! use allotment_stand_in::StandIn;
//!
//! let driver = StandIn::exclusive().expect("it can be built"); // before anything else asks for the driver
//! driver.fail("cuMemAlloc_v2", 1, 1, 2); // the next call: out of memory
//! driver.hold_all(true); // work waits until `step` or `run`
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
    hold: fn(u64, bool);
    step: fn(u64) -> bool;
    pending: fn(u64) -> u64;
    default_stream: fn(i32) -> u64;
    fail: fn(*const std::ffi::c_char, u64, u64, u32);
    clear_failures: fn();
    fault: fn(i32, u32);
    calls: fn(*const std::ffi::c_char) -> u64;
    misuse: fn(u32) -> u64;
    clear_misuse: fn();
    report: fn(*mut u8, usize) -> usize;
    live: fn(*mut Live);
}

/// What is not freed: how many of each kind, and bytes of physical memory on all devices.
#[allow(missing_docs, reason = "the names say it")]
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

/// What a program did wrong.
#[allow(missing_docs, reason = "the driver's `misuse::Kind` says it")]
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

/// The driver for one test alone, fresh; the next test waits until this is dropped.
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
    /// Builds and loads the driver if it is not loaded yet. To be called before anything else asks for `libcuda.so`.
    /// The environment variable `ALLOTMENT_STAND_IN` names a file that is built already.
    ///
    /// # Errors
    ///
    /// If it cannot be built or loaded.
    pub fn load() -> Result<&'static Self, &'static LoadError> {
        load::once()
    }

    /// The same, reset, and for one test alone.
    ///
    /// # Errors
    ///
    /// As [`StandIn::load`].
    pub fn exclusive() -> Result<Exclusive, &'static LoadError> {
        let guard = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = Self::load()?;
        driver.reset();
        Ok(Exclusive { driver, _guard: guard })
    }

    /// The library itself, to call the driver's functions by name.
    pub fn library(&self) -> &libloading::Library {
        &self.library
    }

    /// Everything as at the start: all handles are stale, all memory is gone.
    pub fn reset(&self) {
        // SAFETY: exported with this type, as are all below; it has no conditions.
        unsafe { (self.functions.reset)() }
    }

    /// Other devices, before the driver is used.
    pub fn set_devices(&self, count: u64, bytes: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.set_devices)(count, bytes) }
    }

    /// What a device answers about an attribute (`CUdevice_attribute`).
    pub fn set_attribute(&self, device: i32, attribute: u32, value: i32) {
        // SAFETY: as above.
        unsafe { (self.functions.set_attribute)(device, attribute, value) }
    }

    /// Events tell a time that only copies and fills take, at so many bytes per second; 0 for the real time.
    pub fn rate(&self, bytes_per_second: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.rate)(bytes_per_second) }
    }

    /// New device memory is filled with this.
    pub fn poison(&self, byte: u8) {
        // SAFETY: as above.
        unsafe { (self.functions.poison)(u32::from(byte)) }
    }

    /// Holds the work of a stream, or lets it go on.
    pub fn hold(&self, stream: u64, hold: bool) {
        assert!(stream != 0, "the default stream has a handle of its own: `default_stream`");
        // SAFETY: as above.
        unsafe { (self.functions.hold)(stream, hold) }
    }

    /// The same for all streams that there are and will be.
    pub fn hold_all(&self, hold: bool) {
        // SAFETY: as above.
        unsafe { (self.functions.hold)(0, hold) }
    }

    /// Runs one piece of work of a stream if its turn has come; whether there was one.
    pub fn step(&self, stream: u64) -> bool {
        // SAFETY: as above.
        unsafe { (self.functions.step)(stream) }
    }

    /// Runs what a stream may run now; how many pieces there were.
    pub fn run(&self, stream: u64) -> usize {
        std::iter::from_fn(|| self.step(stream).then_some(())).count()
    }

    /// Pieces of work that a stream still has.
    pub fn pending(&self, stream: u64) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.pending)(stream) }
    }

    /// The handle of the default stream of a device's primary context.
    pub fn default_stream(&self, device: i32) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.default_stream)(device) }
    }

    /// Calls of `name` fail with `code`, `times` times, from the `nth` on (1 is the next).
    pub fn fail(&self, name: &str, nth: u64, times: u64, code: u32) {
        let name = CString::new(name).expect("a name has no zero in it");
        // SAFETY: as above; the text ends with a zero.
        unsafe { (self.functions.fail)(name.as_ptr(), nth, times, code) }
    }

    /// No more failures that were asked for.
    pub fn clear_failures(&self) {
        // SAFETY: as above.
        unsafe { (self.functions.clear_failures)() }
    }

    /// Something goes wrong in the work of a device: every later call says `code`.
    pub fn fault(&self, device: i32, code: u32) {
        // SAFETY: as above.
        unsafe { (self.functions.fault)(device, code) }
    }

    /// Calls of a function since the last reset, those that failed included.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name has no zero in it");
        // SAFETY: as above; the text ends with a zero.
        unsafe { (self.functions.calls)(name.as_ptr()) }
    }

    /// How often this was noticed.
    pub fn misuse(&self, kind: Misuse) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.misuse)(kind as u32) }
    }

    /// How often anything was noticed.
    pub fn misuse_of_any_kind(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (self.functions.misuse)(u32::MAX) }
    }

    /// Forgets what was noticed.
    pub fn clear_misuse(&self) {
        // SAFETY: as above.
        unsafe { (self.functions.clear_misuse)() }
    }

    /// What is not freed.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        // SAFETY: as above; the place has the type.
        unsafe { (self.functions.live)(&mut live) };
        live
    }

    /// All misuse and all live memory, a line for each.
    pub fn report(&self) -> String {
        // SAFETY: as above; null asks for the length.
        let bytes = unsafe { (self.functions.report)(std::ptr::null_mut(), 0) };
        let mut text = vec![0; bytes];
        // SAFETY: as above; the place has this room.
        let written = unsafe { (self.functions.report)(text.as_mut_ptr(), bytes) };
        text.truncate(written);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Panics unless nothing was done wrong and nothing is left.
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
