//! Device memory for PyTorch, RMM and CuPy, whose allocators C functions can replace (feature `gpu`).
//!
//! The functions `allotment_torch_*` have the types of the hooks of `torch.cuda.memory.CUDAPluggableAllocator`, as PyTorch declares them;
//! `capi/python/allotment_torch.py` installs them. `allotment_cupy_malloc` and `allotment_cupy_free` have the types of
//! `cupy.cuda.CFunctionAllocator`. Every device has one pool, made at its first request. Its options come from an earlier call of
//! [`allotment_torch_options`] or from the environment variable `ALLOTMENT_CUDA_ALLOC_CONF`: `name:value`, separated by commas, with the
//! names of `PYTORCH_CUDA_ALLOC_CONF`.

mod options;
mod report;

use super::live::Live;
use super::start::environment;
use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_double, c_int, c_void};
use core::ptr;
use heap::gpu::{Context, DeviceMemory, Error, Stream, Virtual};
use heap::pool::{Allocation, DevicePool, PoolError, SourceError, Stream as _};
use options::Options;
use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pool of a device, over either source.
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
use each;

struct Device {
    context: Context,
    pool: Pool,
    options: Options,
    live: Live<usize, Allocation>,
    /// The pools that PyTorch keeps for graphs, by their numbers.
    graphs: HashMap<MempoolId, GraphPool>,
    /// The graph pool to which PyTorch currently allocates.
    current: Option<MempoolId>,
}

/// The number of a pool that PyTorch keeps for graphs: `c10::cuda::MempoolId_t`, a pair of numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MempoolId {
    /// The number of a capture; 0 for a pool made by the program.
    pub first: u64,
    /// The number of a pool made by the program; otherwise 0.
    pub second: u64,
}

/// The state of a pool that graphs share.
#[derive(Default)]
struct GraphPool {
    /// The number of graphs that use the pool.
    graphs: usize,
    captures: Vec<u64>,
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
            Self::Pool(PoolError::OutOfMemory(error)) => {
                let [requested, free, reserved] = [error.requested, error.free, error.reserved].map(mib);
                write!(
                    f,
                    "out of memory: {requested} MiB requested, {free} MiB free in {reserved} MiB reserved; tried: memory of other \
                     streams, the device, waiting for freed blocks, returning empty segments ({error})"
                )
            }
            Self::Pool(error) => error.fmt(f),
            Self::Option(word) => write!(f, "unknown option or wrong value: {word}"),
            Self::Unknown(address) => write!(f, "no block of this allocator starts at {address:#x}"),
        }
    }
}

/// Formats bytes as MiB, with one decimal.
fn mib(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / (1 << 20) as f64)
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
    /// The options; `None` until they are set or read from the environment.
    options: Option<Options>,
    devices: Vec<Option<Device>>,
    /// The parts of their memory that devices may use, if set before the first request.
    fractions: BTreeMap<usize, f64>,
}

static STATE: Mutex<State> =
    Mutex::new(State { options: None, devices: Vec::new(), fractions: BTreeMap::new() });

thread_local! {
    /// The message of this thread's last failed call.
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note<T>(result: Result<T, Failure>) -> Option<T> {
    result.map_err(|error| LAST_ERROR.set(error.to_string())).ok()
}

/// Prints why a request failed.
#[cold]
fn report() {
    LAST_ERROR.with_borrow(|text| _ = writeln!(std::io::stderr(), "allotment: {text}"));
}

/// Throws `std::bad_alloc` if the program has loaded libstdc++, since PyTorch treats null as a block; otherwise returns null.
///
/// Neither this nor its caller has anything to drop, so none of our code runs while the exception unwinds.
#[cold]
extern "C-unwind" fn bad_alloc() -> *mut c_void {
    const THROW: &CStr = c"_ZSt17__throw_bad_allocv";
    // SAFETY: the name ends with a zero.
    let mut throw = unsafe { libc::dlsym(libc::RTLD_DEFAULT, THROW.as_ptr()) };
    if throw.is_null() {
        // Python loads its extensions, and libstdc++ with them, outside the global scope.
        // SAFETY: the names end with a zero; this does not load a library, and a loaded one stays loaded, because nothing lowers its
        // reference count again.
        throw = unsafe {
            let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, THROW.as_ptr()) }
        };
    }
    if !throw.is_null() {
        // SAFETY: libstdc++ declares it as `void std::__throw_bad_alloc()`, which does not return.
        unsafe { core::mem::transmute::<*mut c_void, extern "C-unwind" fn()>(throw)() };
    }
    ptr::null_mut()
}

impl State {
    fn options(&mut self) -> Result<Options, Failure> {
        if let Some(options) = self.options {
            return Ok(options);
        }
        let read = |text: &str| Options::read(text).map_err(|word| Failure::Option(word.into()));
        let options = environment(c"ALLOTMENT_CUDA_ALLOC_CONF", read)?;
        Ok(*self.options.insert(options))
    }

    /// Returns the device with this number, after making its pool if necessary.
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
            if let Some(&part) = self.fractions.get(&number) {
                each!(&pool, pool => pool.set_limit_fraction(part)?);
            }
            let (live, graphs) = (Live::new(), HashMap::new());
            self.devices[number] = Some(Device { context, pool, options, live, graphs, current: None });
        }
        match &mut self.devices[number] {
            Some(device) => Ok(device),
            None => Err(Failure::Driver(Error::NoDevice { ordinal: number, count: 0 })),
        }
    }
}

impl Device {
    /// Returns the stream for a handle, which the caller guarantees to exist.
    fn stream(&self, handle: *mut c_void) -> Result<Stream, Failure> {
        // SAFETY: the contract of the C functions: the stream belongs to this device, and exists for as long as memory is in use on it.
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
        if let (Some(current), Ok(Some(capture))) = (self.current, stream.capture()) {
            let captures = &mut self.graphs.entry(current).or_default().captures;
            if !captures.contains(&capture) {
                captures.push(capture);
            }
        }
        let address = block.address();
        self.live.insert(address, block);
        Ok(ptr::without_provenance_mut(address))
    }

    fn free(&mut self, address: usize, stream: *mut c_void) -> Result<(), Failure> {
        let stream = self.stream(stream)?;
        let block = self.live.remove(&address).ok_or(Failure::Unknown(address))?;
        // Ignore an error: the block is live and from this pool.
        let _ = each!(&self.pool, pool => pool.deallocate_on(block, &stream));
        Ok(())
    }
}

/// Allocates `bytes` bytes on a device for work on `stream`; null for 0 bytes. O(log segments) unless the pool must call the driver for
/// memory.
///
/// Prints an error, and then throws `std::bad_alloc` if libstdc++ is loaded, since PyTorch does not check for null; otherwise returns
/// null.
///
/// # Safety
///
/// The stream must belong to the device, and must exist for as long as it uses memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn allotment_torch_malloc(
    bytes: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let block = malloc(bytes, device, stream);
    if block.is_null() && bytes > 0 { bad_alloc() } else { block }
}

/// Allocates like [`allotment_torch_malloc`]; prints an error and returns null.
#[inline(never)]
fn malloc(bytes: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let Some(bytes) = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0) else { return ptr::null_mut() };
    let block = lock().device(device).and_then(|device| device.malloc(bytes, stream));
    note(block).unwrap_or_else(|| {
        report();
        ptr::null_mut()
    })
}

/// Frees a block; ignores null. The last work on it must be on `stream`, or on a stream passed to [`allotment_torch_record_stream`]. An
/// address without a block is an error and changes nothing. O(1).
///
/// # Safety
///
/// The contract of [`allotment_torch_malloc`]; no work submitted afterwards may use the block.
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

/// Records a use of a block on `stream`, so that the pool does not reuse its memory before that work is done. O(1).
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

/// Sets the options for pools made later, of devices without a request so far. Returns 0, or -1 if an option is unknown or has a wrong
/// value.
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

/// Returns the start of the segment that contains a block and writes its size to `size`, for PyTorch's exchange with other
/// processes (`set_base_alloc_fn`); null if no block of this allocator starts there. O(devices).
///
/// # Safety
///
/// `size` must be writable, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_base(block: *mut c_void, size: *mut usize) -> *mut c_void {
    let state = lock();
    let segment = state.devices.iter().flatten().find_map(|device| {
        let block = device.live.get(&block.addr())?;
        each!(&device.pool, pool => pool.segment_of(block))
    });
    let Some(segment) = note(segment.ok_or(Failure::Unknown(block.addr()))) else { return ptr::null_mut() };
    if !size.is_null() {
        // SAFETY: the caller's contract.
        unsafe { size.write(segment.bytes) };
    }
    ptr::without_provenance_mut(segment.address.get())
}

/// Releases unused memory to all devices, for `torch.cuda.empty_cache()` (`set_reset_fn`).
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_reset() {
    for device in lock().devices.iter().flatten() {
        each!(&device.pool, pool => pool.trim(0));
    }
}

/// Sets the part of a device's memory that its pool may use, above 0 and up to 1, for `torch.cuda.set_per_process_memory_fraction`
/// (`set_memory_fraction_fn`). For an invalid part, prints an error and changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_memory_fraction(fraction: c_double, device: c_int) {
    let mut state = lock();
    let number = usize::try_from(index(device)).unwrap_or(usize::MAX);
    let set = match state.devices.get(number).and_then(Option::as_ref) {
        Some(device) => each!(&device.pool, pool => pool.set_limit_fraction(fraction)),
        // For the pool that the first request makes.
        None if fraction > 0.0 && fraction <= 1.0 => {
            state.fractions.insert(number, fraction);
            Ok(())
        }
        None => Err(PoolError::Option("limit")),
    };
    if note(set.map_err(Failure::from)).is_none() {
        report();
    }
}

/// Returns the number of a device that PyTorch passes as `int`, or in newer versions as `int8_t`.
const fn index(device: c_int) -> c_int {
    device as i8 as c_int
}

/// From now on, assigns requests on captured streams to a graph with this pool (`set_begin_allocate_to_pool`). Ignores the third
/// argument, a filter of streams: the pool detects captured streams by itself.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_begin_allocate_to_pool(
    device: c_int,
    pool: MempoolId,
    _filter: *const c_void,
) {
    note(lock().device(index(device)).map(|device| {
        device.current = Some(pool);
        device.graphs.entry(pool).or_default().graphs += 1;
    }));
}

/// Ends the effect of [`allotment_torch_begin_allocate_to_pool`] (`set_end_allocate_to_pool_fn`).
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_end_allocate_to_pool(device: c_int, pool: MempoolId) {
    note(lock().device(index(device)).map(|device| {
        device.current.take_if(|current| *current == pool);
    }));
}

/// Releases a graph's use of a pool (`set_release_pool`). Once all graphs of the pool are gone, their memory is reusable. O(captures).
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_release_pool(device: c_int, pool: MempoolId) {
    note(lock().device(index(device)).map(|device| {
        let Some(graphs) = device.graphs.get_mut(&pool) else { return };
        graphs.graphs = graphs.graphs.saturating_sub(1);
        if graphs.graphs == 0 {
            for capture in device.graphs.remove(&pool).unwrap_or_default().captures {
                each!(&device.pool, pool => pool.release_capture(capture));
            }
        }
    }));
}

/// Allocates for `cupy.cuda.CFunctionAllocator`: `param` is the stream that uses the block, or null if several do. Prints an error and
/// returns null; also returns null for 0 bytes.
///
/// # Safety
///
/// As for [`allotment_torch_malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_cupy_malloc(
    param: *mut c_void,
    bytes: usize,
    device: c_int,
) -> *mut c_void {
    malloc(isize::try_from(bytes).unwrap_or(isize::MAX), device, param)
}

/// Frees a block of [`allotment_cupy_malloc`], with the same `param`. If that is null, first waits for all work of the device, like
/// `cudaFree`, because CuPy does not report which streams used the block.
///
/// # Safety
///
/// As for [`allotment_torch_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_cupy_free(param: *mut c_void, block: *mut c_void, device: c_int) {
    if block.is_null() {
        return;
    }
    note(lock().device(device).and_then(|device| {
        if param.is_null() {
            device.context.synchronize()?;
        }
        device.free(block.addr(), param)
    }));
}

/// Releases unused memory of a device beyond `keep` bytes, and returns the number of released bytes.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_torch_trim(device: c_int, keep: usize) -> usize {
    let given = lock().device(device).map(|device| each!(&device.pool, pool => pool.trim(keep)));
    note(given).unwrap_or(0)
}
