//! A device's memory, from `cuMemAlloc`.

use super::{ALIGNMENT, PAGE, check_size, segment};
use crate::gpu::{Context, Stream, library::call};
use crate::pool::{Capacity, Segment, Source, SourceError, Stream as _};
use crate::region::Capabilities;

/// A device's memory from `cuMemAlloc`, in segments of whole 2 MiB pages. Releasing a segment waits for the stream.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    name: String,
}

impl DeviceMemory {
    /// Makes a source of the memory of a context's device.
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), name: format!("device {}", context.device().ordinal) }
    }
}

// SAFETY: the driver allocates each range once, aligned; the range stays valid until `cuMemFree`.
unsafe impl Source for DeviceMemory {
    describe!(|self| &self.name, cpu_visible: false, Capabilities::DEVICE, granularity: PAGE, alignment: ALIGNMENT, copies: OnDevice, of: self.context);

    fn capacity(&self) -> Result<Capacity, SourceError> {
        self.context.capacity()
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemAlloc", bytes, PAGE)?;
        let _bound = self.context.enter_relaxed()?;
        let mut address = 0;
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuMemAlloc_v2(&mut address, bytes))? };
        segment("cuMemAlloc", address, bytes)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: `reserve` allocated the segment, and all work on it is done.
        unsafe { call!(cuMemFree_v2(segment.address.get() as u64)) }
    }
}
