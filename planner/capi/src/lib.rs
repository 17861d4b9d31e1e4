//! The planner's C interface: buffers in, offsets and a proof out.
//!
//! The header is `include/allotment_planner.h`; a C program links `liballotment_planner_c.a` or the shared library of the same name.
//! The caller owns every array, and texts are written into fixed fields; a schedule, which the planner makes of a model, is freed by
//! `allotment_schedule_free`. Functions may be called from several threads at once.

pub mod schedule;

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_planner::model::{self, Instance};
use allotment_planner::solve;
use allotment_planner::validate::validate;

/// Stands for "none" in every 64-bit field that may be left open: no capacity, no fixed offset, no hint, no partner.
pub const ALLOTMENT_NONE: u64 = u64::MAX;

/// The version of the interface.
pub const ALLOTMENT_PLANNER_VERSION: u32 = 2;

/// A part of a buffer's lifetime in which it needs only some of its bytes, or none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// First time step of the gap.
    pub lower: i64,
    /// The time step after its last.
    pub upper: i64,
    /// First byte of the buffer that stays in use meanwhile.
    pub window_lower: u64,
    /// The byte after the last one that stays in use; equal to `window_lower` if none does.
    pub window_upper: u64,
}

/// A buffer to be placed. Start from `allotment_buffer`, which leaves everything open that can be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Bytes.
    pub size: u64,
    /// First time step at which the buffer is live.
    pub lower: i64,
    /// The time step after the last one at which it is live.
    pub upper: i64,
    /// The offset is a multiple of this many bytes; at least 1.
    pub align: u64,
    /// The offset that it must have, or `ALLOTMENT_NONE`.
    pub fixed: u64,
    /// An offset that it should have if that costs nothing, or `ALLOTMENT_NONE`.
    pub hint: u64,
    /// The number of another buffer with which it may share one offset, or `ALLOTMENT_NONE`.
    pub alias: u64,
    /// The memory it belongs to; buffers of different tiers never meet, and every tier's offsets start at 0.
    pub tier: u32,
    /// Its gaps, ascending and disjoint; may be null if there are none.
    pub gaps: *const Gap,
    /// Number of gaps.
    pub gap_count: usize,
}

/// What is known about the plan while the search runs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Seconds since the start.
    pub seconds: f64,
    /// Best peak so far, in bytes.
    pub peak: u64,
    /// Best lower bound so far, in bytes.
    pub lower_bound: u64,
}

/// Receives every better plan and bound; the search ends early when it returns false.
///
/// Calls come from the planner's own threads, but never two at once, and none after `allotment_plan` has returned.
pub type ProgressFunction =
    Option<unsafe extern "C" fn(user: *mut c_void, progress: *const Progress) -> bool>;

/// A flag that ends a search from another thread, or from a signal handler.
#[derive(Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

/// How to search. Start from `allotment_options`, which sets the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of this structure where it is used. New fields are added at its end, and have their defaults for a program that does not know
    /// them.
    pub struct_size: usize,
    /// The capacity of tier 0 in bytes, or `ALLOTMENT_NONE` for a plan as small as possible.
    pub capacity: u64,
    /// The capacities of tiers 1, 2 and so on, each as `capacity`; may be null if there are none.
    pub more_capacities: *const u64,
    /// Number of entries in `more_capacities`.
    pub more_capacity_count: usize,
    /// Seconds after which the search ends with the best plan so far.
    pub time_limit: f64,
    /// Number of threads; at least 1. One thread makes the same plan in every run that ends before the time limit.
    pub threads: u32,
    /// The seed of all that is left to chance.
    pub seed: u64,
    /// Receives the progress; may be null.
    pub progress: ProgressFunction,
    /// Passed on to `progress`.
    pub user: *mut c_void,
    /// Ends the search when raised; may be null.
    pub cancel: *const Cancel,
    /// Units of work, of about a millisecond, after which the search ends; 0 for no limit. With one thread the same plan on every machine.
    pub work: u64,
    /// Write the offsets even if the best plan exceeds the capacity.
    pub anyway: bool,
}

/// What is proved about a plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No plan is smaller: proved.
    Optimal = 0,
    /// The plan fits the capacity.
    Fits = 1,
    /// The best plan found; `lower_bound` says how far from the optimum it can be.
    Gap = 2,
    /// No plan fits the capacity: proved. The plan is the best found.
    Infeasible = 3,
    /// No plan was found that fits, and none was proved impossible. The plan is the best found.
    Inconclusive = 4,
}

/// The figures of a plan; of several tiers the largest peak and bound, and the worst status.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The highest end of a buffer, in bytes.
    pub peak: u64,
    /// The proved lower bound of the peak of every plan, in bytes.
    pub lower_bound: u64,
    /// What is proved.
    pub status: Status,
    /// Nodes of the exact search.
    pub nodes: u64,
    /// Seconds that the search took.
    pub seconds: f64,
    /// What is wrong, if the outcome is not `OK`: UTF-8, cut to fit, always ended by a zero byte.
    pub message: [c_char; 256],
}

/// Bytes of a message, its final zero included.
const MESSAGE: usize = 256;

/// Whether a call did its work.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A plan was made; its status says what is proved about it.
    Ok = 0,
    /// A pointer is null that must not be, or a number is out of its range.
    Argument = 1,
    /// The buffers contradict themselves, such as a lifetime that ends before it starts.
    Instance = 2,
    /// The offsets are no plan: two buffers overlap, or one is misaligned or above the capacity.
    Violation = 3,
    /// A defect of the planner; please report it.
    Defect = 4,
    /// The best plan exceeds the capacity, and `anyway` is false. The status says whether a smaller one is impossible.
    Capacity = 5,
}

/// Returns a buffer of `size` bytes, live from `lower` until before `upper`, with everything else left open.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_buffer(size: u64, lower: i64, upper: i64) -> Buffer {
    let none = ALLOTMENT_NONE;
    let gaps = std::ptr::null();
    Buffer { size, lower, upper, align: 1, fixed: none, hint: none, alias: none, tier: 0, gaps, gap_count: 0 }
}

/// Returns the default options: no capacity, 60 seconds, one thread, seed 0. A program that may be linked with a later version calls
/// `allotment_options_init` instead, which writes no field that the program does not know.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_options() -> Options {
    Options {
        struct_size: size_of::<Options>(),
        capacity: ALLOTMENT_NONE,
        more_capacities: std::ptr::null(),
        more_capacity_count: 0,
        time_limit: 60.0,
        threads: 1,
        seed: 0,
        progress: None,
        user: std::ptr::null_mut(),
        cancel: std::ptr::null(),
        work: 0,
        anyway: false,
    }
}

/// Writes the default options into a structure of `size` bytes, which is `sizeof(AllotmentOptions)` where it is compiled.
///
/// # Safety
/// `options` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_options_init(options: *mut Options, size: usize) {
    let defaults = Options { struct_size: size, ..allotment_options() };
    let size = size.min(size_of::<Options>());
    // SAFETY: the caller's structure has that many bytes, and so have the defaults.
    unsafe { options.cast::<u8>().copy_from_nonoverlapping((&raw const defaults).cast(), size) };
}

/// Returns the version of the interface: it grows when fields are added. What a program is compiled with is `ALLOTMENT_PLANNER_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_planner_version() -> u32 {
    ALLOTMENT_PLANNER_VERSION
}

/// The caller's structure, with the defaults `own` for fields that it does not know; null stands for all defaults.
///
/// # Safety
/// `given` is null, or points to as many bytes as its first field says.
unsafe fn known<T: Copy>(given: *const T, mut own: T) -> T {
    if !given.is_null() {
        // SAFETY: the first field is there.
        let size = unsafe { given.cast::<usize>().read() }.min(size_of::<T>());
        // SAFETY: the caller's structure has that many bytes, all of fields that both know.
        unsafe { (&raw mut own).cast::<u8>().copy_from_nonoverlapping(given.cast(), size) };
    }
    own
}

/// Creates a cancel flag; `allotment_cancel_free` frees it.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_cancel_new() -> *mut Cancel {
    Box::into_raw(Box::default())
}

/// Raises a cancel flag: searches that were given it end with their best plan so far. Does nothing with null. May be called from a
/// signal handler.
///
/// # Safety
/// `cancel` is null or from `allotment_cancel_new`, and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_cancel_raise(cancel: *const Cancel) {
    // SAFETY: the caller passes null or a live flag.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.0.store(true, Ordering::Relaxed);
    }
}

/// Frees a cancel flag. Does nothing with null.
///
/// # Safety
/// `cancel` is null or from `allotment_cancel_new`, not freed before, and no call that was given it is still running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_cancel_free(cancel: *mut Cancel) {
    if !cancel.is_null() {
        // SAFETY: the caller gives up a flag that `Box::into_raw` returned.
        drop(unsafe { Box::from_raw(cancel) });
    }
}

/// Plans `count` buffers: writes one offset for each into `offsets`, and the figures into `plan`.
///
/// `options` may be null for the defaults. Where the outcome is not `OK`, the offsets are untouched and `plan->message` says what
/// is wrong; that of a plan which exceeds the capacity is `CAPACITY`, and the figures are those of the best one.
///
/// # Safety
/// `buffers` points to `count` buffers, each with `gap_count` gaps; `offsets` has room for `count` numbers, and `plan` for one plan;
/// both pointers of arrays may be null if `count` is 0. The pointers of `options` are valid as its fields say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_plan(
    buffers: *const Buffer,
    count: usize,
    options: *const Options,
    offsets: *mut u64,
    plan: *mut Plan,
) -> Outcome {
    if plan.is_null() {
        return Outcome::Argument;
    }
    // SAFETY: the caller passes options that are valid, or null.
    let options = unsafe { known(options, allotment_options()) };
    // SAFETY: the pointers are as this function asks for.
    let made = guarded(|| unsafe { make(buffers, count, &options, offsets) });
    // SAFETY: the caller passes a plan to write to.
    let plan = unsafe { &mut *plan };
    let (outcome, written) = reported(made.map(|solution| figures(&solution, &options)));
    *plan = written;
    outcome
}

/// The outcome of a call, and the figures with what is wrong.
fn reported(made: Result<(Outcome, Plan), Failure>) -> (Outcome, Plan) {
    made.unwrap_or_else(|(outcome, message)| (outcome, Plan { message: text(&message), ..empty() }))
}

/// The figures of a plan, and whether it is one that was asked for.
fn figures(solution: &solve::Solution, options: &Options) -> (Outcome, Plan) {
    let status = match solution.status {
        solve::Status::Optimal => Status::Optimal,
        solve::Status::Fits => Status::Fits,
        solve::Status::Gap => Status::Gap,
        solve::Status::Infeasible => Status::Infeasible,
        solve::Status::Inconclusive => Status::Inconclusive,
    };
    let (outcome, message) = match exceeds(solution) && !options.anyway {
        true => (Outcome::Capacity, text("the best plan exceeds the capacity")),
        false => (Outcome::Ok, [0; MESSAGE]),
    };
    let plan = Plan {
        peak: solution.peak,
        lower_bound: solution.lower_bound,
        status,
        nodes: solution.nodes,
        seconds: solution.elapsed.as_secs_f64(),
        message,
    };
    (outcome, plan)
}

/// True for a plan that does not fit the capacity.
fn exceeds(solution: &solve::Solution) -> bool {
    matches!(solution.status, solve::Status::Infeasible | solve::Status::Inconclusive)
}

/// Checks that `offsets` are a plan of the buffers, within `capacity` bytes or `ALLOTMENT_NONE`.
///
/// If they are not, up to `room` bytes of `message` (which may be null) say why, ended by a zero byte.
///
/// # Safety
/// `buffers` and `offsets` point to `count` entries each (either may be null if `count` is 0), and `message` to `room` bytes, or it
/// is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_validate(
    buffers: *const Buffer,
    count: usize,
    offsets: *const u64,
    capacity: u64,
    message: *mut c_char,
    room: usize,
) -> Outcome {
    let checked = guarded(|| {
        // SAFETY: the caller passes `count` buffers with their gaps.
        let instance = unsafe { instance(buffers, count) }?;
        // SAFETY: the caller passes `count` offsets.
        let offsets = unsafe { slice(offsets, count, "offsets") }?;
        let capacity = Some(capacity).filter(|&bytes| bytes != ALLOTMENT_NONE);
        validate(&instance, offsets, capacity).map_err(|error| (Outcome::Violation, error.to_string()))
    });
    match checked {
        Ok(()) => Outcome::Ok,
        Err((outcome, said)) => {
            if !message.is_null() && room > 0 {
                let said = text(&said);
                let length = said.iter().position(|&byte| byte == 0).unwrap_or(0).min(room - 1);
                // SAFETY: the caller passes `room` bytes, more than `length`.
                unsafe {
                    message.copy_from_nonoverlapping(said.as_ptr(), length);
                    message.add(length).write(0);
                }
            }
            outcome
        }
    }
}

/// What went wrong, and its description.
type Failure = (Outcome, String);

/// Runs `work`; a panic becomes a failure, since it must not reach C.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let defect = |_| Err((Outcome::Defect, "the planner has a defect, please report it".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(defect)
}

fn empty() -> Plan {
    Plan {
        peak: 0,
        lower_bound: 0,
        status: Status::Inconclusive,
        nodes: 0,
        seconds: 0.0,
        message: [0; MESSAGE],
    }
}

/// Cuts `message` to a field of a plan, between characters.
fn text(message: &str) -> [c_char; MESSAGE] {
    let mut field = [0; MESSAGE];
    let end = (0..MESSAGE).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
    for (to, &byte) in field.iter_mut().zip(&message.as_bytes()[..end.min(message.len())]) {
        *to = byte as c_char;
    }
    field
}

/// An array of C.
///
/// # Safety
/// `first` points to `count` entries, or is null.
unsafe fn slice<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err((Outcome::Argument, format!("`{name}` is null"))),
        // SAFETY: the caller passes `count` entries.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// The instance of an array of buffers, which are named by their numbers.
///
/// # Safety
/// `first` points to `count` buffers, or is null; each has its gaps.
unsafe fn instance(first: *const Buffer, count: usize) -> Result<Instance, Failure> {
    let given = |value: u64| Some(value).filter(|&value| value != ALLOTMENT_NONE);
    // SAFETY: the caller passes `count` buffers.
    let buffers = unsafe { slice(first, count, "buffers") }?;
    let read = |(n, buffer): (usize, &Buffer)| {
        // SAFETY: the caller passes the buffer's gaps.
        let gaps = unsafe { slice(buffer.gaps, buffer.gap_count, "gaps") }?;
        let gap = |gap: &Gap| model::Gap {
            start: gap.lower,
            end: gap.upper,
            window: Some((gap.window_lower, gap.window_upper)).filter(|(lower, upper)| lower != upper),
        };
        Ok(model::Buffer {
            align: buffer.align,
            fixed: given(buffer.fixed),
            hint: given(buffer.hint),
            alias: given(buffer.alias).map(|other| usize::try_from(other).unwrap_or(usize::MAX)),
            tier: buffer.tier,
            gaps: gaps.iter().map(gap).collect(),
            ..model::Buffer::new(n.to_string(), buffer.size, buffer.lower, buffer.upper)
        })
    };
    let buffers = buffers.iter().enumerate().map(read).collect::<Result<_, Failure>>()?;
    Instance::new(buffers).map_err(|error| (Outcome::Instance, error.to_string()))
}

/// Plans, and writes the offsets.
///
/// # Safety
/// As for [`allotment_plan`].
unsafe fn make(
    buffers: *const Buffer,
    count: usize,
    options: &Options,
    offsets: *mut u64,
) -> Result<solve::Solution, Failure> {
    // SAFETY: the caller passes `count` buffers with their gaps.
    let instance = unsafe { instance(buffers, count) }?;
    if offsets.is_null() && count > 0 {
        return Err((Outcome::Argument, "`offsets` is null".into()));
    }
    // SAFETY: the caller passes valid options.
    let search = unsafe { Search::new(options) }?;
    let solution = search.solve(&instance)?;
    if count > 0 && (options.anyway || !exceeds(&solution)) {
        // SAFETY: the caller passes room for `count` offsets.
        unsafe { offsets.copy_from_nonoverlapping(solution.offsets.as_ptr(), count) };
    }
    Ok(solution)
}

/// A search as a caller asks for it.
struct Search {
    options: solve::Options,
    capacities: BTreeMap<u32, u64>,
    deadline: Deadline,
    listener: Mutex<Listener>,
}

impl Search {
    /// Checks the options; the time begins now.
    ///
    /// # Safety
    /// The pointers of `options` are valid as its fields say.
    unsafe fn new(options: &Options) -> Result<Self, Failure> {
        let wrong = |what: &str| Err((Outcome::Argument, what.into()));
        let seconds = if options.time_limit > 1e9 { 1e9 } else { options.time_limit };
        let Ok(time_limit) = Duration::try_from_secs_f64(seconds) else {
            return wrong("`time_limit` is negative or not a number");
        };
        if options.threads == 0 {
            return wrong("`threads` is 0");
        }
        // SAFETY: the caller passes that many capacities.
        let more = unsafe { slice(options.more_capacities, options.more_capacity_count, "more_capacities") }?;
        let capacities = std::iter::once(&options.capacity).chain(more).enumerate();
        let capacities = capacities
            .filter(|&(_, &bytes)| bytes != ALLOTMENT_NONE)
            .filter_map(|(tier, &bytes)| Some((u32::try_from(tier).ok()?, bytes)))
            .collect();
        let searching = solve::Options {
            time_limit,
            work: Some(options.work).filter(|&work| work > 0),
            threads: options.threads as usize,
            seed: options.seed,
            ..solve::Options::default()
        };
        // SAFETY: the caller passes null or a live flag.
        let raised = unsafe { options.cancel.as_ref() }.map(|cancel| cancel.0.clone());
        let deadline = searching.deadline();
        let deadline = match raised {
            Some(raised) => deadline.or_when(raised),
            None => deadline,
        };
        let listener = Mutex::new(Listener { function: options.progress, user: options.user });
        Ok(Self { options: searching, capacities, deadline, listener })
    }

    fn solve(&self, instance: &Instance) -> Result<solve::Solution, Failure> {
        let watch = |progress: solve::Progress| {
            let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
            if !listener.tell(progress) {
                self.options.interrupt.store(true, Ordering::Relaxed);
            }
        };
        let solution =
            solve::solve_checked(instance, &self.options, &self.capacities, &self.deadline, Some(&watch));
        solution.map_err(|error| (Outcome::Defect, format!("please report this: {error}")))
    }
}

/// The caller's function and what it is called with.
struct Listener {
    function: ProgressFunction,
    user: *mut c_void,
}

// SAFETY: the pointer is only handed back to the caller's function, which is documented to be called from other threads.
unsafe impl Send for Listener {}

impl Listener {
    /// Returns false if the caller wants the search to end.
    fn tell(&self, progress: solve::Progress) -> bool {
        let told = Progress {
            seconds: progress.elapsed.as_secs_f64(),
            peak: progress.peak,
            lower_bound: progress.lower_bound,
        };
        // SAFETY: the function is the caller's, called as it is declared, with what came with it.
        self.function.is_none_or(|function| unsafe { function(self.user, &told) })
    }
}
