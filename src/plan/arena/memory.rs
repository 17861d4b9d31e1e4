//! Memory with the size and alignment of a plan.

/// `SIZE` bytes, aligned to `ALIGN`, a power of two up to 4096.
#[doc(hidden)] // `arena!` names it.
#[repr(C)]
#[allow(private_bounds)] // The alignments are a closed set.
pub struct ArenaMemory<const SIZE: usize, const ALIGN: usize>
where
    Align<ALIGN>: Alignment,
{
    aligned: [<Align<ALIGN> as Alignment>::Unit; 0],
    bytes: [u8; SIZE],
}

/// An alignment as a type.
pub(crate) struct Align<const N: usize>;

/// An alignment that memory can have.
pub(crate) trait Alignment {
    /// A type with this alignment.
    type Unit: Copy;
}

macro_rules! alignments {
    ($($align:literal)*) => {$(
        const _: () = {
            /// A type with that alignment.
            #[derive(Clone, Copy)]
            #[repr(align($align))]
            pub(crate) struct Unit;

            impl Alignment for Align<$align> {
                type Unit = Unit;
            }
        };
    )*};
}
alignments!(1 2 4 8 16 32 64 128 256 512 1024 2048 4096);

/// Memory for a static arena.
///
/// # Safety
///
/// The first `SIZE` bytes of `ZERO` must exist and be zero, and any bytes may be written there to a value of the type.
#[doc(hidden)] // Only the memory of `arena!` implements it.
pub unsafe trait Storage: Sized + 'static {
    /// A value of all zero bytes.
    const ZERO: Self;

    /// Number of bytes, from a value's start, that are zero in `ZERO` and may be written and read. The rest is padding.
    const SIZE: usize;
}

// SAFETY: the type consists of bytes; an empty array of units provides the alignment.
#[allow(private_bounds)]
unsafe impl<const SIZE: usize, const ALIGN: usize> Storage for ArenaMemory<SIZE, ALIGN>
where
    Align<ALIGN>: Alignment + 'static,
{
    const ZERO: Self = Self { aligned: [], bytes: [0; SIZE] };
    const SIZE: usize = SIZE;
}
