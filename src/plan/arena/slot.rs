//! Handles of planned buffers, and the types that buffers can hold.

use super::Planned;
use crate::units::each;
use core::marker::PhantomData;

/// Data for which any bytes are a valid value, so that one type after another can use the memory.
///
/// # Safety
///
/// The type must have no padding, every bit pattern must be a valid value of it, and it must own nothing.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: the type is a number, for which every bit pattern is valid.
        unsafe impl Plain for $type {}
    )*};
}
plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: an array is plain values side by side.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A handle to buffer `I` of the plan `P`, which holds a `T`.
pub struct Slot<P, T, const I: usize>(PhantomData<fn() -> (P, T)>);

impl<P, T, const I: usize> Clone for Slot<P, T, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, T, const I: usize> Copy for Slot<P, T, I> {}

impl<P: Planned, T: Plain, const I: usize> Slot<P, T, I> {
    /// The offset, checked at compile time.
    const OFFSET: usize = {
        let (buffer, offset) = (&P::PLACED.buffers()[I], P::PLACED.offsets()[I]);
        assert!(buffer.size >= size_of::<T>() as u64, "the type is larger than the buffer");
        assert!(offset % align_of::<T>() as u64 == 0, "the buffer is not aligned for its type");
        assert!(align_of::<P::Memory>() >= align_of::<T>(), "the memory is not aligned for the type");
        assert!(P::PLACED.peak() <= isize::MAX as u64, "the plan is larger than the address space");
        offset as usize
    };

    /// Creates the handle.
    #[allow(clippy::new_without_default, reason = "`arena!` makes the constants that one uses")]
    pub const fn new() -> Self {
        const { _ = Self::OFFSET }
        Self(PhantomData)
    }

    /// Returns the index of the buffer in the plan.
    pub const fn index(self) -> usize {
        I
    }

    /// Returns the offset of the buffer in the arena, in bytes.
    pub const fn offset(self) -> usize {
        Self::OFFSET
    }

    /// Returns whether the buffer and `other` have the same offset.
    pub const fn shares_place_with<U: Plain, const J: usize>(self, _other: Slot<P, U, J>) -> bool {
        Self::OFFSET == Slot::<P, U, J>::OFFSET
    }
}

/// A single handle, not a tuple.
///
/// # Safety
///
/// The buffer must lie in the `SIZE` bytes from `OFFSET` on.
#[doc(hidden)] // Programs need not name it.
pub unsafe trait Place<P: Planned>: Slots<P> {
    /// Offset of the buffer in the arena, in bytes.
    const OFFSET: usize;
    /// Size in bytes of the buffer's type.
    const SIZE: usize;
}

// SAFETY: the constants are those of the handle.
unsafe impl<P: Planned, T: Plain, const I: usize> Place<P> for Slot<P, T, I> {
    const OFFSET: usize = Self::OFFSET;
    const SIZE: usize = size_of::<T>();
}

/// One handle, or a tuple of up to sixteen.
///
/// # Safety
///
/// `INDICES` must be the indices of all handles, `DISJOINT` must keep its default, and `borrow` must return references to these buffers
/// only.
pub unsafe trait Slots<P: Planned>: Copy {
    /// References to the buffers.
    type Borrowed<'s>;
    /// The indices of the buffers.
    const INDICES: &'static [usize];
    /// A check that does not compile if two of the buffers overlap.
    const DISJOINT: () = disjoint::<P>(Self::INDICES);

    /// Borrows the buffers in an arena.
    ///
    /// # Safety
    ///
    /// `base` must be the start of the arena of plan `P`, the buffers must not overlap, and nothing else may use
    /// them while the references exist.
    unsafe fn borrow<'s>(base: *mut u8) -> Self::Borrowed<'s>;
}

const fn disjoint<P: Planned>(indices: &[usize]) {
    each!(a, 0..indices.len(), {
        each!(b, 0..a, {
            let (i, j) = (indices[a], indices[b]);
            assert!(i != j, "a buffer is requested twice");
            let (at_i, at_j) = (P::PLACED.offsets()[i], P::PLACED.offsets()[j]);
            let (size_i, size_j) = (P::PLACED.buffers()[i].size, P::PLACED.buffers()[j].size);
            assert!(
                at_i + size_i <= at_j || at_j + size_j <= at_i,
                "buffers that share memory are requested at once: use `in_place`, or other steps"
            );
        });
    });
}

// SAFETY: the index is that of the single handle.
unsafe impl<P: Planned, T: Plain, const I: usize> Slots<P> for Slot<P, T, I> {
    type Borrowed<'s> = &'s mut T;
    const INDICES: &'static [usize] = &[I];

    unsafe fn borrow<'s>(base: *mut u8) -> &'s mut T {
        // SAFETY: the offset is aligned for the type and the end lies within the arena, because the plan is valid;
        // the arena's bytes are initialised and plain; the caller guarantees that nothing else uses them.
        unsafe { &mut *base.add(Self::OFFSET).cast::<T>() }
    }
}

macro_rules! tuples {
    ($($($type:ident $index:ident)+;)*) => {$(
        // SAFETY: the indices are those of the tuple's handles.
        unsafe impl<P: Planned, $($type: Plain, const $index: usize),+> Slots<P>
            for ($(Slot<P, $type, $index>,)+)
        {
            type Borrowed<'s> = ($(&'s mut $type,)+);
            const INDICES: &'static [usize] = &[$($index),+];

            unsafe fn borrow<'s>(base: *mut u8) -> Self::Borrowed<'s> {
                // SAFETY: the caller's contract, which includes that the buffers do not overlap.
                unsafe { ($(Slot::<P, $type, $index>::borrow(base),)+) }
            }
        }
    )*};
}
tuples! {
    A I;
    A I B J;
    A I B J C K;
    A I B J C K D L;
    A I B J C K D L E M;
    A I B J C K D L E M F N;
    A I B J C K D L E M F N G O;
    A I B J C K D L E M F N G O H Q;
    A I B J C K D L E M F N G O H Q A1 I1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1 C1 K1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1 C1 K1 D1 L1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1 C1 K1 D1 L1 E1 M1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1 C1 K1 D1 L1 E1 M1 F1 N1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1 C1 K1 D1 L1 E1 M1 F1 N1 G1 O1;
    A I B J C K D L E M F N G O H Q A1 I1 B1 J1 C1 K1 D1 L1 E1 M1 F1 N1 G1 O1 H1 Q1;
}
