//! Memory of growing sequences: the keys and values of a language model's attention.

use super::abi::{AccessDesc, AllocationProp};
use super::{Context, Error, Stream, library::call, source};
use crate::lock::Mutex;
use crate::pool::{Direction, SourceError, SourceErrorKind, Stream as _};
use crate::units::debug;
use cudarc::driver::sys::CUdeviceptr;
use std::sync::Arc;

/// Memory for many sequences that grow one step at a time, such as key-value caches. Each has addresses for its greatest length, so that
/// kernels see one array, but physical memory only for its current pages. Sequences with a common beginning share its pages: they all see
/// a kernel's writes there once the kernel has ended, and not before. Clones refer to the same memory.
///
/// ```text
///  Sequence   | page | page | page |        addresses reserved        |
///  its fork   |  the same   | page | page |                           |
/// ```
///
/// The idea of pages comes from vLLM (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
/// SOSP 2023); the use of the device's page table to order them, from vAttention (Prabhu et al., ASPLOS 2025). The cache keeps freed
/// pages for other sequences.
///
/// ```no_run
/// use allotment::gpu::{Context, Stream};
/// use allotment::gpu::sequences::KvCache;
///
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let cache = KvCache::new(&context, 1 << 30, 8 << 30)?; // at most 1 GiB each, 8 GiB together
/// let mut prompt = cache.sequence(&stream)?;
/// prompt.resize(100 << 20)?; // kernels write there in the order of `stream`
/// let answer = prompt.fork(100 << 20, &stream)?; // the same prompt, without a copy of whole pages
/// assert_eq!(answer.bytes(), prompt.bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KvCache(Arc<Shared>);

struct Shared {
    context: Context,
    /// Bytes of a page.
    page: usize,
    /// Bytes of addresses reserved for each sequence.
    room: usize,
    /// The most pages that may exist at a time.
    most: usize,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    /// Number of existing pages.
    count: usize,
    /// Handles of pages that no sequence uses.
    spare: Vec<u64>,
}

/// A page of physical memory, which the last sequence with this page returns to the cache.
struct Page {
    handle: u64,
    cache: Arc<Shared>,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.cache.pages.lock().spare.push(self.handle);
    }
}

impl Shared {
    /// Returns an unused page, or makes one.
    fn take(self: &Arc<Self>) -> Result<Arc<Page>, SourceError> {
        let mut pages = self.pages.lock();
        let handle = match pages.spare.pop() {
            Some(handle) => handle,
            None if pages.count >= self.most => {
                return Err(SourceError::new(SourceErrorKind::OutOfMemory, "the limit of the cache"));
            }
            None => {
                let prop = AllocationProp::on(self.context.ordinal(), false);
                let mut handle = 0;
                // SAFETY: all pointers are to values of these types or of the same layout.
                unsafe { call!(cuMemCreate(&mut handle, self.page, (&raw const prop).cast(), 0))? };
                pages.count += 1;
                handle
            }
        };
        Ok(Arc::new(Page { handle, cache: self.clone() }))
    }
}

impl KvCache {
    /// Makes a cache of sequences of up to `longest` bytes each, which together occupy up to `most` bytes of the device. Both numbers
    /// round up to pages.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no virtual memory management, or the error of the driver.
    pub fn new(context: &Context, longest: usize, most: usize) -> Result<Self, Error> {
        let page = source::granularity(context, false)?;
        let room = longest.max(1).checked_next_multiple_of(page);
        let room = room.ok_or(Error::Unsupported("sequences of this length"))?;
        let (context, most) = (context.clone(), most.div_ceil(page));
        Ok(Self(Arc::new(Shared { context, page, room, most, pages: Mutex::default() })))
    }

    /// Starts an empty sequence whose work runs on `stream`.
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::OutOfMemory`] if there are no addresses left, or another error of the driver.
    pub fn sequence(&self, stream: &Stream) -> Result<Sequence, SourceError> {
        let _bound = self.0.context.enter_relaxed()?;
        let mut address = 0;
        // SAFETY: the output has the type that the function writes; any address will do.
        unsafe { call!(cuMemAddressReserve(&mut address, self.0.room, self.0.page, 0, 0))? };
        Ok(Sequence { cache: self.0.clone(), address, pages: Vec::new(), bytes: 0, stream: stream.clone() })
    }

    /// Returns the total size in bytes of the cache's pages, unused ones included.
    pub fn reserved(&self) -> usize {
        self.0.pages.lock().count * self.0.page
    }

    /// Releases unused pages to the device, and returns their total size in bytes.
    ///
    /// # Errors
    ///
    /// The error of the driver; the cache loses the pages that it failed to release.
    pub fn trim(&self) -> Result<usize, SourceError> {
        let _bound = self.0.context.enter_relaxed()?;
        let mut pages = self.0.pages.lock();
        let spare = core::mem::take(&mut pages.spare);
        pages.count -= spare.len();
        for &handle in &spare {
            // SAFETY: `take` made the page, and it is mapped nowhere.
            unsafe { call!(cuMemRelease(handle))? };
        }
        Ok(spare.len() * self.0.page)
    }
}

debug!([] KvCache, |self| page: self.0.page, reserved: self.reserved());

impl Drop for Shared {
    /// Runs when no sequence is left.
    fn drop(&mut self) {
        // A drop cannot report an error.
        let Ok(_bound) = self.context.enter_relaxed() else { return };
        for handle in core::mem::take(&mut self.pages.get_mut().spare) {
            // SAFETY: `take` made the page, and it is mapped nowhere.
            let _ = unsafe { call!(cuMemRelease(handle)) };
        }
    }
}

/// One sequence of a [`KvCache`]: an array at a fixed address that grows and shrinks at its end. Dropping it waits for the work on its
/// stream and returns its pages to the cache.
pub struct Sequence {
    cache: Arc<Shared>,
    address: CUdeviceptr,
    pages: Vec<Arc<Page>>,
    bytes: usize,
    stream: Stream,
}

impl Sequence {
    /// Returns the device address of the first byte, which never changes.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lengthens or shortens the sequence to `bytes` bytes; new bytes are unspecified. Makes no driver call while the number of pages
    /// stays the same; otherwise, one or two calls for each new page and one for all of them, or one call for all pages that it frees.
    /// Waits only when it frees pages: other sequences may use them once the work on the stream is done.
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::OutOfMemory`] if the device or the cache's limit has no page left, or if `bytes` exceeds the greatest length;
    /// or another error of the driver or of the work. If it fails to grow, the sequence is unchanged.
    pub fn resize(&mut self, bytes: usize) -> Result<(), SourceError> {
        if bytes < self.bytes { self.truncate(bytes) } else { self.grow(bytes) }
    }

    fn grow(&mut self, bytes: usize) -> Result<(), SourceError> {
        if bytes > self.cache.room {
            return Err(SourceError::new(SourceErrorKind::OutOfMemory, "the greatest length of a sequence"));
        }
        let count = bytes.div_ceil(self.cache.page);
        if count > self.pages.len() {
            let _bound = self.cache.context.clone().enter_relaxed()?;
            let new: Result<Vec<_>, _> = (self.pages.len()..count).map(|_| self.cache.take()).collect();
            self.map(new?)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Maps pages after the existing ones; after an error, none of them. The context must be current.
    fn map(&mut self, new: Vec<Arc<Page>>) -> Result<(), SourceError> {
        let page = self.cache.page;
        let at = |number: usize| self.address + (number * page) as u64;
        let before = self.pages.len();
        let mut mapped = before;
        let access = AccessDesc::full(self.cache.context.ordinal());
        let made = new.iter().try_for_each(|one| {
            // SAFETY: the addresses are reserved and free, and the page has this length.
            unsafe { call!(cuMemMap(at(mapped), page, 0, one.handle, 0))? };
            mapped += 1;
            Ok(())
        });
        // SAFETY: these pages are mapped, and the pointer is to a value of the same layout.
        let made = made.and_then(|()| unsafe {
            call!(cuMemSetAccess(at(before), (mapped - before) * page, (&raw const access).cast(), 1))
        });
        if made.is_err() {
            if mapped > before {
                // SAFETY: mapped above and not used yet. A second error would say less than the first.
                let _ = unsafe { call!(cuMemUnmap(at(before), (mapped - before) * page)) };
            }
            return made;
        }
        self.pages.extend(new);
        Ok(())
    }

    fn truncate(&mut self, bytes: usize) -> Result<(), SourceError> {
        self.bytes = bytes;
        let page = self.cache.page;
        let count = self.bytes.div_ceil(page);
        if count < self.pages.len() {
            self.stream.synchronize()?;
            let _bound = self.cache.context.clone().enter_relaxed()?;
            let at = self.address + (count * page) as u64;
            // SAFETY: these pages are mapped there, and all work is done.
            unsafe { call!(cuMemUnmap(at, (self.pages.len() - count) * page))? };
            self.pages.truncate(count);
        }
        Ok(())
    }

    /// Makes a sequence for work on `stream` that begins with the first `bytes` bytes of this one: it shares whole pages and copies the
    /// rest. Does not wait: `stream` waits on the device for the work on this sequence so far.
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::Invalid`] if the sequence is shorter, or the errors of [`KvCache::sequence`] and
    /// [`Sequence::resize`].
    pub fn fork(&self, bytes: usize, stream: &Stream) -> Result<Self, SourceError> {
        if bytes > self.bytes {
            return Err(SourceError::new(SourceErrorKind::Invalid, "a longer beginning"));
        }
        let page = self.cache.page;
        let whole = bytes / page;
        let mut fork = KvCache(self.cache.clone()).sequence(stream)?;
        if stream.id() != self.stream.id() {
            stream.wait(&self.stream.record()?)?;
        }
        if whole > 0 {
            let _bound = self.cache.context.enter_relaxed()?;
            fork.map(self.pages[..whole].to_vec())?;
        }
        fork.grow(bytes)?;
        if bytes > whole * page {
            let [from, to] = [self.address, fork.address].map(|start| start as usize + whole * page);
            // SAFETY: both ranges are mapped, and the stream is ordered after the work on the first.
            unsafe { source::copy(Direction::OnDevice, from, to, bytes - whole * page, stream)? };
        }
        if stream.id() != self.stream.id() {
            // Later writes must not overtake the copy.
            self.stream.wait(&stream.record()?)?;
        }
        Ok(fork)
    }
}

debug!([] Sequence, |self| bytes: self.bytes, pages: self.pages.len());

impl Drop for Sequence {
    /// A drop cannot report an error. Pages that may still be in use leak.
    fn drop(&mut self) {
        if self.truncate(0).is_err() {
            core::mem::forget(core::mem::take(&mut self.pages));
            return;
        }
        let Ok(_bound) = self.cache.context.enter_relaxed() else { return };
        // SAFETY: `KvCache::sequence` reserved this many bytes, and nothing is mapped there now.
        let _ = unsafe { call!(cuMemAddressFree(self.address, self.cache.room)) };
    }
}
