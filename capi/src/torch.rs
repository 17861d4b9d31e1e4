//! Device memory for PyTorch, RMM and CuPy, whose allocators can be replaced by C functions (feature `gpu`).
//!
//! `allotment_torch_malloc` and `allotment_torch_free` have the types that
//! `torch.cuda.memory.CUDAPluggableAllocator` asks for. Every device has one pool, made at its first request. Options
//! are read from the environment variable `ALLOTMENT_CUDA_ALLOC_CONF`, or set with [`allotment_torch_options`] before;
//! they are `name:value`, separated by commas, with the names of `PYTORCH_CUDA_ALLOC_CONF`.

use super::live::Live;
use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::{ptr, slice};
use heap::gpu::{Context, DeviceMemory, Error, Stream, Virtual};
use heap::pool::{Allocation, Counter, DevicePool, PoolError, PoolOptions, PoolStats, Snapshot, SourceError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the options say, by the names of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    /// Requests above so many bytes have segments of their own size, which smaller ones do not split.
    max_split_size_mb: Option<usize>,
    /// From this part of the device's memory on, unused memory is given back before a request.
    garbage_collection_threshold: Option<f64>,
    /// Sizes are rounded up to a multiple of the next lower power of two, divided by this; 0 for no rounding.
    roundup_power2_divisions: usize,
    /// Whether segments grow in place.
    expandable_segments: bool,
}

impl Options {
    const DEFAULT: Self = Self {
        max_split_size_mb: None,
        garbage_collection_threshold: None,
        roundup_power2_divisions: 0,
        expandable_segments: true,
    };

    /// Reads options. The error is the first that is unknown or has a wrong value.
    fn read(text: &str) -> Result<Self, &str> {
        let mut options = Self::DEFAULT;
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once(':').ok_or(word)?;
            match name.trim() {
                "max_split_size_mb" => {
                    options.max_split_size_mb = Some(value.trim().parse().map_err(|_| word)?);
                }
                "garbage_collection_threshold" => {
                    let part: f64 = value.trim().parse().map_err(|_| word)?;
                    options.garbage_collection_threshold =
                        Some(part).filter(|part| (0.0..1.0).contains(part)).map(Some).ok_or(word)?;
                }
                "roundup_power2_divisions" => {
                    let divisions: usize = value.trim().parse().map_err(|_| word)?;
                    let is_valid = divisions == 0 || divisions.is_power_of_two();
                    options.roundup_power2_divisions = is_valid.then_some(divisions).ok_or(word)?;
                }
                "expandable_segments" => {
                    options.expandable_segments = match value.trim() {
                        "True" | "true" => true,
                        "False" | "false" => false,
                        _ => return Err(word),
                    };
                }
                _ => return Err(word),
            }
        }
        Ok(options)
    }

    fn of_pool(self) -> PoolOptions {
        let options = PoolOptions::new();
        match self.max_split_size_mb {
            Some(limit) => options.exact_above(limit << 20, 2 << 20).lean(true),
            None => options,
        }
    }

    fn round(self, bytes: usize) -> usize {
        let divisions = self.roundup_power2_divisions;
        if divisions <= 1 || bytes < divisions {
            return bytes;
        }
        let step = (1usize << bytes.ilog2()) / divisions;
        bytes.checked_next_multiple_of(step.max(1)).unwrap_or(bytes)
    }
}

/// The pool of a device, of either source.
enum Pool {
    Virtual(DevicePool<Virtual>),
    Plain(DevicePool<DeviceMemory>),
}

macro_rules! each {
    ($pool:expr, $name:ident => $value:expr) => {
        match $pool {
            Pool::Virtual($name) => $value,
            Pool::Plain($name) => $value,
        }
    };
}

struct Device {
    context: Context,
    pool: Pool,
    options: Options,
    live: Live<usize, Allocation>,
}

/// Why a call failed.
enum Failure {
    Driver(Error),
    Pool(PoolError),
    Option(String),
    Unknown(usize),
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Driver(error) => error.fmt(f),
            Self::Pool(error) => error.fmt(f),
            Self::Option(word) => write!(f, "unknown option or wrong value: {word}"),
            Self::Unknown(address) => write!(f, "no block of this allocator starts at {address:#x}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Driver(Error::Call(error))
    }
}

struct State {
    /// The options that were set; until then those of the environment.
    options: Option<Options>,
    devices: Vec<Option<Device>>,
}

static STATE: Mutex<State> = Mutex::new(State { options: None, devices: Vec::new() });

thread_local! {
    /// What the last call of this thread that failed had to say.
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note<T>(result: Result<T, Failure>) -> Option<T> {
    result.map_err(|error| LAST_ERROR.set(error.to_string())).ok()
}

impl State {
    fn options(&mut self) -> Result<Options, Failure> {
        if let Some(options) = self.options {
            return Ok(options);
        }
        let text = std::env::var("ALLOTMENT_CUDA_ALLOC_CONF").unwrap_or_default();
        let options = Options::read(&text).map_err(|word| Failure::Option(word.into()))?;
        Ok(*self.options.insert(options))
    }

    /// The device with this number, whose pool is made now if it was not before.
    fn device(&mut self, ordinal: c_int) -> Result<&mut Device, Failure> {
        let number = usize::try_from(ordinal).unwrap_or(usize::MAX);
        if self.devices.get(number).is_none_or(Option::is_none) {
            let options = self.options()?;
            let context = Context::new(number)?;
            let pool = if options.expandable_segments && context.device().virtual_memory {
                Pool::Virtual(DevicePool::new(Virtual::new(&context)?, options.of_pool())?)
            } else {
                Pool::Plain(DevicePool::new(DeviceMemory::new(&context), options.of_pool())?)
            };
            if self.devices.len() <= number {
                self.devices.resize_with(number + 1, || None);
            }
            self.devices[number] = Some(Device { context, pool, options, live: Live::new() });
        }
        match &mut self.devices[number] {
            Some(device) => Ok(device),
            None => Err(Failure::Driver(Error::NoDevice { ordinal: number, count: 0 })),
        }
    }
}

impl Device {
    /// The stream of a handle, which the caller guarantees to exist.
    fn stream(&self, handle: *mut c_void) -> Result<Stream, Failure> {
        // SAFETY: the contract of the C functions: the stream is one of this device, and exists as long as memory is
        // in use on it.
        Ok(unsafe { Stream::from_raw(&self.context, handle.cast()) }?)
    }

    fn malloc(&mut self, bytes: usize, stream: *mut c_void) -> Result<*mut c_void, Failure> {
        let stream = self.stream(stream)?;
        if let Some(part) = self.options.garbage_collection_threshold {
            let threshold = (self.context.device().memory as f64 * part) as usize;
            let reserved = each!(&self.pool, pool => pool.stats().reserved.current);
            if reserved as usize > threshold {
                each!(&self.pool, pool => pool.trim(threshold));
            }
        }
        let bytes = self.options.round(bytes);
        let block = each!(&self.pool, pool => pool.allocate_raw(bytes, 1, &stream)?);
        let address = block.address();
        self.live.insert(address, block);
        Ok(ptr::without_provenance_mut(address))
    }

    fn free(&mut self, address: usize, stream: *mut c_void) -> Result<(), Failure> {
        let stream = self.stream(stream)?;
        let block = self.live.remove(&address).ok_or(Failure::Unknown(address))?;
        // The block is live, and of this pool.
        let _ = each!(&self.pool, pool => pool.deallocate_on(block, &stream));
        Ok(())
    }
}

/// Allocates `bytes` bytes on a device for work on `stream`; null after an error, and for no bytes. O(log segments)
/// unless memory must be had from the driver.
///
/// # Safety
///
/// The stream must be one of the device's, and must exist as long as memory that it uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_malloc(
    bytes: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let Some(bytes) = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0) else { return ptr::null_mut() };
    let block = lock().device(device).and_then(|device| device.malloc(bytes, stream));
    note(block).unwrap_or(ptr::null_mut())
}

/// Frees a block; null is ignored. The last work on it was submitted to `stream`, or noted with
/// [`allotment_torch_record_stream`]. An address that is no block's changes nothing and is an error. O(1).
///
/// # Safety
///
/// As for [`allotment_torch_malloc`]; nothing may be submitted that uses the block afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_free(
    block: *mut c_void,
    _bytes: isize,
    device: c_int,
    stream: *mut c_void,
) {
    if !block.is_null() {
        note(lock().device(device).and_then(|device| device.free(block.addr(), stream)));
    }
}

/// Notes that work on `stream` uses a block, so that its memory is not used again before that work is done. O(1).
///
/// # Safety
///
/// As for [`allotment_torch_malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    let state = lock();
    let found =
        state.devices.iter().flatten().find_map(|device| Some((device, device.live.get(&block.addr())?)));
    let noted = match found {
        Some((device, block)) => device.stream(stream).map(|stream| {
            let _ = each!(&device.pool, pool => pool.record_stream(block, &stream));
        }),
        None => Err(Failure::Unknown(block.addr())),
    };
    note(noted);
}

/// Sets the options of pools that are made from here on: those of devices that had no request yet. Returns 0, or -1
/// if an option is unknown or has a wrong value.
///
/// # Safety
///
/// The text must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_options(text: *const c_char) -> c_int {
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match note(Options::read(&text).map_err(|word| Failure::Option(word.into()))) {
        Some(options) => {
            lock().options = Some(options);
            0
        }
        None => -1,
    }
}

/// Gives unused memory of a device beyond `keep` bytes back to it, and returns the bytes.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_trim(device: c_int, keep: usize) -> usize {
    let given = lock().device(device).map(|device| each!(&device.pool, pool => pool.trim(keep)));
    note(given).unwrap_or(0)
}

/// A quantity over time, in bytes or a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllotmentCounter {
    /// The value now.
    pub current: u64,
    /// The highest value so far.
    pub peak: u64,
    /// The sum of everything that was added so far.
    pub total: u64,
}

impl From<Counter> for AllotmentCounter {
    fn from(counter: Counter) -> Self {
        Self { current: counter.current, peak: counter.peak, total: counter.total }
    }
}

/// The figures of a device's pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllotmentTorchStats {
    /// Bytes in live blocks, rounding included.
    pub allocated: AllotmentCounter,
    /// Bytes in live blocks, as requested.
    pub requested: AllotmentCounter,
    /// Bytes that the pool has from the device.
    pub reserved: AllotmentCounter,
    /// Bytes in live blocks and in freed ones that wait for work.
    pub active: AllotmentCounter,
    /// Number of live blocks.
    pub blocks: AllotmentCounter,
    /// Number of requests for which the device was asked.
    pub misses: u64,
    /// Number of requests that failed.
    pub failures: u64,
}

/// Writes a device's figures to `stats`. Returns 0, or -1 after an error. O(1).
///
/// # Safety
///
/// `stats` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_stats(device: c_int, stats: *mut AllotmentTorchStats) -> c_int {
    let found = lock().device(device).map(|device| each!(&device.pool, pool => pool.stats()));
    let Some(found) = note(found) else { return -1 };
    let PoolStats { allocated, requested, reserved, active, blocks, misses, failures, .. } = found;
    let (allocated, requested, reserved) = (allocated.into(), requested.into(), reserved.into());
    let (active, blocks) = (active.into(), blocks.into());
    let found = AllotmentTorchStats { allocated, requested, reserved, active, blocks, misses, failures };
    // SAFETY: the caller's contract.
    unsafe { stats.write(found) };
    0
}

/// Copies as much of a text as there is room for, with a zero at its end, and returns its length without that.
///
/// # Safety
///
/// `room` bytes from `place` must be writable; null is allowed if there is no room.
unsafe fn give(text: &str, place: *mut c_char, room: usize) -> usize {
    if !place.is_null() && room > 0 {
        let len = text.len().min(room - 1);
        // SAFETY: the caller's contract.
        let place = unsafe { slice::from_raw_parts_mut(place.cast::<u8>(), len + 1) };
        place[..len].copy_from_slice(&text.as_bytes()[..len]);
        place[len] = 0;
    }
    text.len()
}

/// Writes all segments and blocks of a device's pool as JSON to `place`, which has room for `room` bytes, and returns
/// the length of the whole text; 0 after an error. O(blocks · log blocks).
///
/// # Safety
///
/// `room` bytes from `place` must be writable; null is allowed if there is no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_snapshot(device: c_int, place: *mut c_char, room: usize) -> usize {
    let found: Result<Snapshot, Failure> =
        lock().device(device).map(|device| each!(&device.pool, pool => pool.snapshot()));
    let text = note(found).and_then(|found| serde_json::to_string(&found).ok()).unwrap_or_default();
    // SAFETY: the caller's contract.
    unsafe { give(&text, place, room) }
}

/// Writes what the last call of this thread that failed had to say to `place`, and returns the length of the text.
///
/// # Safety
///
/// As for [`allotment_torch_snapshot`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_last_error(place: *mut c_char, room: usize) -> usize {
    // SAFETY: the caller's contract.
    LAST_ERROR.with_borrow(|text| unsafe { give(text, place, room) })
}
