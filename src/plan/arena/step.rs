//! A run through the steps of a plan.

#[cfg(debug_assertions)]
use super::poison::poison;
use super::{Busy, Place, Planned, Slots};
use crate::plan::error::PlanError;
use crate::units::each;
use core::marker::PhantomData;

/// An arena in use. Dropping the run releases the arena.
pub struct ArenaRun<'a, P: Planned> {
    base: *mut u8,
    busy: Option<&'a Busy>,
    /// The current step, or `None` before the first.
    now: Option<u64>,
    plan: PhantomData<P>,
}

// SAFETY: the run is the only user of the memory, which holds plain data, and any thread may leave `Busy`, because
// entering and leaving are atomic or in critical sections.
unsafe impl<P: Planned> Send for ArenaRun<'_, P> {}

impl<P: Planned> Drop for ArenaRun<'_, P> {
    fn drop(&mut self) {
        if let Some(busy) = self.busy {
            busy.leave();
        }
    }
}

impl<'a, P: Planned> ArenaRun<'a, P> {
    /// Creates a run on the arena at `base`, which belongs to the run alone until the run is dropped.
    pub(super) fn new(base: *mut u8, busy: Option<&'a Busy>) -> Self {
        Self { base, busy, now: None, plan: PhantomData }
    }

    /// Goes to step `step`. O(1); with debug assertions O(n²) for n buffers.
    ///
    /// Steps may be skipped, and the run may go back. A buffer keeps its contents as long as it is live at all
    /// steps between the old and the new one.
    pub fn step(&mut self, step: u64) -> Step<'_, P> {
        self.go(step);
        Step { base: self.base, step, run: PhantomData }
    }

    /// Goes to step `STEP`, a constant, so that the compiler refuses buffers that are not live there. O(1); with debug assertions O(n²)
    /// for n buffers.
    pub fn at<const STEP: u64>(&mut self) -> StepAt<'_, P, STEP> {
        self.go(STEP);
        StepAt { base: self.base, run: PhantomData }
    }

    fn go(&mut self, step: u64) {
        #[cfg(debug_assertions)]
        if let Some(now) = self.now {
            // SAFETY: only the run uses the arena, and no step borrows from it.
            unsafe { poison(P::PLACED, self.base, now, step) };
        }
        self.now = Some(step);
    }
}

/// A step of a run whose number is known at run time.
pub struct Step<'r, P: Planned> {
    base: *mut u8,
    step: u64,
    run: PhantomData<&'r mut P>,
}

impl<'r, P: Planned> Step<'r, P> {
    /// Returns references to the named buffers: one, or a tuple of up to sixteen. Takes one comparison per buffer (and one per gap in its
    /// lifetime). The compiler refuses buffers that share memory.
    ///
    /// # Errors
    ///
    /// [`PlanError::NotLive`] if one of the buffers is not live at this step.
    pub fn get<S: Slots<P>>(self, slots: S) -> Result<S::Borrowed<'r>, PlanError> {
        let () = S::DISJOINT;
        _ = slots;
        for &buffer in S::INDICES {
            self.check(buffer)?;
        }
        // SAFETY: the step is the only one of its run and ends here; the buffers are disjoint.
        Ok(unsafe { S::borrow(self.base) })
    }

    /// Returns buffer `output` with the contents of `input`. No bytes are copied if the plan lets the output take the input's place.
    ///
    /// # Errors
    ///
    /// [`PlanError::NotLive`] if one of the buffers is not live at this step.
    pub fn in_place<I: Place<P>, O: Place<P>>(
        self,
        input: I,
        output: O,
    ) -> Result<O::Borrowed<'r>, PlanError> {
        _ = (input, output);
        self.check(I::INDICES[0])?;
        self.check(O::INDICES[0])?;
        // SAFETY: the step is the only one of its run and ends here; both buffers are live.
        Ok(unsafe { in_place::<P, I, O>(self.base) })
    }

    fn check(&self, buffer: usize) -> Result<(), PlanError> {
        match P::PLACED.buffers()[buffer].is_live(self.step) {
            true => Ok(()),
            false => Err(PlanError::NotLive { buffer, step: self.step }),
        }
    }
}

/// A step of a run whose number is known to the compiler.
pub struct StepAt<'r, P: Planned, const STEP: u64> {
    base: *mut u8,
    run: PhantomData<&'r mut P>,
}

/// A check that does not compile if a buffer is not live.
struct Live<P, S, const STEP: u64>(PhantomData<(P, S)>);

impl<P: Planned, S: Slots<P>, const STEP: u64> Live<P, S, STEP> {
    const CHECKED: () = {
        each!(i, 0..S::INDICES.len(), {
            let live = P::PLACED.buffers()[S::INDICES[i]].is_live(STEP);
            assert!(live, "a buffer is not live at this step");
        });
        S::DISJOINT
    };
}

impl<'r, P: Planned, const STEP: u64> StepAt<'r, P, STEP> {
    /// Returns references to the named buffers: one, or a tuple of up to sixteen. The compiler, not the program, checks the buffers: it
    /// refuses those that are not live at this step, and those that share memory.
    pub fn get<S: Slots<P>>(self, slots: S) -> S::Borrowed<'r> {
        let () = Live::<P, S, STEP>::CHECKED;
        _ = slots;
        // SAFETY: the step is the only one of its run and ends here; the buffers are disjoint.
        unsafe { S::borrow(self.base) }
    }

    /// Returns buffer `output` with the contents of `input`. No bytes are copied if the plan lets the output take the input's place. The
    /// compiler refuses buffers that are not live at this step.
    pub fn in_place<I: Place<P>, O: Place<P>>(self, input: I, output: O) -> O::Borrowed<'r> {
        _ = (input, output);
        let () = Live::<P, I, STEP>::CHECKED;
        let () = Live::<P, O, STEP>::CHECKED;
        // SAFETY: the step is the only one of its run and ends here; both buffers are live.
        unsafe { in_place::<P, I, O>(self.base) }
    }
}

/// Returns buffer `O` with the contents of `I`.
///
/// # Safety
///
/// `base` must be the start of the arena of plan `P`, nothing else may use the arena, and both buffers must be live
/// at one step.
unsafe fn in_place<'r, P: Planned, I: Place<P>, O: Place<P>>(base: *mut u8) -> O::Borrowed<'r> {
    const { assert!(I::SIZE <= O::SIZE, "the output is smaller than the input") };
    // SAFETY: both buffers lie in the arena, and the only reference is made after the copy. They have the same offset, or do not overlap,
    // since both are live.
    unsafe {
        if I::OFFSET != O::OFFSET {
            base.add(I::OFFSET).copy_to_nonoverlapping(base.add(O::OFFSET), I::SIZE);
        }
        O::borrow(base)
    }
}
