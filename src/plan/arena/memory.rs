//! Memory of a size and an alignment that the plan says.

/// `SIZE` bytes, aligned to `ALIGN`, a power of two up to 4096.
#[repr(C)]
pub struct Memory<const SIZE: usize, const ALIGN: usize>
where
    Align<ALIGN>: Alignment,
{
    aligned: [<Align<ALIGN> as Alignment>::Unit; 0],
    bytes: [u8; SIZE],
}

/// Stands for an alignment.
pub struct Align<const N: usize>;

/// Alignments that memory can have.
pub trait Alignment {
    /// A type of that alignment.
    type Unit: Copy;
}

macro_rules! alignments {
    ($($align:literal)*) => {$(
        const _: () = {
            /// A type of that alignment.
            #[derive(Clone, Copy)]
            #[repr(align($align))]
            pub struct Unit;

            impl Alignment for Align<$align> {
                type Unit = Unit;
            }
        };
    )*};
}
alignments!(1 2 4 8 16 32 64 128 256 512 1024 2048 4096);

/// Memory that can be static.
///
/// # Safety
///
/// `ZERO` is all zero and aligned to `ALIGN`; any bytes may be written to a value.
pub unsafe trait Storage: Sized + 'static {
    /// All zero.
    const ZERO: Self;
}

// SAFETY: bytes only; an array of no units brings the alignment.
unsafe impl<const SIZE: usize, const ALIGN: usize> Storage for Memory<SIZE, ALIGN>
where
    Align<ALIGN>: Alignment + 'static,
{
    const ZERO: Self = Self { aligned: [], bytes: [0; SIZE] };
}
