//! Regions: the ranges of memory that an allocator divides, and their capabilities.

mod capabilities;
mod error;
mod statics;

pub use capabilities::Capabilities;
pub use error::RegionError;
pub(crate) use statics::Pending;
pub use statics::{StaticFlag, StaticRegion};

use core::mem::{self, MaybeUninit};
use core::ptr::NonNull;

/// The number of regions that a heap can have, unless a parameter of its placement says otherwise.
pub const DEFAULT_REGIONS: usize = if usize::BITS > 32 { 8 } else { 4 };

/// A contiguous range of memory: start address and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first byte. It needs no alignment; bytes that do not fill a granule stay unused.
    pub start: NonNull<u8>,
    /// Size in bytes.
    pub size: usize,
    /// Whether every byte is known to be zero. If so, zeroed requests need not clear memory that was never allocated.
    pub zeroed: bool,
}

impl Region {
    /// Creates a region of `size` bytes from `start` on, with unknown contents. `start` is a pointer, a [`NonNull`], or
    /// an address as a `usize` (see [`Region::from_address`]).
    ///
    /// ```
    /// use allotment::{Heap, Region, lock::Unsync, Tlsf};
    /// static mut MEMORY: [u8; 4096] = [0; 4096];
    /// let heap = Heap::<Tlsf, Unsync>::empty();
    /// // SAFETY: nothing else uses the array.
    /// unsafe { heap.claim(Region::new(&raw mut MEMORY, 4096)) }?;
    /// # Ok::<(), allotment::RegionError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If `start` is null or 0. In a `const`, the program does not compile then.
    pub const fn new<A: Start>(start: A, size: usize) -> Self {
        let start: *mut u8 = if A::ADDRESS {
            // SAFETY: a `Start` with this constant is a `usize`.
            let address: usize = unsafe { mem::transmute_copy(&start) };
            address as *mut u8
        } else {
            // SAFETY: every other `Start` is a pointer to a sized type, or a `NonNull`.
            unsafe { mem::transmute_copy(&start) }
        };
        match NonNull::new(start) {
            Some(start) => Self { start, size, zeroed: false },
            None => panic!("a region cannot start at a null pointer"),
        }
    }

    /// Creates a region of `size` bytes from an address on, as datasheets and linker scripts state it.
    ///
    /// The region may be memory that other code has exposed at this address (with `as usize` or `pointer::expose_provenance`), or memory
    /// unknown to Rust.
    ///
    /// # Panics
    ///
    /// If the address is 0.
    pub const fn from_address(start: usize, size: usize) -> Self {
        Self::new(start, size)
    }

    /// Creates a region from memory that is borrowed forever, such as the result of `StaticCell::init`.
    ///
    /// ```
    /// use allotment::{Heap, Region, lock::Unsync, Tlsf};
    /// use core::mem::MaybeUninit;
    /// let memory = Box::leak(Box::new([MaybeUninit::uninit(); 4096]));
    /// let heap = Heap::<Tlsf, Unsync>::empty();
    /// // SAFETY: the reference is given away.
    /// unsafe { heap.claim(Region::from_slice(memory)) }?;
    /// # Ok::<(), allotment::RegionError>(())
    /// ```
    pub const fn from_slice(memory: &'static mut [MaybeUninit<u8>]) -> Self {
        Self::new(memory.as_mut_ptr(), memory.len())
    }

    /// Returns the end of the bytes that blocks may use. It excludes the last byte of the address space, which no Rust object can
    /// contain.
    pub(crate) fn end(&self) -> usize {
        self.start.addr().get().saturating_add(self.size)
    }

    /// Returns [`Region::end`] if the region does not wrap around the address space.
    pub(crate) fn checked_end(&self) -> Result<usize, RegionError> {
        match self.start.addr().get().overflowing_add(self.size) {
            (1.., true) => Err(RegionError::Overlap),
            _ => Ok(self.end()),
        }
    }

    /// Returns whether the regions share a byte.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.start.addr().get() < other.end() && other.start.addr().get() < self.end()
    }
}

impl From<&'static mut [MaybeUninit<u8>]> for Region {
    fn from(memory: &'static mut [MaybeUninit<u8>]) -> Self {
        Self::from_slice(memory)
    }
}

impl<const N: usize> From<&'static mut [MaybeUninit<u8>; N]> for Region {
    fn from(memory: &'static mut [MaybeUninit<u8>; N]) -> Self {
        Self::from_slice(memory)
    }
}

impl From<&'static mut [u8]> for Region {
    fn from(memory: &'static mut [u8]) -> Self {
        Self::new(memory.as_mut_ptr(), memory.len())
    }
}

impl<const N: usize> From<&'static mut [u8; N]> for Region {
    fn from(memory: &'static mut [u8; N]) -> Self {
        Self::from(memory.as_mut_slice())
    }
}

/// A start of a region, for [`Region::new`]: `*mut T` for any `T`, `NonNull<u8>`, or an address.
///
/// # Safety
///
/// A value must have the representation that [`Start::ADDRESS`] states, because [`Region::new`] reinterprets its bytes.
pub unsafe trait Start: Copy {
    /// True for an address (a `usize`), false for a pointer.
    const ADDRESS: bool = false;
}

// SAFETY: a pointer.
unsafe impl<T> Start for *mut T {}
// SAFETY: it has the representation of a pointer.
unsafe impl Start for NonNull<u8> {}
// SAFETY: an address.
unsafe impl Start for usize {
    const ADDRESS: bool = true;
}

#[cfg(feature = "defmt")]
impl defmt::Format for Region {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        defmt::write!(
            fmt,
            "Region {{ start: {=usize:#x}, size: {=usize}, zeroed: {=bool} }}",
            self.start.as_ptr() as usize,
            self.size,
            self.zeroed
        );
    }
}

/// A range of a heap's memory that is either free or in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Run {
    /// Address of the first byte.
    pub start: usize,
    /// Size in bytes.
    pub size: usize,
    /// Whether the range is one free block. Otherwise it is one block in use, or several adjacent blocks that the placement cannot tell
    /// apart.
    pub free: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_may_end_with_the_address_space() {
        let last = |size| Region::from_address(usize::MAX - 99, size);
        assert_eq!(
            [98, 99, 100].map(|size| last(size).checked_end()),
            [Ok(usize::MAX - 1), Ok(usize::MAX), Ok(usize::MAX)]
        );
        assert_eq!([101, usize::MAX].map(|size| last(size).checked_end()), [Err(RegionError::Overlap); 2]);
        assert_eq!(last(0).checked_end(), Ok(usize::MAX - 99));
        assert!(last(100).meets(&last(1)) && last(1).meets(&last(100)) && !last(0).meets(&last(0)));
        assert!(!last(100).meets(&Region::from_address(usize::MAX - 199, 100)));
    }
}
