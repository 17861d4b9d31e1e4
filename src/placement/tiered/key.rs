//! The key of a heap, which encodes the links and lengths of kept blocks.

use super::classes::STEP;

/// The number that is added to the links of one heap's quick lists. On 64-bit targets its high 16 bits are set, and the next one is
/// clear.
///
/// No address of a 64-bit host has one of these bits set, so the high 16 bits of a free block's link are all set: no user data is likely
/// to look like that, which is how a double free is detected. The other bits differ from heap to heap, so links left by an earlier heap
/// in the same memory lead nowhere, and an attacker who can write to a freed block cannot choose the address allocated next. With `std`
/// on Linux they are random; elsewhere they depend on addresses only.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(super) usize);

impl Key {
    /// The key of a heap without memory.
    pub(super) const NONE: Self = Self(0);

    /// The random bits.
    const RANDOM: usize = if usize::BITS == 64 { usize::MAX >> 17 } else { usize::MAX };

    /// The bits that all keys have set.
    ///
    /// The low ones make every multiple of 8 that a program writes to a freed block, 0 among them, an odd address.
    const TAG: usize = if usize::BITS == 64 { !(usize::MAX >> 16) } else { 0 } | (STEP - 1);

    /// Creates the key of a heap whose first region starts at `start`.
    #[cold]
    pub(super) fn new(start: *mut u8) -> Self {
        let here = 0_u8;
        let seed = start.addr() ^ (&raw const here).addr().rotate_left(usize::BITS / 2) ^ random() ^ count();
        // The finalizer of MurmurHash3 (Appleby), which spreads each bit over all others.
        let mut mixed = seed as u64;
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            mixed = (mixed ^ mixed >> 33).wrapping_mul(factor);
        }
        Self((mixed ^ mixed >> 33) as usize & Self::RANDOM | Self::TAG)
    }

    /// Encodes an address or a length.
    #[inline(always)]
    pub(super) fn encode(self, number: usize) -> usize {
        number.wrapping_add(self.0)
    }

    /// Decodes a result of [`Self::encode`].
    #[inline(always)]
    pub(super) fn decode(self, code: usize) -> usize {
        code.wrapping_sub(self.0)
    }
}

/// Returns random bytes that the system chose for this process, if they are available without a system call, else 0.
fn random() -> usize {
    #[cfg(all(feature = "std", target_os = "linux", not(miri)))]
    {
        // SAFETY: the value is 0 or the address of 16 bytes that the kernel keeps in the process.
        unsafe {
            let bytes = libc::getauxval(libc::AT_RANDOM) as *const usize;
            if bytes.is_null() { 0 } else { bytes.read_unaligned() }
        }
    }
    #[cfg(not(all(feature = "std", target_os = "linux", not(miri))))]
    0
}

/// Returns a different number each time, on targets with atomic operations.
fn count() -> usize {
    #[cfg(target_has_atomic = "ptr")]
    {
        use core::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        COUNT.fetch_add(1, Ordering::Relaxed)
    }
    #[cfg(not(target_has_atomic = "ptr"))]
    0
}

#[cfg(all(test, feature = "std", target_os = "linux", not(miri)))]
mod tests {
    #[test]
    fn the_system_tells_a_number() {
        assert_ne!(super::random(), 0);
    }
}
