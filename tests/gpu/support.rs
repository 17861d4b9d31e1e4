//! A device for one test.

use allotment::gpu::cudarc::driver::result;
use allotment::gpu::{Context, Stream};
use allotment::pool::{Segment, Source, Stream as _};
use allotment_stand_in::{Exclusive, Live, StandIn};
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the tests run on the system's driver: if `ALLOTMENT_CUDA_DRIVER` says so, or said so when they were built
/// for a bundle.
pub fn on_system() -> bool {
    let driver = std::env::var("ALLOTMENT_CUDA_DRIVER");
    driver.as_deref().ok().or(option_env!("ALLOTMENT_BUNDLED_CUDA_DRIVER")) == Some("system")
}

/// The stand-in, fresh and initialised; `None` on the system's driver.
pub fn stand_in() -> Option<Exclusive> {
    if on_system() {
        return None;
    }
    let driver = StandIn::exclusive().unwrap_or_else(|error| panic!("{error}"));
    result::init().unwrap();
    Some(driver)
}

/// One test at a time on a real device too: what is pinned is counted for the process.
static ONE: Mutex<()> = Mutex::new(());

/// A device with a stream, for one test at a time; nothing may be left of it at the end.
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

    /// A device of the stand-in's with so much memory.
    pub fn with_memory(bytes: u64) -> Self {
        Self::with(|driver| driver.set_devices(1, bytes))
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

    /// The control of the stand-in, on which the test must run.
    pub fn control(&self) -> &StandIn {
        self.driver.as_ref().expect("this test has asked `on_system`")
    }

    /// The driver's number of a stream, for the stand-in's control.
    pub fn number(stream: &Stream) -> u64 {
        stream.raw() as u64
    }

    /// Ends the context: nothing is left, and nothing was done wrong.
    pub fn finish(self) {
        let Self { stream, context, driver, _one } = self;
        stream.synchronize().unwrap();
        drop(stream);
        drop(context);
        if let Some(driver) = driver {
            driver.assert_clean();
        }
    }

    /// What lives besides the context and the stream.
    pub fn live(&self) -> Live {
        let live = self.control().live();
        Live { contexts: live.contexts - 1, streams: live.streams - 1, events: 0, ..live }
    }

    /// Writes bytes through the driver.
    pub fn upload(&self, address: NonZeroUsize, bytes: &[u8]) {
        self.context.bind().unwrap();
        // SAFETY: the tests give addresses of segments that they hold; a wrong one is noticed by the stand-in.
        unsafe { result::memcpy_htod_async(address.get() as u64, bytes, self.stream.raw()) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    /// Reads bytes through the driver.
    pub fn download(&self, address: NonZeroUsize, length: usize) -> Vec<u8> {
        self.context.bind().unwrap();
        let mut bytes = vec![0; length];
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(&mut bytes, address.get() as u64, self.stream.raw()) }.unwrap();
        self.stream.synchronize().unwrap();
        bytes
    }
}

/// Releases a segment that the test does not use any more.
pub fn release<S: Source<Stream = Stream>>(source: &S, segment: Segment, stream: &Stream) {
    // SAFETY: the tests release what they reserved, once.
    unsafe { source.release(segment, stream) }.unwrap();
}
