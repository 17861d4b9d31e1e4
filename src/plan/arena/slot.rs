//! Names of buffers, and what they hold.

use super::Planned;
use core::marker::PhantomData;

/// Data of which any bytes are a value, so that memory can be used by one type after another.
///
/// # Safety
///
/// The type has no padding, every pattern of bits is a value of it, and it owns nothing.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: a number.
        unsafe impl Plain for $type {}
    )*};
}
plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: plain values side by side.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The name of buffer `I` of the plan `P`, which holds a `T`.
pub struct Slot<P, T, const I: usize>(PhantomData<fn() -> (P, T)>);

impl<P, T, const I: usize> Clone for Slot<P, T, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, T, const I: usize> Copy for Slot<P, T, I> {}

impl<P: Planned, T: Plain, const I: usize> Slot<P, T, I> {
    /// Where it lies, checked when it is compiled.
    const OFFSET: usize = {
        let (buffer, offset) = (&P::PLACED.buffers()[I], P::PLACED.offsets()[I]);
        assert!(buffer.size >= size_of::<T>() as u64, "the type is larger than the buffer");
        assert!(offset % align_of::<T>() as u64 == 0, "the buffer is not aligned for its type");
        assert!(align_of::<P::Memory>() >= align_of::<T>(), "the memory is not aligned for the type");
        assert!(P::PLACED.peak() <= isize::MAX as u64, "the plan is larger than the address space");
        offset as usize
    };

    /// The name.
    #[allow(clippy::new_without_default, reason = "`arena!` makes the constants that one uses")]
    pub const fn new() -> Self {
        const { _ = Self::OFFSET }
        Self(PhantomData)
    }

    /// Number of the buffer in the plan.
    pub const fn index(self) -> usize {
        I
    }

    /// Offset of the buffer in the arena, in bytes.
    pub const fn offset(self) -> usize {
        Self::OFFSET
    }

    /// Whether the buffer lies where `other` does.
    pub const fn shares_place_with<U: Plain, const J: usize>(self, _other: Slot<P, U, J>) -> bool {
        Self::OFFSET == Slot::<P, U, J>::OFFSET
    }
}

/// One name.
///
/// # Safety
///
/// The buffer lies in the `SIZE` bytes from `OFFSET` on.
pub unsafe trait Place<P: Planned>: Slots<P> {
    /// Offset of the buffer in the arena, in bytes.
    const OFFSET: usize;
    /// Bytes of the type that it holds.
    const SIZE: usize;
}

// SAFETY: the constants are those of the name.
unsafe impl<P: Planned, T: Plain, const I: usize> Place<P> for Slot<P, T, I> {
    const OFFSET: usize = Self::OFFSET;
    const SIZE: usize = size_of::<T>();
}

/// One name or a tuple of up to eight.
///
/// # Safety
///
/// `INDICES` are the indices of all the names, `DISJOINT` is left as it is, and `borrow` gives out the memory of
/// these and of nothing else.
pub unsafe trait Slots<P: Planned>: Copy {
    /// References to what they name.
    type Borrowed<'s>;
    /// Their indices.
    const INDICES: &'static [usize];
    /// Fails to compile if two of them overlap.
    const DISJOINT: () = disjoint::<P>(Self::INDICES);

    /// References into an arena.
    ///
    /// # Safety
    ///
    /// `base` is the start of the arena of plan `P`, which nobody uses while they exist, and they overlap
    /// nowhere.
    unsafe fn borrow<'s>(base: *mut u8) -> Self::Borrowed<'s>;
}

const fn disjoint<P: Planned>(indices: &[usize]) {
    let mut a = 0;
    while a < indices.len() {
        let (i, mut b) = (indices[a], 0);
        while b < a {
            let j = indices[b];
            assert!(i != j, "a buffer is asked for twice");
            let (at_i, at_j) = (P::PLACED.offsets()[i], P::PLACED.offsets()[j]);
            let (size_i, size_j) = (P::PLACED.buffers()[i].size, P::PLACED.buffers()[j].size);
            assert!(
                at_i + size_i <= at_j || at_j + size_j <= at_i,
                "buffers that share memory are asked for at once: use `in_place`, or other steps"
            );
            b += 1;
        }
        a += 1;
    }
}

// SAFETY: one name.
unsafe impl<P: Planned, T: Plain, const I: usize> Slots<P> for Slot<P, T, I> {
    type Borrowed<'s> = &'s mut T;
    const INDICES: &'static [usize] = &[I];

    unsafe fn borrow<'s>(base: *mut u8) -> &'s mut T {
        // SAFETY: the offset is aligned for the type, and its end is within the arena, since it is that of a
        // plan; bytes of an arena are initialised and plain; the caller lets nobody else use them.
        unsafe { &mut *base.add(Self::OFFSET).cast::<T>() }
    }
}

macro_rules! tuples {
    ($($($type:ident $index:ident)+;)*) => {$(
        // SAFETY: the names of the tuple.
        unsafe impl<P: Planned, $($type: Plain, const $index: usize),+> Slots<P>
            for ($(Slot<P, $type, $index>,)+)
        {
            type Borrowed<'s> = ($(&'s mut $type,)+);
            const INDICES: &'static [usize] = &[$($index),+];

            unsafe fn borrow<'s>(base: *mut u8) -> Self::Borrowed<'s> {
                // SAFETY: passed on; they overlap nowhere.
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
}
