//! `allotment_planner._native`: the planner for Python. The package beside it has the interface for users.
//!
//! Columns of numbers cross the border as bytes, 8 to a number in the machine's order: both NumPy and `array` make and take those
//! without a look at each number.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use allotment_planner::graph::{Graph, Kind, Lowering};
use allotment_planner::import::{json, onnx, tflite};
use allotment_planner::model::{Buffer, Gap, Instance};
use allotment_planner::schedule::{self, Changes, Lowered, Schedule};
use allotment_planner::solve::{self, Options, Progress, Status};
use allotment_planner::{read, transform, validate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Stands for "none" in the columns of fixed offsets, hints and partners.
const NONE: u64 = u64::MAX;

/// How often the waiting thread looks at signals and at the caller's cancel function.
const LOOK: Duration = Duration::from_millis(20);

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The numbers of a column.
fn numbers<T>(column: &[u8], name: &str, number: fn([u8; 8]) -> T) -> PyResult<Vec<T>> {
    let chunks = column.chunks_exact(8);
    if !chunks.remainder().is_empty() {
        return Err(PyValueError::new_err(format!("`{name}` is no column of 64-bit numbers")));
    }
    Ok(chunks.map(|chunk| number(chunk.try_into().unwrap_or_default())).collect())
}

/// A gap: its buffer, first step, the step after its last, and the bytes that stay in use.
type PyGap = (usize, i64, i64, Option<(u64, u64)>);

/// The buffers to be placed.
#[pyclass(frozen, module = "allotment_planner._native")]
struct Problem {
    lowered: Lowered,
}

impl Problem {
    fn of(instance: Instance) -> Self {
        Self { lowered: Lowered::of(instance) }
    }
}

/// The deadline of a call.
fn deadline(seconds: f64, work: Option<u64>) -> PyResult<Options> {
    let seconds = if seconds > 1e9 { 1e9 } else { seconds };
    let time_limit = Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err("`time_limit` is negative or not a number"))?;
    Ok(Options { time_limit, work, ..Options::default() })
}

#[pymethods]
impl Problem {
    #[new]
    #[pyo3(signature = (sizes, lower, upper, *, names=None, align=None, fixed=None, hint=None, alias=None, tier=None, gaps=Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        sizes: &[u8],
        lower: &[u8],
        upper: &[u8],
        names: Option<Vec<String>>,
        align: Option<&[u8]>,
        fixed: Option<&[u8]>,
        hint: Option<&[u8]>,
        alias: Option<&[u8]>,
        tier: Option<&[u8]>,
        gaps: Vec<PyGap>,
    ) -> PyResult<Self> {
        let sizes = numbers(sizes, "sizes", u64::from_ne_bytes)?;
        let count = sizes.len();
        let fits = |found: usize, name: &str| match found == count {
            true => Ok(()),
            false => Err(PyValueError::new_err(format!("{count} sizes, but {found} in `{name}`"))),
        };
        let times = |column: &[u8], name: &str| {
            let times = numbers(column, name, i64::from_ne_bytes)?;
            fits(times.len(), name).map(|()| times)
        };
        let (lower, upper) = (times(lower, "lower")?, times(upper, "upper")?);
        let optional = |column: Option<&[u8]>, name: &str| -> PyResult<Option<Vec<u64>>> {
            let Some(column) = column else { return Ok(None) };
            let column = numbers(column, name, u64::from_ne_bytes)?;
            fits(column.len(), name).map(|()| Some(column))
        };
        let align = optional(align, "align")?;
        let fixed = optional(fixed, "fixed")?;
        let hint = optional(hint, "hint")?;
        let alias = optional(alias, "alias")?;
        let tier = optional(tier, "tier")?;
        if let Some(names) = &names {
            fits(names.len(), "names")?;
        }
        let mut names = names.unwrap_or_else(|| (0..count).map(|n| n.to_string()).collect()).into_iter();
        let given = |column: &Option<Vec<u64>>, n: usize| {
            column.as_ref().map(|column| column[n]).filter(|&n| n != NONE)
        };
        let mut buffers = Vec::with_capacity(count);
        for n in 0..count {
            let name = names.next().unwrap_or_default();
            let tier = given(&tier, n).unwrap_or(0);
            let tier = u32::try_from(tier)
                .map_err(|_| PyValueError::new_err(format!("tier {tier} of `{name}` is above 2^32")))?;
            // Unlike in the other columns, no alignment stands for "none".
            let align = align.as_ref().map_or(1, |column| column[n]);
            if align > i64::MAX as u64 {
                return Err(PyValueError::new_err(format!("`align`: {align} of `{name}` is 2^63 or more")));
            }
            buffers.push(Buffer {
                align,
                fixed: given(&fixed, n),
                hint: given(&hint, n),
                alias: given(&alias, n).map(|other| usize::try_from(other).unwrap_or(usize::MAX)),
                tier,
                ..Buffer::new(name, sizes[n], lower[n], upper[n])
            });
        }
        for (n, start, end, window) in gaps {
            let buffer = buffers.get_mut(n);
            let buffer =
                buffer.ok_or_else(|| PyValueError::new_err(format!("a gap of buffer {n} of {count}")))?;
            buffer.gaps.push(Gap { start, end, window });
        }
        Ok(Self::of(Instance::new(buffers).map_err(value_error)?))
    }

    /// Reads the project's CSV: MiniMalloc's columns and more.
    #[staticmethod]
    fn from_csv(text: &[u8]) -> PyResult<Self> {
        Ok(Self::of(read::read_csv(text).map_err(value_error)?))
    }

    fn __len__(&self) -> usize {
        self.lowered.instance.len()
    }

    #[getter]
    fn names(&self) -> Vec<&str> {
        self.lowered.instance.buffers().iter().map(|buffer| buffer.id.as_str()).collect()
    }

    #[getter]
    fn sizes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        column(py, self.lowered.instance.buffers(), |buffer| buffer.size.to_ne_bytes())
    }

    #[getter]
    fn lower<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        column(py, self.lowered.instance.buffers(), |buffer| buffer.start.to_ne_bytes())
    }

    #[getter]
    fn upper<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        column(py, self.lowered.instance.buffers(), |buffer| buffer.end.to_ne_bytes())
    }

    #[getter]
    fn align<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        column(py, self.lowered.instance.buffers(), |buffer| buffer.align.to_ne_bytes())
    }

    /// Plans; other Python threads run meanwhile. `progress` gets seconds, peak and bound; `cancel` is asked whether to end.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (*, capacities, time_limit, threads, seed, work=None, progress=None, cancel=None))]
    fn solve(
        &self,
        py: Python<'_>,
        capacities: BTreeMap<u32, u64>,
        time_limit: f64,
        threads: usize,
        seed: u64,
        work: Option<u64>,
        progress: Option<Py<PyAny>>,
        cancel: Option<Py<PyAny>>,
    ) -> PyResult<Solution> {
        if threads == 0 {
            return Err(PyValueError::new_err("`threads` is 0"));
        }
        // A model moves tensors to tier 1 only if it must.
        let most = if self.lowered.graph.is_some() { Some(1) } else { None };
        let buffers = self.lowered.instance.buffers();
        let is_used = |&tier: &u32| Some(tier) <= most || buffers.iter().any(|buffer| buffer.tier == tier);
        if let Some(tier) = capacities.keys().find(|&tier| !buffers.is_empty() && !is_used(tier)) {
            return Err(PyValueError::new_err(format!("`capacity`: no buffer is in tier {tier}")));
        }
        let options = Options { threads, seed, ..deadline(time_limit, work)? };
        let (teller, told) = channel::<Progress>();
        let teller = std::sync::Mutex::new(teller);
        let (instance, options, capacities) = (&self.lowered.instance, &options, &capacities);
        let (solution, raised) = py.detach(move || {
            std::thread::scope(|scope| {
                // What the caller's functions raise ends the search, and is raised again afterwards.
                let mut raised = None;
                let work = move || {
                    let watch = |progress| {
                        let teller = teller.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        // Nothing is lost if the listener is gone.
                        let _ = teller.send(progress);
                    };
                    solve::solve_checked(instance, options, capacities, &options.deadline(), Some(&watch))
                };
                let search = scope.spawn(work);
                let mut looked = Instant::now();
                loop {
                    let news = match told.recv_timeout(LOOK) {
                        Ok(news) => Some(news),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(RecvTimeoutError::Disconnected) => break,
                    };
                    let look = |py: Python<'_>| -> PyResult<bool> {
                        py.check_signals()?;
                        if let (Some(news), Some(progress)) = (news, &progress) {
                            progress.call1(py, (news.elapsed.as_secs_f64(), news.peak, news.lower_bound))?;
                        }
                        cancel.as_ref().map_or(Ok(false), |cancel| cancel.call0(py)?.is_truthy(py))
                    };
                    let due = looked.elapsed() >= LOOK || (news.is_some() && progress.is_some());
                    if raised.is_none() && due {
                        looked = Instant::now();
                        match Python::attach(look) {
                            Ok(false) => {}
                            Ok(true) => options.interrupt.store(true, Ordering::Relaxed),
                            Err(error) => {
                                options.interrupt.store(true, Ordering::Relaxed);
                                raised = Some(error);
                            }
                        }
                    }
                }
                (search.join(), raised)
            })
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let solution = solution.map_err(|_| {
            pyo3::exceptions::PyRuntimeError::new_err("the planner has a defect, please report it")
        })?;
        Ok(Solution { solution: solution.map_err(value_error)? })
    }

    /// Returns the places and steps of a plan as JSON.
    fn written(&self, solution: &Solution) -> String {
        let (lowered, solution) = (self.lowered.clone(), solution.solution.clone());
        serde_json::to_string(&Schedule { lowered, solution }.written()).unwrap_or_default()
    }

    /// Returns what is proved about a plan, and of what.
    fn proved(&self, solution: &Solution) -> String {
        let (lowered, solution) = (self.lowered.clone(), solution.solution.clone());
        Schedule { lowered, solution }.proved()
    }

    /// Returns what is wrong with a plan, or nothing.
    #[pyo3(signature = (offsets, capacity=None))]
    fn violation(&self, offsets: &[u8], capacity: Option<u64>) -> PyResult<Option<String>> {
        let offsets = numbers(offsets, "offsets", u64::from_ne_bytes)?;
        Ok(validate::validate(&self.lowered.instance, &offsets, capacity)
            .err()
            .map(|error| error.to_string()))
    }
}

fn column<'py>(py: Python<'py>, buffers: &[Buffer], number: fn(&Buffer) -> [u8; 8]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = buffers.iter().flat_map(number).collect();
    PyBytes::new(py, &bytes)
}

/// A plan and what is proved about it.
#[pyclass(frozen, module = "allotment_planner._native")]
struct Solution {
    solution: solve::Solution,
}

#[pymethods]
impl Solution {
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = self.solution.offsets.iter().flat_map(|offset| offset.to_ne_bytes()).collect();
        PyBytes::new(py, &bytes)
    }

    #[getter]
    fn peak(&self) -> u64 {
        self.solution.peak
    }

    #[getter]
    fn lower_bound(&self) -> u64 {
        self.solution.lower_bound
    }

    #[getter]
    fn status(&self) -> &'static str {
        match self.solution.status {
            Status::Optimal => "optimal",
            Status::Fits => "fits",
            Status::Gap => "gap",
            Status::Infeasible => "infeasible",
            Status::Inconclusive => "inconclusive",
        }
    }

    #[getter]
    fn nodes(&self) -> u64 {
        self.solution.nodes
    }

    #[getter]
    fn seconds(&self) -> f64 {
        self.solution.elapsed.as_secs_f64()
    }
}

/// A model's operators and tensors.
#[pyclass(frozen, module = "allotment_planner._native")]
struct Model {
    graph: Graph,
    /// The file, if it is one of TFLite.
    tflite: Option<Vec<u8>>,
}

#[pymethods]
impl Model {
    #[staticmethod]
    fn from_json(bytes: &[u8]) -> PyResult<Self> {
        Ok(Self { graph: json::read_json(bytes).map_err(value_error)?, tflite: None })
    }

    #[staticmethod]
    #[pyo3(signature = (bytes, dims, shapes=None, folder=None))]
    fn from_onnx(
        bytes: &[u8],
        dims: BTreeMap<String, u64>,
        shapes: Option<&[u8]>,
        folder: Option<PathBuf>,
    ) -> PyResult<Self> {
        let shapes = shapes.map(onnx::Shapes::read).transpose().map_err(value_error)?.unwrap_or_default();
        let graph =
            onnx::read_onnx_with(bytes, &dims, &shapes, folder.as_deref()).map_err(|error| match &error {
                onnx::OnnxError::OpenDims(open) => {
                    let sizes: Vec<String> = open.iter().map(|(name, _)| format!("{name:?}: 1")).collect();
                    value_error(format!(
                        "{error}: dims={{{}}}, or the inputs' shapes with shapes=",
                        sizes.join(", ")
                    ))
                }
                _ => value_error(error),
            })?;
        Ok(Self { graph, tflite: None })
    }

    #[staticmethod]
    fn from_tflite(bytes: &[u8]) -> PyResult<Self> {
        Ok(Self { graph: tflite::read_tflite(bytes).map_err(value_error)?, tflite: Some(bytes.into()) })
    }

    fn to_json(&self) -> String {
        json::write_json(&self.graph)
    }

    /// Whether operators have bodies, so that their order is not to be changed.
    #[getter]
    fn has_bodies(&self) -> bool {
        self.graph.has_bodies()
    }

    /// Whether each tensor is a constant.
    #[getter]
    fn constants(&self) -> Vec<bool> {
        self.graph.tensors.iter().map(|tensor| tensor.kind == Kind::Constant).collect()
    }

    /// The names of the tensors.
    #[getter]
    fn tensors(&self) -> Vec<&str> {
        self.graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    /// Returns the model in the order that needs the least memory, as far as it is found in the time. It is no longer that of a file.
    fn reordered(&self, py: Python<'_>, seconds: f64) -> PyResult<Self> {
        let deadline = deadline(seconds, None)?.deadline();
        let graph =
            py.detach(|| transform::reorder(&self.graph, Lowering::default(), false, &deadline).graph);
        Ok(Self { graph, tflite: None })
    }

    /// Returns what is to be placed after the changes, for each tensor the number of its buffer, and a line of text for each change.
    #[pyo3(signature = (*, align, weights, inputs, in_place=false, reorder=false, rematerialise=None, stream=None, spill=None, joint=None, seed=0, time_limit=60.0, work=None))]
    #[allow(clippy::too_many_arguments)]
    fn lowered(
        &self,
        py: Python<'_>,
        align: u64,
        weights: bool,
        inputs: bool,
        in_place: bool,
        reorder: bool,
        rematerialise: Option<u64>,
        stream: Option<u64>,
        spill: Option<u64>,
        joint: Option<u64>,
        seed: u64,
        time_limit: f64,
        work: Option<u64>,
    ) -> PyResult<(Problem, Vec<Option<usize>>, Vec<String>)> {
        let lowering = Lowering { weights, inputs, align };
        let changes = Changes { in_place, reorder, rematerialise, stream, spill, joint, seed };
        let deadline = deadline(time_limit, work)?.deadline();
        let changed = py
            .detach(|| schedule::change(&self.graph, lowering, &changes, &deadline))
            .map_err(|error| value_error(error.to_string().replace("--", "").replace('-', "_")))?;
        let places = changed.lowered.buffer_of();
        let places = (0..self.graph.tensors.len()).map(|n| places.get(n).copied().flatten()).collect();
        Ok((Problem { lowered: changed.lowered }, places, changed.told))
    }

    /// Returns the TFLite file with a plan in its metadata: one offset for each tensor, -1 for those that the interpreter places.
    fn with_offline_plan<'py>(&self, py: Python<'py>, offsets: Vec<i32>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.tflite.as_ref().ok_or_else(|| {
            PyValueError::new_err(
                "the model is none of TFLite, or its operators have another order than in the file",
            )
        })?;
        let written = tflite::write_offline_plan(bytes, &offsets).map_err(value_error)?;
        Ok(PyBytes::new(py, &written))
    }
}

/// Executes places and steps: fills each tensor when it is made and checks it at each use. Returns the numbers of steps, fillings and checks.
#[pyfunction]
fn replay(written: &str, runs: usize) -> PyResult<(usize, usize, usize)> {
    let written: schedule::Written = serde_json::from_str(written).map_err(value_error)?;
    let schedule::Replayed { steps, filled, checked } =
        schedule::replay(&written, runs).map_err(value_error)?;
    Ok((steps, filled, checked))
}

/// The native part of the package `allotment_planner`.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Problem>()?;
    module.add_class::<Solution>()?;
    module.add_class::<Model>()?;
    module.add_function(wrap_pyfunction!(replay, module)?)?;
    module.add("NONE", NONE)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
