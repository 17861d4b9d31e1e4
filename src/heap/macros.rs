//! The [`heap!`](crate::heap!) macro, which needs no initialisation call.

#![forbid(unsafe_code)]

/// [`heap!`](crate::heap!) puts the whole value into `.data`, so every placement for chips must be small.
#[cfg(all(target_os = "none", target_pointer_width = "32"))]
const _: () = {
    use crate::lock::Unsync;
    use crate::placement::MicroTlsf;
    use crate::{BestFit, Buddy, Bump, FirstFit, Heap, Slab, Tlsf, Tlsf16};
    assert!(size_of::<Heap<MicroTlsf, Unsync>>() < 300 && size_of::<Heap<Tlsf, Unsync>>() < 300);
    assert!(size_of::<Heap<Tlsf16, Unsync>>() < 300 && size_of::<Heap<BestFit, Unsync>>() < 300);
    assert!(size_of::<Heap<FirstFit, Unsync>>() < 300 && size_of::<Heap<Buddy, Unsync>>() < 300);
    assert!(size_of::<Heap<Slab, Unsync>>() < 300 && size_of::<Heap<Bump, Unsync>>() < 300);
};

/// Creates a heap with static memory: `static HEAP: Heap = heap!(32 * 1024);`
///
/// The argument is its size in bytes. The expression is a [`Heap`](crate::Heap) with the placement, lock and
/// statistics that the static's type names. Its memory lies in `.bss`; there is no initialisation call and no unsafe
/// code to write. A size that is larger than the placement can index does not compile.
///
/// ```
/// use allotment::{FirstFit, Heap, heap, lock::Spin};
///
/// static FRAMES: Heap<FirstFit, Spin> = heap!(64 * 1024);
/// let frame = FRAMES.try_allocate(core::alloc::Layout::new::<[u8; 1500]>())?;
/// assert_eq!(FRAMES.used(), 1504);
/// # Ok::<(), allotment::OutOfMemory>(())
/// ```
///
/// The memory belongs to one heap. If the program evaluates the expression several times (in a function, or through a `const`), the first
/// heap that it uses gets the memory, and the others stay empty.
///
/// ```compile_fail
/// use allotment::{Tlsf16, Heap, heap, lock::Spin};
/// static TOO_LARGE: Heap<Tlsf16, Spin> = heap!(1024 * 1024);
/// ```
///
/// More than 1 GiB does not compile either, because it could not be linked. Get that much memory from the system when the program starts,
/// and add it to a [`Heap::empty`](crate::Heap::empty) with [`Heap::claim`](crate::Heap::claim).
///
/// ```compile_fail
/// use allotment::{Heap, heap};
/// static TOO_LARGE: Heap = heap!(4 << 30);
/// ```
///
/// # Where the memory lies
///
/// `align = 32` aligns the memory to that many bytes, a power of two. `section = ".ccmram"` places it in that section of the linker
/// script, such as a faster RAM, a RAM that DMA reaches, or a RAM on an external bus. Start-up code does not initialise most such
/// sections (`NOLOAD`), so the heap does not rely on their contents. `#[link_section]` on the static itself would move the heap's own 88
/// bytes, and leave its memory in `.bss`.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use allotment::{Heap, heap};
///
/// static FAST: Heap = heap!(8 * 1024, section = ".ccmram", align = 32);
/// static DMA: Heap = heap!(8 * 1024, align = 64);
/// assert!(FAST.free() > 7 * 1024 && DMA.free() > 7 * 1024);
/// # }
/// ```
///
/// Without an argument, the macro creates the heap of the process, which grows and shrinks (feature `std`): `static HEAP: Growing =
/// heap!();`, with [`Growing`](https://docs.rs/allotment/latest/allotment/os/struct.Growing.html).
///
/// # In firmware
///
/// The heap itself holds the address of its memory, so it lies in `.data`, and takes as much flash as RAM: 88 bytes for `Heap` on a
/// Cortex-M, as much for `Heap<Tlsf>`, plus the size of any [observers](crate::Observed) around it. To keep a large heap value out of
/// flash, start with [`Heap::empty`](crate::Heap::empty), which is all zero and lies in `.bss`, and [claim static
/// memory](crate::Heap::claim_static) when the program starts. `FixedPool`, `TinyHeap` and every other type that can be a static start
/// out as zeros.
///
/// The default lock on targets without an operating system is [`CriticalSection`](crate::lock::CriticalSection), so the program must link
/// an implementation of critical sections. If the linker reports that `_critical_section_1_0_acquire` is missing, add the crate for the
/// chip, and the line `use ... as _;` to `main.rs` if nothing else names the crate:
///
/// * Cortex-M: `cargo add cortex-m --features critical-section-single-core`, `use cortex_m as _;`
/// * RISC-V: `cargo add riscv --features critical-section-single-hart`, `use riscv as _;`
/// * ESP32: nothing, `esp-hal` includes it.
/// * RP2040 (two cores): `cargo add rp2040-hal --features critical-section-impl`
/// * With the standard library: `cargo add critical-section --features std`, only if a heap names that lock.
#[macro_export]
macro_rules! heap {
    () => {
        $crate::__growing!()
    };
    ($size:expr) => {{
        // A macro's items are not hygienic: `$size` can refer to this name, so it must be a name that no program uses.
        static __ALLOTMENT_MEMORY: $crate::region::StaticRegion<{ $size }> =
            $crate::region::StaticRegion::new();
        $crate::Heap::with_static(&__ALLOTMENT_MEMORY, None)
    }};
    ($size:expr, align = $align:literal $(,)?) => {{
        #[repr(C, align($align))]
        struct AllotmentMemory($crate::region::StaticRegion<{ $size }>);
        static __ALLOTMENT_MEMORY: AllotmentMemory = AllotmentMemory($crate::region::StaticRegion::new());
        $crate::Heap::with_static(&__ALLOTMENT_MEMORY.0, None)
    }};
    ($size:expr, section = $section:literal $(, align = $align:literal)? $(,)?) => {{
        #[repr(C $(, align($align))?)]
        struct AllotmentMemory($crate::region::StaticRegion<{ $size }>);
        #[unsafe(link_section = $section)]
        static __ALLOTMENT_MEMORY: AllotmentMemory = AllotmentMemory($crate::region::StaticRegion::new());
        static __ALLOTMENT_FLAG: $crate::region::StaticFlag = $crate::region::StaticFlag::DIRTY;
        $crate::Heap::with_static(&__ALLOTMENT_MEMORY.0, Some(&__ALLOTMENT_FLAG))
    }};
}
