//! What an observer is told, and how observers are put together.

use super::event::Action;
use core::alloc::Layout;

/// What happened to a block. Sizes and alignments are those that the program asked for; blocks are addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A block was handed out.
    Allocate {
        /// Its address.
        block: usize,
        /// What was asked for.
        layout: Layout,
    },
    /// A live block has another size.
    Reallocate {
        /// Its address until now.
        block: usize,
        /// Its layout until now.
        layout: Layout,
        /// Its address from now on; the same if it was resized in place.
        to: usize,
        /// Its size from now on, in bytes.
        size: usize,
    },
    /// A block is about to come back. (Or what the program takes for one: a wrong free is seen before the heap
    /// notices it.)
    Free {
        /// Its address.
        block: usize,
        /// Its layout.
        layout: Layout,
    },
    /// A request failed; a block that should have become larger is still what it was.
    Fail {
        /// What was asked for.
        layout: Layout,
    },
}

impl From<Operation> for Action {
    /// The action with addresses as ids.
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

/// An operation, and where in the program it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation<'a> {
    /// The operation.
    pub operation: Operation,
    /// The innermost tag in whose scope it happened (see `with_tag`).
    pub tag: Option<&'static str>,
    /// Return addresses of the calls that led to it, the innermost first; empty unless an observer has asked for
    /// them ([`Observer::BACKTRACES`]) and it is this operation's turn.
    pub backtrace: &'a [usize],
}

/// A block that is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LiveBlock {
    /// Its address.
    pub address: usize,
    /// Bytes asked for.
    pub size: usize,
    /// How many allocations were observed before it. It keeps its number when it is reallocated.
    pub sequence: usize,
    /// The tag in whose scope it was allocated.
    pub tag: Option<&'static str>,
}

/// Sees everything that happens in memory behind an [`Observed`](super::Observed).
///
/// Observers are put together as tuples: `(Profile, Leaks<64>)` is one. `()` observes nothing and costs nothing.
///
/// An observer runs outside of the heap's lock, but alone: behind the lock of [`Observed`](super::Observed).
/// With the feature `std` it may use the memory that it observes, which it will not be told of; without `std` it must
/// not, since it might wait for itself. If it panics, the program aborts: unwinding out of an allocator is not
/// allowed.
pub trait Observer {
    /// Whether there is anything to tell it. Where this is `false` no code is left of the observation.
    const ACTIVE: bool = true;

    /// Of how many allocations of a thread one comes with its backtrace; 0 for none. Only with the feature
    /// `backtrace`.
    const BACKTRACES: u32 = 0;

    /// Whether [`Observer::oldest_since`] knows the live blocks.
    const LISTS: bool = false;

    /// Takes note of an operation.
    fn observe(&mut self, observation: &Observation<'_>);

    /// Bytes that the program has asked for in its live blocks, if this observer counts them.
    fn requested(&self) -> Option<usize> {
        None
    }

    /// How many allocations were observed, if this observer lists live blocks.
    fn sequence(&self) -> usize {
        0
    }

    /// The live block with the lowest sequence number that is not below `sequence`.
    fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
        let _ = sequence;
        None
    }

    /// Live blocks that are not listed, because there was no room for them in the list.
    fn unlisted(&self) -> usize {
        0
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

    fn sequence(&self) -> usize {
        (**self).sequence()
    }

    fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
        (**self).oldest_since(sequence)
    }

    fn unlisted(&self) -> usize {
        (**self).unlisted()
    }
}

/// The lower of two periods, of which 0 is none.
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

            // The first that lists blocks answers for all.
            fn sequence(&self) -> usize {
                $(if $observer::LISTS { return self.$field.sequence(); })+
                0
            }

            fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
                $(if $observer::LISTS { return self.$field.oldest_since(sequence); })+
                None
            }

            fn unlisted(&self) -> usize {
                $(if $observer::LISTS { return self.$field.unlisted(); })+
                0
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
