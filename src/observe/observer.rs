//! The interface of observers, and their combination.

#![forbid(unsafe_code)]

use super::event::Action;
use core::alloc::Layout;

/// An operation on a block. Sizes and alignments are the requested ones; blocks are identified by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A block was allocated.
    Allocate {
        /// Address of the block.
        block: usize,
        /// The requested layout.
        layout: Layout,
    },
    /// A live block was resized.
    Reallocate {
        /// The old address.
        block: usize,
        /// The old layout.
        layout: Layout,
        /// The new address, equal to the old one if the block was resized in place.
        to: usize,
        /// The new size in bytes.
        size: usize,
    },
    /// A block is about to be freed. The free may still be invalid, since the heap has not checked it yet.
    Free {
        /// Address of the block.
        block: usize,
        /// Layout of the block.
        layout: Layout,
    },
    /// A request failed. After a failed reallocation the block is unchanged.
    Fail {
        /// The requested layout.
        layout: Layout,
    },
}

#[cfg(feature = "defmt")]
impl defmt::Format for Operation {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        Action::from(*self).format(fmt);
    }
}

impl From<Operation> for Action {
    /// Converts the operation to an action whose ids are addresses.
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Allocate { block, layout } => {
                Self::Allocate { id: block as u64, size: layout.size() as u64, align: layout.align() as u64 }
            }
            Operation::Reallocate { block, to, size, .. } => {
                Self::Reallocate { id: block as u64, to: to as u64, size: size as u64 }
            }
            Operation::Free { block, .. } => Self::Free { id: block as u64 },
            Operation::Fail { layout } => {
                Self::Fail { size: layout.size() as u64, align: layout.align() as u64 }
            }
        }
    }
}

/// An operation and its place in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Observation<'a> {
    /// The operation.
    pub operation: Operation,
    /// The innermost tag in whose scope the operation happened; see `with_tag`.
    pub tag: Option<&'static str>,
    /// Return addresses of the calls that led to the operation, innermost first. Empty unless an observer asks for backtraces
    /// ([`Observer::BACKTRACES`]) and it is this operation's turn.
    pub backtrace: &'a [usize],
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LiveBlock {
    /// Address of the block.
    pub address: usize,
    /// Requested size in bytes.
    pub size: usize,
    /// Number of allocations observed before this one. A reallocation does not change it.
    pub sequence: usize,
    /// The tag in whose scope the block was allocated.
    pub tag: Option<&'static str>,
}

/// Receives every operation on the memory inside an [`Observed`](crate::Observed).
///
/// Observers are combined as tuples: `(Profile, Leaks<64>)` is an observer. `()` observes nothing and costs
/// nothing.
///
/// An observer runs outside the heap's lock, but one call at a time, inside the lock of [`Observed`](crate::Observed). With the feature
/// `std`, an observer may use the memory that it observes, and is not called for that use. Without `std` it must not, because it might
/// wait for its own lock. If it panics, the program aborts, since unwinding out of an allocator is not allowed.
pub trait Observer {
    /// Whether the observer does anything. If `false`, no code for observation is generated.
    const ACTIVE: bool = true;

    /// Period of backtraces: one in this many allocations of each thread has one, or none if 0. Needs the feature `backtrace`, except on
    /// Cortex-M and RISC-V without an operating system, where each allocation has a backtrace of up to 8 callers.
    const BACKTRACES: u32 = 0;

    /// Whether the observer lists the live blocks, for [`Observer::oldest_since`].
    const LISTS: bool = false;

    /// Handles an operation.
    fn observe(&mut self, observation: &Observation<'_>);

    /// Returns the bytes requested in live blocks, if this observer counts them.
    fn requested(&self) -> Option<usize> {
        None
    }

    /// Returns the number of the next block, and how many live blocks are not listed for lack of room.
    fn listed(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Returns the live block with the lowest sequence number that is at least `sequence`.
    fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
        let _ = sequence;
        None
    }
}

impl Observer for () {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn observe(&mut self, _: &Observation<'_>) {}
}

impl<O: Observer> Observer for &mut O {
    const ACTIVE: bool = O::ACTIVE;
    const BACKTRACES: u32 = O::BACKTRACES;
    const LISTS: bool = O::LISTS;

    #[inline]
    fn observe(&mut self, observation: &Observation<'_>) {
        (**self).observe(observation);
    }

    fn requested(&self) -> Option<usize> {
        (**self).requested()
    }

    fn listed(&self) -> (usize, usize) {
        (**self).listed()
    }

    fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
        (**self).oldest_since(sequence)
    }
}

/// Returns the lower of two periods, where 0 means none.
const fn more_often(a: u32, b: u32) -> u32 {
    if a == 0 || b != 0 && b < a { b } else { a }
}

macro_rules! tuple {
    ($($observer:ident $field:tt),+) => {
        impl<$($observer: Observer),+> Observer for ($($observer,)+) {
            const ACTIVE: bool = $($observer::ACTIVE)||+;
            const BACKTRACES: u32 = {
                let mut period = 0;
                $(period = more_often(period, $observer::BACKTRACES);)+
                period
            };
            const LISTS: bool = $($observer::LISTS)||+;

            #[inline]
            fn observe(&mut self, observation: &Observation<'_>) {
                $(self.$field.observe(observation);)+
            }

            fn requested(&self) -> Option<usize> {
                None$(.or_else(|| self.$field.requested()))+
            }

            // The first observer that lists blocks answers for all.
            fn listed(&self) -> (usize, usize) {
                $(if $observer::LISTS { return self.$field.listed(); })+
                (0, 0)
            }

            fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
                $(if $observer::LISTS { return self.$field.oldest_since(sequence); })+
                None
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
