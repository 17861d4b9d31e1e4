//! Planned memory: one static array, and safe access to the live buffers.

mod busy;
mod memory;
#[cfg(debug_assertions)]
mod poison;
mod slot;
mod step;

use busy::Busy;
pub use memory::{ArenaMemory, Storage};
pub use slot::{Place, Plain, Slot, Slots};
pub use step::{ArenaRun, Step, StepAt};

use super::placed::Placed;
use core::cell::UnsafeCell;

/// A plan as a type; [`arena!`](crate::arena!) makes such types.
pub trait Planned: Sized + 'static {
    /// The buffers and their offsets.
    const PLACED: Placed<'static>;
    /// Memory with the size and alignment that the plan needs.
    type Memory: Storage;
}

/// Static memory for a plan `P` made by [`arena!`](crate::arena!).
///
/// The memory is all zero, so it lies in `.bss`. [`Arena::begin`] borrows it for one user at a time. A [`Step`] of the run returns
/// references to the buffers that are live at that step, and never two references to the same memory. The whole interface is safe.
///
/// ```
/// use allotment::{arena, plan::{Arena, PlanError}};
///
/// arena! {
///     /// The activations of a small network, in at most 4 KiB.
///     pub struct Net(4 * 1024) {
///         INPUT: [i8; 256] = 0..1;
///         HIDDEN: [i32; 512] = 0..2;
///         OUTPUT: [i8; 256] = 1..3;
///     }
/// }
/// static NET: Arena<Net> = Arena::new();
///
/// let mut run = NET.begin().expect("the network is not running");
/// let (input, hidden) = run.at::<0>().get((Net::INPUT, Net::HIDDEN));
/// input.fill(2);
/// hidden[0] = i32::from(input[0]) + i32::from(input[1]);
/// let (hidden, output) = run.at::<1>().get((Net::HIDDEN, Net::OUTPUT));
/// output[0] = hidden[0] as i8;
/// // A step as a number; the program checks at run time which buffers are live.
/// assert_eq!(run.step(2).get(Net::OUTPUT)?[0], 4);
/// assert!(run.step(2).get(Net::INPUT).is_err());
///
/// assert_eq!(NET.plan().peak(), 2048 + 256); // not 2560, since the output shares the place of the input
/// # Ok::<(), PlanError>(())
/// ```
///
/// The compiler refuses a buffer that is not live at the step:
///
/// ```compile_fail,E0080
/// # use allotment::{arena, plan::Arena};
/// # arena! { struct Net(100) { INPUT: [i8; 10] = 0..1; OUTPUT: [i8; 10] = 1..3; } }
/// # static NET: Arena<Net> = Arena::new();
/// NET.begin().unwrap().at::<1>().get(Net::INPUT);
/// ```
///
/// It also refuses a buffer requested twice, and a plan that needs more bytes than the arena may have:
///
/// ```compile_fail,E0080
/// # use allotment::{arena, plan::Arena};
/// # arena! { struct Net(100) { INPUT: [i8; 10] = 0..1; OUTPUT: [i8; 10] = 1..3; } }
/// # static NET: Arena<Net> = Arena::new();
/// NET.begin().unwrap().at::<0>().get((Net::INPUT, Net::INPUT));
/// ```
///
/// ```compile_fail,E0080
/// # use allotment::{arena, plan::Arena};
/// arena! { struct Net(19) { INPUT: [i8; 10] = 0..2; OUTPUT: [i8; 10] = 1..3; } }
/// # static NET: Arena<Net> = Arena::new();
/// ```
///
/// A plan written by hand cannot have more bytes than its memory, not counting padding:
///
/// ```compile_fail,E0080
/// # use allotment::plan::{Arena, ArenaMemory, Buffer, Placed, Plan, Planned, plan};
/// const BUFFERS: [Buffer; 1] = [Buffer::new(8, 0..1).align(8)];
/// const PLAN_OF: &Plan<'static, 1> = &plan(&BUFFERS);
/// struct Padded;
/// impl Planned for Padded {
///     const PLACED: Placed<'static> = PLAN_OF.placed();
///     type Memory = ArenaMemory<1, 8>; // one byte, and seven of padding
/// }
/// static ARENA: Arena<Padded> = Arena::new();
/// ```
///
/// In builds with debug assertions, the run overwrites the memory of a buffer with `0xFF` when its life ends (NaN for floats), so that a
/// program cannot rely on stale contents without noticing.
pub struct Arena<P: Planned> {
    memory: UnsafeCell<P::Memory>,
    #[cfg_attr(
        not(any(target_has_atomic = "8", feature = "critical-section")),
        allow(dead_code, reason = "only exclusive borrows begin a run there")
    )]
    busy: Busy,
}

// SAFETY: only an `ArenaRun` reaches the memory, `Busy` allows one at a time, and the memory holds plain data, which any thread may use.
unsafe impl<P: Planned> Sync for Arena<P> {}

impl<P: Planned> Arena<P> {
    /// Creates an arena of zeroed memory that is not in use.
    #[allow(clippy::new_without_default, reason = "an arena is only ever a static")]
    pub const fn new() -> Self {
        const {
            // `SIZE` and not the size of the type, because padding is not zero.
            assert!(P::Memory::SIZE as u64 >= P::PLACED.peak(), "the memory is smaller than the plan");
        }
        Self { memory: UnsafeCell::new(P::Memory::ZERO), busy: Busy::new() }
    }

    /// Returns the plan.
    pub const fn plan(&self) -> Placed<'static> {
        P::PLACED
    }

    /// Starts a run, which holds the arena until it is dropped. Returns `None` if the arena is in use. O(1), never waits.
    ///
    /// Buffers hold zeros in the first run, and then the contents that the last run left.
    ///
    /// On targets without atomic swaps this needs the feature `critical-section`.
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    pub fn begin(&self) -> Option<ArenaRun<'_, P>> {
        self.busy.enter().then(|| ArenaRun::new(self.memory.get().cast(), Some(&self.busy)))
    }

    /// Starts a run on a mutably borrowed arena. O(1).
    pub fn begin_mut(&mut self) -> ArenaRun<'_, P> {
        ArenaRun::new(self.memory.get().cast(), None)
    }
}

/// Plans buffers and defines a type for the plan, for [`plan::Arena`](crate::plan::Arena).
///
/// After the name of the type come the most bytes that the arena may have; it gets as many as the plan needs. Each buffer has a name, a
/// type ([`Plain`](crate::plan::Plain) data, mostly an array of numbers), and the steps at which it is live. After these, methods of
/// [`Buffer`](crate::plan::Buffer) add constraints, which refer to buffers by their names. Each name becomes a constant of the type.
///
/// ```
/// use allotment::{arena, plan::Arena};
///
/// arena! {
///     struct Net(64 * 1024) {
///         INPUT: [i8; 1000] = 0..2, align(64);
///         /// The sums, as they come.
///         SUMS: [i32; 1000] = 1..3;
///         SCALED: [i32; 1000] = 2..4, in_place_of(SUMS);
///         STATE: [u16; 10] = 0..4, apart_from(&[INPUT]), fixed(0);
///     }
/// }
/// static NET: Arena<Net> = Arena::new();
/// assert_eq!(NET.plan().peak(), 4032 + 1000);
/// ```
///
/// For a plan made elsewhere, such as by the host tool, list the offsets after the buffers. The compiler checks
/// them:
///
/// ```
/// # use allotment::{arena, plan::Arena};
/// arena! {
///     struct Net(64 * 1024) {
///         INPUT: [i8; 100] = 0..2;
///         OUTPUT: [i8; 100] = 1..3;
///     } at [100, 0]
/// }
/// # static NET: Arena<Net> = Arena::new();
/// ```
#[macro_export]
macro_rules! arena {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($capacity:expr) {
            $(
                $(#[$slot_meta:meta])*
                $slot:ident: $type:ty = $steps:expr $(, $method:ident($($argument:expr),* $(,)?))*;
            )*
        }
        $(at $offsets:expr)?
    ) => {
        $(#[$meta])*
        $vis struct $name;

        // Items of a macro are not hygienic: the user's types, steps and sizes see these names, so no program should have them. The
        // buffers' names are visible only to the arguments of their methods.
        const _: () = {
            /// The numbers of the buffers.
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum __AllotmentIndex { $($slot),* }
            const __ALLOTMENT_COUNT: usize = [$(__AllotmentIndex::$slot as usize),*].len();
            const __ALLOTMENT_PLAIN: [$crate::plan::Buffer<'static>; __ALLOTMENT_COUNT] = [$(
                $crate::plan::Buffer::new(::core::mem::size_of::<$type>() as u64, $steps)
                    .align(::core::mem::align_of::<$type>() as u64)
                    .name(::core::stringify!($slot))
            ),*];
            const __ALLOTMENT_BUFFERS: [$crate::plan::Buffer<'static>; __ALLOTMENT_COUNT] = {
                $(
                    #[allow(dead_code)]
                    const $slot: usize = __AllotmentIndex::$slot as usize;
                )*
                [$(__ALLOTMENT_PLAIN[__AllotmentIndex::$slot as usize] $(.$method($($argument),*))*),*]
            };
            const __ALLOTMENT_PLAN: &$crate::plan::Plan<'static, __ALLOTMENT_COUNT> =
                &$crate::arena!(@plan $($offsets)?).within($capacity as u64);

            impl $crate::plan::Planned for $name {
                const PLACED: $crate::plan::Placed<'static> = __ALLOTMENT_PLAN.placed();
                type Memory = $crate::plan::ArenaMemory<
                    { __ALLOTMENT_PLAN.peak() as usize },
                    { __ALLOTMENT_PLAN.align() as usize },
                >;
            }

            impl $name {
                $(
                    $(#[$slot_meta])*
                    #[doc = ::core::concat!("`", ::core::stringify!($steps), "`")]
                    #[allow(dead_code)]
                    $vis const $slot: $crate::plan::Slot<
                        Self,
                        $type,
                        { __AllotmentIndex::$slot as usize },
                    > = $crate::plan::Slot::new();
                )*
            }
        };
    };
    (@plan) => { $crate::plan::plan(&__ALLOTMENT_BUFFERS) };
    (@plan $offsets:expr) => {
        match $crate::plan::Plan::from_offsets(&__ALLOTMENT_BUFFERS, $offsets) {
            ::core::result::Result::Ok(plan) => plan,
            ::core::result::Result::Err(_) => ::core::panic!("these offsets are no plan for the buffers"),
        }
    };
}
