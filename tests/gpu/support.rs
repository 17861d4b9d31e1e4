//! A device for one test.

use allotment::gpu::cudarc::driver::result;
use allotment::gpu::cudarc::driver::sys::CUdevice_attribute;
use allotment::gpu::{Context, Stream};
use allotment::pool::{Segment, Source, Stream as _};
use allotment_stand_in::{Exclusive, Live, StandIn};
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns whether the tests run on the system's driver: if `ALLOTMENT_CUDA_DRIVER` says so, or said so when they
/// were built for a bundle.
///
/// On the system's driver the test that asks says so, as it then ends or looks at less.
pub fn on_system() -> bool {
    let is_system = is_system();
    if is_system && let Some(test) = std::thread::current().name() {
        println!("{test} means something on the stand-in driver only, or looks at less here");
    }
    is_system
}

fn is_system() -> bool {
    let driver = std::env::var("ALLOTMENT_CUDA_DRIVER");
    driver.as_deref().ok().or(option_env!("ALLOTMENT_BUNDLED_CUDA_DRIVER")) == Some("system")
}

/// Returns the stand-in, reset and initialised; `None` on the system's driver.
pub fn stand_in() -> Option<Exclusive> {
    if is_system() {
        return None;
    }
    let driver = StandIn::exclusive().unwrap_or_else(|error| panic!("{error}"));
    result::init().unwrap();
    Some(driver)
}

/// Tests run one at a time on a real device too, because pinned memory is counted per process.
static ONE: Mutex<()> = Mutex::new(());

/// A device with a stream, for one test at a time. Everything must have been freed at its end.
pub struct Gpu {
    pub stream: Stream,
    pub context: Context,
    pub driver: Option<Exclusive>,
    _one: MutexGuard<'static, ()>,
}

impl Gpu {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// Opens a device of the stand-in with this much memory.
    pub fn with_memory(bytes: u64) -> Self {
        Self::with(|driver| driver.set_devices(1, bytes))
    }

    /// Opens a device of the stand-in that returns this value for an attribute.
    pub fn with_attribute(which: CUdevice_attribute, value: i32) -> Self {
        Self::with(|driver| driver.set_attribute(0, which as u32, value))
    }

    fn with(prepare: impl FnOnce(&StandIn)) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = stand_in();
        if let Some(driver) = &driver {
            prepare(driver);
        }
        let context = Context::new(0).unwrap();
        let stream = Stream::new(&context).unwrap();
        Self { stream, context, driver, _one: one }
    }

    /// Returns the control of the stand-in, which the test requires.
    pub fn control(&self) -> &StandIn {
        self.driver.as_ref().expect("this test has asked `on_system`")
    }

    /// Returns the driver's handle of a stream, for the stand-in's control.
    pub fn number(stream: &Stream) -> u64 {
        stream.raw() as u64
    }

    /// Releases the context. Everything must have been freed, and no misuse may have occurred.
    pub fn finish(self) {
        let Self { stream, context, driver, _one } = self;
        stream.synchronize().unwrap();
        drop(stream);
        drop(context);
        if let Some(driver) = driver {
            driver.assert_clean();
        }
    }

    /// Drops a context that was reset. Everything else must have been freed, and no misuse may have occurred.
    pub fn finish_lost(self) {
        let Self { stream, context, driver, _one } = self;
        drop((stream, context));
        if let Some(driver) = driver {
            driver.assert_clean();
        }
    }

    /// Returns what is live besides the context and the stream.
    pub fn live(&self) -> Live {
        let live = self.control().live();
        Live { contexts: live.contexts - 1, streams: live.streams - 1, events: 0, ..live }
    }

    /// Writes bytes through the driver.
    pub fn upload(&self, address: NonZeroUsize, bytes: &[u8]) {
        let (to, stream) = (address.get() as u64, self.stream.raw());
        // SAFETY: the tests pass addresses of segments that they hold, and the stand-in notices wrong ones.
        let copied = self.context.bind(|| unsafe { result::memcpy_htod_async(to, bytes, stream) });
        copied.unwrap().unwrap();
        self.stream.synchronize().unwrap();
    }

    /// Reads bytes through the driver.
    pub fn download(&self, address: NonZeroUsize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let (from, stream) = (address.get() as u64, self.stream.raw());
        // SAFETY: as above.
        let copied = self.context.bind(|| unsafe { result::memcpy_dtoh_async(&mut bytes, from, stream) });
        copied.unwrap().unwrap();
        self.stream.synchronize().unwrap();
        bytes
    }
}

/// Releases a segment that the test no longer uses.
pub fn release<S: Source<Stream = Stream> + Send + Sync>(source: &S, segment: Segment, stream: &Stream) {
    // SAFETY: the tests release what they reserved, once.
    unsafe { source.release(segment, stream) }.unwrap();
}
