//! The capabilities of a piece of memory.

#![forbid(unsafe_code)]

bitflags::bitflags! {
    /// The properties of a piece of memory, as a set of flags. The lower half of the bits is named here or reserved; the upper half
    /// belongs to the program ([`Capabilities::user`]).
    ///
    /// ```
    /// use allotment::region::Capabilities;
    /// const RADIO: Capabilities = Capabilities::user(0); // the radio's controller reaches it
    /// const NEEDS: Capabilities = Capabilities::DMA.union(RADIO);
    /// assert!(!Capabilities::DMA.contains(NEEDS) && NEEDS.contains(RADIO));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// Memory on the chip.
        const INTERNAL = 1;
        /// Memory outside the chip, behind a bus.
        const EXTERNAL = 1 << 1;
        /// DMA controllers can access it.
        const DMA = 1 << 2;
        /// As fast as the core: tightly coupled, or always in the cache.
        const FAST = 1 << 3;
        /// Keeps its contents in the sleep mode that the program uses.
        const RETAINED = 1 << 4;
        /// Code can run from it.
        const EXECUTABLE = 1 << 5;
        /// A device's own memory, which the core may not be able to read. Only requests that ask for this flag get such
        /// memory.
        const DEVICE = 1 << 6;
        /// Never moved or paged out.
        const PINNED = 1 << 7;
        /// Atomic instructions work on it, compare-and-swap included. On some chips they fail, or are not atomic, in external RAM. Set
        /// this flag on all other zones to keep collections without a stated requirement out of it.
        const ATOMIC = 1 << 8;
        // Flags of the program.
        const _ = !0;
    }
}

impl Capabilities {
    /// Returns user flag number `n`, from 0 to 15. A larger number panics; in a `const`, the program does not compile.
    pub const fn user(n: u32) -> Self {
        assert!(n < 16, "there are 16 capabilities of the user's own, from 0 to 15");
        Self::from_bits_retain(1 << (16 + n))
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Capabilities {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        defmt::write!(fmt, "Capabilities({=u32:#010x})", self.bits());
    }
}
