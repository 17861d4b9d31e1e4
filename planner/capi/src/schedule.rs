//! Schedules of models: what a program does to run one, and a place for every tensor.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};

use allotment_planner::graph::Lowering;
use allotment_planner::import::{json, onnx, tflite};
use allotment_planner::schedule::{self, ChangeError, Changes, Schedule as Made, Share, change, replay};

use super::{ALLOTMENT_NONE, ALLOTMENT_PLANNER_VERSION, Failure, Options, Outcome, Plan, Search};
use super::{allotment_options, exceeds, figures, guarded, known, reported, slice};

/// The form of a model.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A graph of operators and tensors as JSON.
    Json = 0,
    /// An ONNX model.
    Onnx = 1,
    /// A TFLite model.
    Tflite = 2,
}

/// A model, and what is done to it. Start from `allotment_model`, which sets the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Bytes of this structure where it is used. New fields are added at its end.
    pub struct_size: usize,
    /// The model's bytes.
    pub bytes: *const u8,
    /// Their number.
    pub length: usize,
    /// Their form: a number of `AllotmentForm`.
    pub form: u32,
    /// Names of the open dimensions of an ONNX model; may be null if there are none.
    pub dim_names: *const *const c_char,
    /// The size of each.
    pub dim_sizes: *const u64,
    /// Number of dimensions.
    pub dim_count: usize,
    /// Alignment of every buffer in bytes, to which sizes are rounded up.
    pub align: u64,
    /// Plan the weights too.
    pub weights: bool,
    /// Plan the inputs too.
    pub inputs: bool,
    /// Let views share their tensor's memory, and let operators overwrite inputs that are not read again.
    pub in_place: bool,
    /// Run the operators in the order that needs the least memory.
    pub reorder: bool,
    /// Run cheap operators again instead of keeping their results, for up to this many elements more; 0 for none.
    pub rematerialise: u64,
    /// Pass tensors between operators that go element by element in this many chunks; 0 or 1 for all at once.
    pub stream: u64,
    /// Move tensors to a slower memory (tier 1) while they are not read, so that no more bytes than these are in use; or `ALLOTMENT_NONE`.
    pub spill: u64,
    /// With `spill`: choose the order, what runs again and what is moved in one search, in which a unit of work counts as so many bytes; or
    /// `ALLOTMENT_NONE`.
    pub joint: u64,
}

/// Returns a model of `length` bytes that nothing is done to, with 16 bytes for alignment. `form` is a number of `AllotmentForm`.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_model(bytes: *const u8, length: usize, form: u32) -> Model {
    Model {
        struct_size: size_of::<Model>(),
        bytes,
        length,
        form,
        dim_names: std::ptr::null(),
        dim_sizes: std::ptr::null(),
        dim_count: 0,
        align: 16,
        weights: false,
        inputs: false,
        in_place: false,
        reorder: false,
        rematerialise: 0,
        stream: 0,
        spill: ALLOTMENT_NONE,
        joint: ALLOTMENT_NONE,
    }
}

/// Where a tensor lies, and when.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The tensor's name; where one lies at several places in turn, a name made from it.
    pub name: *const c_char,
    /// First byte in its memory.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// First time at which it is live.
    pub lower: i64,
    /// The time after the last one at which it is live.
    pub upper: i64,
    /// The memory.
    pub tier: u32,
    /// The number of the place whose bytes it lies in, or its own.
    pub within: u64,
}

/// What a step does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The caller provides what it writes: inputs before every run, constants and states before the first.
    Given = 0,
    /// An operator runs.
    Run = 1,
    /// The place that is read is copied to the one that is written.
    Copy = 2,
    /// A constant is read again from the model.
    Load = 3,
    /// The caller may read the outputs.
    Taken = 4,
}

/// How the first place that a step writes lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// Apart from what is read.
    Apart = 0,
    /// It is the first place that is read, seen otherwise: it is not computed.
    View = 1,
    /// It overwrites what is read from its bytes.
    Over = 2,
}

/// One thing that a program does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The time that lifetimes count.
    pub time: i64,
    /// What is done.
    pub act: Act,
    /// How the first place that is written lies.
    pub lies: Lies,
    /// The operator's name, or an empty text.
    pub operator_name: *const c_char,
    /// Which chunk the operator makes.
    pub chunk: u64,
    /// Number of chunks; 1 for an operator that makes all at once.
    pub chunks: u64,
    /// The numbers of the places that are read; `ALLOTMENT_NONE` for a tensor that the plan has none for.
    pub reads: *const u64,
    /// How many.
    pub read_count: usize,
    /// The numbers of the places that are written, in the same way.
    pub writes: *const u64,
    /// How many.
    pub write_count: usize,
}

/// What a schedule holds; valid until the schedule is freed. A step or place begins `step_size` or `place_size` bytes after the one before
/// it, which may be more than a program knows of.
#[repr(C)]
#[derive(Debug)]
pub struct ScheduleView {
    /// The version of the library that made it.
    pub version: u32,
    /// Bytes of a place.
    pub place_size: usize,
    /// Number of places.
    pub place_count: usize,
    /// The places.
    pub places: *const Place,
    /// Bytes of a step.
    pub step_size: usize,
    /// Number of steps.
    pub step_count: usize,
    /// The steps in order.
    pub steps: *const Step,
    /// What is proved about the plan, and of what: of one order of the operators, or of all.
    pub proved: *const c_char,
}

/// What a program does to run a model, and a place for every tensor.
#[derive(Debug)]
pub struct Schedule {
    view: ScheduleView,
    /// What the view points to.
    _places: Vec<Place>,
    _steps: Vec<Step>,
    _numbers: Vec<u64>,
    _texts: Vec<CString>,
}

/// Plans a model: writes a schedule, which `allotment_schedule_free` frees, and the figures of its plan.
///
/// `options` may be null for the defaults. Where the outcome is not `OK`, `*schedule` is null and `plan->message` says what is wrong. The
/// schedule has been executed once, with every tensor checked at each use.
///
/// # Safety
/// `model` and its pointers are valid as its fields say, and so are `options`; `schedule` and `plan` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_schedule(
    model: *const Model,
    options: *const Options,
    schedule: *mut *mut Schedule,
    plan: *mut Plan,
) -> Outcome {
    if plan.is_null() || schedule.is_null() {
        return Outcome::Argument;
    }
    // SAFETY: the caller passes options that are valid, or null.
    let options = unsafe { known(options, allotment_options()) };
    // SAFETY: the pointers are as this function asks for.
    let made = guarded(|| unsafe { make(model, &options) });
    let mut handle = std::ptr::null_mut();
    let (outcome, written) = reported(made.map(|made| {
        if options.anyway || !exceeds(&made.solution) {
            handle = Box::into_raw(Box::new(Schedule::new(&made)));
        }
        figures(&made.solution, &options)
    }));
    // SAFETY: the caller passes a schedule and a plan to write to.
    unsafe {
        *schedule = handle;
        *plan = written;
    }
    outcome
}

/// Returns what a schedule holds; null for null.
///
/// # Safety
/// `schedule` is null or from `allotment_schedule`, and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_schedule_view(schedule: *const Schedule) -> *const ScheduleView {
    // SAFETY: the caller passes null or a live schedule.
    unsafe { schedule.as_ref() }.map_or(std::ptr::null(), |schedule| &raw const schedule.view)
}

/// Frees a schedule. Does nothing with null.
///
/// # Safety
/// `schedule` is null or from `allotment_schedule`, and not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_schedule_free(schedule: *mut Schedule) {
    if !schedule.is_null() {
        // SAFETY: the caller gives up a schedule that `Box::into_raw` returned.
        drop(unsafe { Box::from_raw(schedule) });
    }
}

/// Reads the model, changes it and plans it.
///
/// # Safety
/// As for [`allotment_schedule`].
unsafe fn make(model: *const Model, options: &Options) -> Result<Made, Failure> {
    let wrong = |what: String| (Outcome::Argument, what);
    if model.is_null() {
        return Err(wrong("`model` is null".into()));
    }
    // SAFETY: the caller's structure begins with its size.
    let own = unsafe { known(model, allotment_model(std::ptr::null(), 0, Form::Json as u32)) };
    // SAFETY: the caller passes that many bytes.
    let bytes = unsafe { slice(own.bytes, own.length, "bytes") }?;
    // SAFETY: the caller passes that many names.
    let names = unsafe { slice(own.dim_names, own.dim_count, "dim_names") }?;
    // SAFETY: the caller passes that many sizes.
    let sizes = unsafe { slice(own.dim_sizes, own.dim_count, "dim_sizes") }?;
    let mut dims = BTreeMap::new();
    for (&name, &size) in names.iter().zip(sizes) {
        if name.is_null() {
            return Err(wrong("a name of `dim_names` is null".into()));
        }
        // SAFETY: the caller passes texts that end with a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        dims.insert(name.to_string_lossy().into_owned(), size);
    }
    let refused = |error: &dyn std::fmt::Display| (Outcome::Instance, error.to_string());
    let graph = match own.form {
        form if form == Form::Json as u32 => json::read_json(bytes).map_err(|error| refused(&error))?,
        form if form == Form::Onnx as u32 => {
            onnx::read_onnx(bytes, &dims).map_err(|error| refused(&error))?
        }
        form if form == Form::Tflite as u32 => tflite::read_tflite(bytes).map_err(|error| refused(&error))?,
        form => return Err(wrong(format!("`form` is {form}"))),
    };
    if own.align == 0 {
        return Err(wrong("`align` is 0".into()));
    }
    let lowering = Lowering { weights: own.weights, inputs: own.inputs, align: own.align };
    let given = |number: u64| Some(number).filter(|&number| number != ALLOTMENT_NONE);
    let some = |number: u64| Some(number).filter(|&number| number > 0);
    let changes = Changes {
        in_place: own.in_place,
        reorder: own.reorder,
        rematerialise: some(own.rematerialise),
        stream: some(own.stream),
        spill: given(own.spill),
        joint: given(own.joint),
        seed: options.seed,
    };
    // SAFETY: the caller passes valid options.
    let search = unsafe { Search::new(options) }?;
    // The fields have the names of the program's options.
    let named = |error: ChangeError| error.to_string().replace("--", "").replace('-', "_");
    let changed = change(&graph, lowering, &changes, &search.deadline)
        .map_err(|error| (Outcome::Instance, named(error)))?;
    let solution = search.solve(&changed.lowered.instance)?;
    let schedule = Made { lowered: changed.lowered, solution };
    let defect = |error| (Outcome::Defect, format!("please report this: {error}"));
    replay(&schedule.written(), 1).map_err(defect)?;
    Ok(schedule)
}

impl Schedule {
    fn new(made: &Made) -> Self {
        let mut texts = Vec::new();
        // The bytes of a text stay where they are when the list grows.
        let mut text = |text: &str| -> *const c_char {
            let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
            texts.push(CString::new(bytes).unwrap_or_default());
            texts.last().map_or(std::ptr::null(), |text| text.as_ptr())
        };
        let places: Vec<Place> = made
            .placed()
            .map(|(place, offset)| Place {
                name: text(place.id),
                offset,
                size: place.size,
                lower: place.start,
                upper: place.end,
                tier: place.buffer.tier,
                within: place.number as u64,
            })
            .collect();
        let all = &made.lowered.steps;
        let operands = all.iter().flat_map(|step| step.reads.iter().chain(&step.writes));
        let numbers: Vec<u64> =
            operands.map(|operand| operand.place.map_or(ALLOTMENT_NONE, |n| n as u64)).collect();
        let mut first = 0;
        let steps: Vec<Step> = all
            .iter()
            .map(|step| {
                let (read_count, write_count) = (step.reads.len(), step.writes.len());
                let reads = numbers[first..first + read_count].as_ptr();
                let writes = numbers[first + read_count..first + read_count + write_count].as_ptr();
                first += read_count + write_count;
                let act = match step.act {
                    schedule::Act::Given => Act::Given,
                    schedule::Act::Run => Act::Run,
                    schedule::Act::Copy => Act::Copy,
                    schedule::Act::Load => Act::Load,
                    schedule::Act::Taken => Act::Taken,
                };
                let name = step.op.zip(made.lowered.graph.as_ref()).map(|(n, graph)| &graph.ops[n].name);
                let lies = match step.share {
                    Share::Apart => Lies::Apart,
                    Share::View => Lies::View,
                    Share::Overwrite => Lies::Over,
                };
                let (time, operator_name) = (step.time, text(name.map_or("", String::as_str)));
                let (chunk, chunks) = step.chunk;
                Step { time, act, lies, operator_name, chunk, chunks, reads, read_count, writes, write_count }
            })
            .collect();
        let proved = text(&made.proved());
        let view = ScheduleView {
            version: ALLOTMENT_PLANNER_VERSION,
            place_size: size_of::<Place>(),
            place_count: places.len(),
            places: places.as_ptr(),
            step_size: size_of::<Step>(),
            step_count: steps.len(),
            steps: steps.as_ptr(),
            proved,
        };
        Self { view, _places: places, _steps: steps, _numbers: numbers, _texts: texts }
    }
}
