//! The driver's state, behind one lock.

pub mod backing;
pub mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod failure;
pub mod kernel;
pub mod late;
pub mod module;
pub mod physical;
pub mod pool;
pub mod space;
pub mod stream;
pub mod work;

use crate::abi::{Code, Handle, Outcome};
use crate::misuse::{Kind, Misuse};
use crate::table::Table;
use capture::{Capture, Executable, Graph};
use context::Context;
use device::Device;
use event::Event;
use failure::Failure;
use late::Late;
use module::{Function, Module};
use physical::Physical;
use pool::Pool;
use space::Space;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use stream::Stream;

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new()));
/// Notified whenever a piece of work is done.
pub static IDLE: Condvar = Condvar::new();

pub fn lock() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Driver {
    pub initialized: bool,
    pub devices: Vec<Device>,
    pub contexts: Table<Context>,
    pub streams: Table<Stream>,
    /// The default streams of threads, by context.
    pub per_thread: HashMap<(Handle, ThreadId), Handle>,
    pub events: Table<Event>,
    pub pools: Table<Pool>,
    pub physical: Table<Physical>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub captures: Table<Capture>,
    pub graphs: Table<Graph>,
    pub executables: Table<Executable>,
    pub space: Space,
    pub misuse: Misuse,
    /// Calls of each function since the last reset.
    pub calls: BTreeMap<&'static str, u64>,
    pub failures: Vec<Failure>,
    /// Positions of streams that the call in progress waits for.
    pub waits: Vec<(Handle, u64)>,
    /// Whether the call in progress trims the pools after it has waited.
    pub trims: bool,
    /// Whether new streams are held.
    pub hold_new: bool,
    /// Decides how late work runs, and in which order between streams; `None` if it runs at once.
    pub late: Option<Late>,
    /// Whether asynchronous copies leave ordinary host memory alone until the stream reaches them.
    pub late_pageable: bool,
    /// When the driver was last called.
    pub called: Instant,
    /// The byte that new device memory is filled with; zero by default.
    pub poison: Option<u8>,
    /// Bytes per second of copies and fills, in a simulated time that only they take. Without it events tell the
    /// real time.
    pub rate: Option<u64>,
    /// The simulated time so far.
    pub elapsed: Duration,
    /// When the simulated time began.
    pub start: Instant,
}

/// Capacity of a device by default, in bytes.
const DEFAULT_BYTES: u64 = 4 << 30;
const DEFAULT_DEVICES: u64 = 2;
const DEFAULT_SEED: u64 = 1;

impl Driver {
    /// Makes a driver with the settings of the environment variables `ALLOTMENT_STAND_IN_DEVICES`, `_BYTES` (of
    /// each device), `_SEED` (see [`Late`]), `_LATE_PAGEABLE` (1 for yes) and `_FAIL` (see [`Failure::parse`]; separated by
    /// commas).
    pub fn new() -> Self {
        let number = |name: &str, default| {
            std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(default)
        };
        let mut driver = Self {
            initialized: false,
            devices: Vec::new(),
            contexts: Table::new("context"),
            streams: Table::new("stream"),
            per_thread: HashMap::new(),
            events: Table::new("event"),
            pools: Table::new("memory pool"),
            physical: Table::new("physical memory"),
            modules: Table::new("module"),
            functions: Table::new("function"),
            captures: Table::new("capture"),
            graphs: Table::new("graph"),
            executables: Table::new("executable graph"),
            space: Space::default(),
            misuse: Misuse::default(),
            calls: BTreeMap::new(),
            failures: Vec::new(),
            waits: Vec::new(),
            trims: false,
            hold_new: false,
            late: Late::new(number("ALLOTMENT_STAND_IN_SEED", DEFAULT_SEED)),
            late_pageable: number("ALLOTMENT_STAND_IN_LATE_PAGEABLE", 0) != 0,
            called: Instant::now(),
            poison: None,
            rate: None,
            elapsed: Duration::ZERO,
            start: Instant::now(),
        };
        driver.set_devices(
            number("ALLOTMENT_STAND_IN_DEVICES", DEFAULT_DEVICES),
            number("ALLOTMENT_STAND_IN_BYTES", DEFAULT_BYTES),
        );
        let failures = std::env::var("ALLOTMENT_STAND_IN_FAIL").unwrap_or_default();
        driver.failures = failures.split(',').filter_map(Failure::parse).collect();
        driver
    }

    pub fn set_devices(&mut self, count: u64, bytes: u64) {
        self.pools = Table::new("memory pool");
        self.devices = (0..count).map(|_| Device::new(bytes)).collect();
        for (ordinal, device) in self.devices.iter_mut().enumerate() {
            device.default_pool = self.pools.insert(Pool::new(ordinal, 0));
            device.pool = device.default_pool;
        }
    }

    /// The code with which this call must fail, if a test asked for it.
    pub fn injected(&mut self, name: &str) -> Option<Code> {
        let failure = self.failures.iter_mut().find(|failure| failure.name == name && failure.times > 0)?;
        if failure.after > 0 {
            failure.after -= 1;
            return None;
        }
        failure.times -= 1;
        Some(failure.code)
    }

    /// The time that events record.
    pub fn now(&self) -> Instant {
        if self.rate.is_some() { self.start + self.elapsed } else { Instant::now() }
    }

    /// Advances the simulated time by a copy or a fill.
    pub fn moved(&mut self, bytes: usize) {
        if let Some(rate) = self.rate {
            self.elapsed += Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        }
    }

    pub fn forbidden(&mut self, text: String) {
        self.misuse.note(Kind::Forbidden, text);
    }

    /// The thread's context, if it has one without a fault.
    pub fn current(&mut self) -> Outcome<Handle> {
        let handle = context::current().ok_or(Code::INVALID_CONTEXT)?;
        let context = self.contexts.find(handle, &mut self.misuse).map_err(|_| Code::INVALID_CONTEXT)?;
        context.fault.map_or(Ok(handle), Err)
    }

    /// Returns whether the thread has a context that exists.
    pub fn has_current(&self) -> bool {
        context::current().is_some_and(|handle| self.contexts.get(handle).is_some())
    }

    /// Fails with the fault of the thread's context, if it has one.
    pub fn fault_of_current(&mut self) -> Outcome {
        match context::current().and_then(|handle| self.contexts.get(handle)?.fault) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// The device of the thread's context.
    pub fn current_device(&mut self) -> Outcome<usize> {
        let context = self.current()?;
        Ok(self.contexts.find(context, &mut self.misuse)?.device)
    }

    pub fn device(&mut self, ordinal: i32) -> Outcome<&mut Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get_mut(ordinal))
            .ok_or(Code::INVALID_DEVICE)
    }
}
