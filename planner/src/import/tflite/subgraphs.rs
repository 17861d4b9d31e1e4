//! Writes out a model's subgraphs where they are called.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use super::super::{dtype, is_one_of};
use super::schema::{Model, Operator, SubGraph};
use super::{DTYPES, REFUSED, Result, TfliteError, arena, builtin};
use crate::graph::{Graph, Kind, Op, Sharing, Tensor};

/// Largest nesting depth of calls.
pub const DEPTH: usize = 64;

const IF: i32 = 118;
const WHILE: i32 = 119;
const CALL_ONCE: i32 = 129;
const VAR_HANDLE: i32 = 142;
const READ_VARIABLE: i32 = 143;
const ASSIGN_VARIABLE: i32 = 144;

/// The state of a subgraph while it is added to the graph.
#[derive(Clone, Default)]
struct Part {
    /// The number of its first tensor in the graph, and the number after its last.
    tensors: (usize, usize),
    /// Whether its operators are being added, and whether they have been added.
    active: bool,
    done: bool,
    /// The subgraphs that it calls.
    calls: Vec<usize>,
    /// Index of the operator after its last call, if it is called more than once.
    again: Option<usize>,
}

pub struct Reader<'a> {
    model: Model<'a>,
    graph: Graph,
    names: HashSet<String>,
    parts: Vec<Part>,
    /// For each tensor, whether an operator makes it.
    made: Vec<bool>,
    /// The variable behind each tensor that is a handle.
    handles: BTreeMap<usize, usize>,
    /// The number of each variable by its names.
    variables: BTreeMap<(String, String), usize>,
    /// For each variable, a tensor of its size.
    sizes: Vec<Option<usize>>,
    refused: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub fn new(model: Model<'a>) -> Self {
        Self {
            model,
            graph: Graph::default(),
            names: HashSet::new(),
            parts: Vec::new(),
            made: Vec::new(),
            handles: BTreeMap::new(),
            variables: BTreeMap::new(),
            sizes: Vec::new(),
            refused: BTreeSet::new(),
        }
    }

    fn subgraph(&self, number: usize) -> Option<SubGraph<'a>> {
        self.model.subgraphs().filter(|list| number < list.len()).map(|list| list.get(number))
    }

    /// Adds the tensors of the next subgraph.
    pub fn tensors(&mut self, number: usize) -> Result {
        let Some(subgraph) = self.subgraph(number) else { return Ok(()) };
        let buffers = self.model.buffers();
        let first = self.graph.tensors.len();
        for tensor in subgraph.tensors().iter().flatten() {
            let n = self.graph.tensors.len();
            let own = tensor.name().unwrap_or_default();
            let mut name = if number == 0 || own.is_empty() { own.into() } else { format!("{number}:{own}") };
            if name.is_empty() || !self.names.insert(name.clone()) {
                name = format!("{name}#{n}");
                self.names.insert(name.clone());
            }
            let (dtype_name, bits) = dtype(DTYPES, tensor.kind().into());
            let shape: Vec<i32> = tensor.shape().iter().flatten().collect();
            let dims: Option<Vec<u64>> = shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
            let Some(dims) = dims else {
                return Err(TfliteError::OpenShape { tensor: name, shape });
            };
            let count = buffers.map_or(0, |buffers| buffers.len());
            let at = tensor.buffer() as usize;
            let constant = match buffers.filter(|_| at < count).map(|buffers| buffers.get(at)) {
                Some(buffer) => buffer.data().is_some_and(|data| !data.is_empty()) || buffer.size() > 0,
                None if at == 0 => false,
                None => {
                    let what = format!("the buffer of tensor `{name}`");
                    return Err(TfliteError::Index { what, index: at as i64, count });
                }
            };
            if bits == 0 && !constant {
                return Err(TfliteError::Type { tensor: name, dtype: tensor.kind() });
            }
            let elements = dims.iter().try_fold(1_u64, |count, &dim| count.checked_mul(dim));
            let bytes =
                elements.and_then(|count| count.checked_mul(bits)).map_or(u64::MAX, |bits| bits.div_ceil(8));
            let kind = match () {
                () if constant => Kind::Constant,
                () if tensor.is_variable() => Kind::Persistent,
                () => Kind::Intermediate,
            };
            self.graph.tensors.push(Tensor { name, shape: dims, dtype: dtype_name.into(), bytes, kind });
        }
        self.made.resize(self.graph.tensors.len(), false);
        self.parts.push(Part { tensors: (first, self.graph.tensors.len()), ..Part::default() });
        Ok(())
    }

    /// Returns the tensor of the graph for an index within a subgraph.
    fn tensor(&self, number: usize, what: &str, index: i32) -> Result<usize> {
        let (first, end) = self.parts[number].tensors;
        let found = usize::try_from(index).ok().filter(|&index| index < end - first);
        let wrong = || TfliteError::Index { what: what.into(), index: index.into(), count: end - first };
        found.map(|index| first + index).ok_or_else(wrong)
    }

    /// Returns the tensors of a list; -1 stands for an optional tensor that is not given.
    fn list(
        &self,
        number: usize,
        what: &str,
        list: Option<flatbuffers::Vector<'a, i32>>,
    ) -> Result<Vec<usize>> {
        let given = list.iter().flatten().filter(|&index| index != -1);
        given.map(|index| self.tensor(number, what, index)).collect()
    }

    /// Adds the operators of the first subgraph and of all subgraphs that it calls.
    pub fn run(mut self) -> Result<Graph> {
        let Some(subgraph) = self.subgraph(0) else { return Ok(self.graph) };
        let what = "the graph's inputs or outputs";
        for (list, kind) in [(subgraph.outputs(), Kind::Output), (subgraph.inputs(), Kind::Input)] {
            for tensor in self.list(0, what, list)? {
                if self.graph.tensors[tensor].kind == Kind::Intermediate {
                    self.graph.tensors[tensor].kind = kind;
                }
            }
        }
        self.operators(0, 0)?;
        if !self.refused.is_empty() {
            return Err(TfliteError::Unsupported(self.refused.into_iter().collect()));
        }
        self.keep();
        self.persistent();
        Ok(self.graph)
    }

    /// Adds the operators of a subgraph.
    fn operators(&mut self, number: usize, depth: usize) -> Result {
        if depth > DEPTH {
            return Err(TfliteError::Circle(number));
        }
        self.parts[number].active = true;
        let Some(subgraph) = self.subgraph(number) else { return Ok(()) };
        for (n, operator) in subgraph.operators().iter().flatten().enumerate() {
            let prefix = if number == 0 { String::new() } else { format!("{number}.") };
            let place = format!("operator {prefix}{n}");
            let (code, kind) = self.code(&place, operator)?;
            if REFUSED.contains(&code) {
                self.refused.insert(kind.clone());
            }
            let inputs = self.list(number, &place, operator.inputs())?;
            let mut outputs = Vec::new();
            for index in operator.outputs().iter().flatten() {
                let tensor = self.tensor(number, &place, index)?;
                if std::mem::replace(&mut self.made[tensor], true) {
                    return Err(TfliteError::Twice(tensor));
                }
                outputs.push(tensor);
            }
            let sharing = match kind.as_str() {
                kind if is_one_of(builtin::VIEWS, kind) => Sharing::View,
                kind if is_one_of(builtin::IN_PLACE, kind) => Sharing::InPlace,
                _ => Sharing::None,
            };
            let cost = outputs.first().map_or(0, |&n| self.graph.tensors[n].elements());
            let name = format!("{prefix}{n}:{kind}");
            outputs.extend(self.scratch(&name, &kind, &inputs, outputs.first()));
            let op = Op { name, kind, inputs, outputs, sharing, cost };
            match code {
                VAR_HANDLE => self.handle(operator, &op)?,
                READ_VARIABLE => self.variable(op.inputs.first(), op.outputs.first()),
                ASSIGN_VARIABLE => self.variable(op.inputs.first(), op.inputs.get(1)),
                _ => {}
            }
            self.graph.ops.push(op.clone());
            if matches!(code, IF | WHILE | CALL_ONCE) {
                self.call(number, operator, code, &op, depth)?;
            }
        }
        self.parts[number].active = false;
        self.parts[number].done = true;
        Ok(())
    }

    /// Adds a tensor for each scratch buffer of a kernel.
    fn scratch(&mut self, op: &str, kind: &str, inputs: &[usize], output: Option<&usize>) -> Range<usize> {
        let tensors = &self.graph.tensors;
        let inputs: Vec<&Tensor> = inputs.iter().map(|&input| &tensors[input]).collect();
        let sizes = arena::scratch(kind, &inputs, output.map(|&output| &tensors[output]));
        let first = tensors.len();
        for (n, bytes) in sizes.into_iter().enumerate() {
            let mut name = format!("{op}.scratch{n}");
            while !self.names.insert(name.clone()) {
                name.push('\'');
            }
            let (shape, dtype, kind) = (vec![bytes], "uint8".into(), Kind::Intermediate);
            self.graph.tensors.push(Tensor { name, shape, dtype, bytes, kind });
            self.made.push(true);
        }
        first..self.graph.tensors.len()
    }

    /// Returns an operator's number and name.
    fn code(&self, place: &str, operator: Operator<'a>) -> Result<(i32, String)> {
        let codes = self.model.operator_codes();
        let (at, count) = (operator.opcode_index() as usize, codes.map_or(0, |codes| codes.len()));
        let Some(code) = codes.filter(|_| at < count).map(|codes| codes.get(at)) else {
            let what = format!("the code of {place}");
            return Err(TfliteError::Index { what, index: at as i64, count });
        };
        let number = code.builtin_code().max(i32::from(code.deprecated_builtin_code()));
        let kind = match code.custom_code() {
            Some(custom) if number == 32 => custom.to_string(),
            _ => builtin::name(number),
        };
        Ok((number, kind))
    }

    /// Adds the subgraphs that an operator calls.
    fn call(&mut self, number: usize, operator: Operator<'a>, code: i32, op: &Op, depth: usize) -> Result {
        let missing = |what| TfliteError::Missing { op: op.name.clone(), kind: op.kind.clone(), what };
        let calls = operator.calls()?.ok_or_else(|| missing("list of subgraphs"))?;
        let called = match code {
            IF => vec![("then", calls.first()), ("else", calls.second())],
            WHILE => vec![("cond", calls.first()), ("body", calls.second())],
            _ => vec![("init", calls.first())],
        };
        for (label, index) in called {
            let count = self.parts.len();
            let Some(inner) = usize::try_from(index).ok().filter(|&inner| inner < count) else {
                let what = format!("the subgraph `{label}` of {}", op.name);
                return Err(TfliteError::Index { what, index: index.into(), count });
            };
            if self.parts[inner].active {
                return Err(TfliteError::Circle(inner));
            }
            self.parts[number].calls.push(inner);
            // The operator's inputs and outputs live until its subgraphs have run.
            let mut kept: Vec<usize> = op.inputs.iter().chain(&op.outputs).copied().collect();
            if self.parts[inner].done {
                // Its tensors have one place for all calls: they live from the first call to the last.
                self.parts[inner].again = Some(self.graph.ops.len());
            } else {
                let Some(subgraph) = self.subgraph(inner) else { continue };
                let what = format!("the inputs or outputs of subgraph {inner}");
                let given = self.list(inner, &what, subgraph.inputs())?;
                let results = self.list(inner, &what, subgraph.outputs())?;
                let begin = self.graph.ops.len();
                self.marker(op, label, op.inputs.clone());
                self.make(begin, given);
                self.operators(inner, depth + 1)?;
                self.make(begin, results.clone());
                kept.extend(results);
            }
            self.marker(op, &format!("{label}.end"), kept);
        }
        Ok(())
    }

    /// Adds an operator that marks the start or the end of a subgraph.
    fn marker(&mut self, op: &Op, label: &str, inputs: Vec<usize>) {
        let (name, kind) = (format!("{}.{label}", op.name), format!("{}.{label}", op.kind));
        self.graph.ops.push(Op::marker(name, kind, inputs));
    }

    /// Adds, to the outputs of the operator before a subgraph, the `tensors` that no operator in it makes.
    fn make(&mut self, begin: usize, tensors: Vec<usize>) {
        for tensor in tensors {
            let own = self.graph.tensors[tensor].kind == Kind::Intermediate;
            if own && !std::mem::replace(&mut self.made[tensor], true) {
                self.graph.ops[begin].outputs.push(tensor);
            }
        }
    }

    /// Records the variable behind a handle. The handle itself needs no memory in the plan: the interpreter holds it.
    fn handle(&mut self, operator: Operator<'a>, op: &Op) -> Result {
        let missing = || TfliteError::Missing { op: op.name.clone(), kind: op.kind.clone(), what: "name" };
        let told = operator.var_handle()?.ok_or_else(missing)?;
        let shared = told.shared_name().ok_or_else(missing)?;
        let container = told.container().unwrap_or_default();
        let next = self.sizes.len();
        let number = *self.variables.entry((container.into(), shared.into())).or_insert(next);
        if number == next {
            self.sizes.push(None);
        }
        for &output in &op.outputs {
            self.graph.tensors[output].bytes = 0;
            self.handles.insert(output, number);
        }
        Ok(())
    }

    /// Records that a variable is as large as `value`, which is read from it or written to it.
    fn variable(&mut self, handle: Option<&usize>, value: Option<&usize>) {
        let number = handle.and_then(|handle| self.handles.get(handle));
        if let (Some(&number), Some(&value)) = (number, value) {
            let size = |tensor: usize| self.graph.tensors[tensor].bytes;
            let known = &mut self.sizes[number];
            if known.is_none_or(|known| size(known) < size(value)) {
                *known = Some(value);
            }
        }
    }

    /// Extends the lives of tensors in subgraphs that are called again to the last call.
    fn keep(&mut self) {
        let mut order: Vec<usize> =
            (0..self.parts.len()).filter(|&n| self.parts[n].again.is_some()).collect();
        order.sort_by_key(|&n| std::cmp::Reverse(self.parts[n].again));
        let mut seen = vec![false; self.parts.len()];
        for last in order {
            let Some(op) = self.parts[last].again else { continue };
            let mut waiting = vec![last];
            while let Some(part) = waiting.pop() {
                if std::mem::replace(&mut seen[part], true) {
                    continue;
                }
                let (first, end) = self.parts[part].tensors;
                let own = (first..end).filter(|&n| self.made[n]);
                self.graph.ops[op].inputs.extend(own);
                waiting.extend(&self.parts[part].calls);
            }
        }
    }

    /// Makes the first handle of each variable represent its memory.
    fn persistent(&mut self) {
        let mut seen = vec![false; self.sizes.len()];
        for (&handle, &variable) in &self.handles {
            if std::mem::replace(&mut seen[variable], true) {
                continue;
            }
            let value = self.sizes[variable].map(|value| self.graph.tensors[value].clone());
            let handle = &mut self.graph.tensors[handle];
            handle.kind = Kind::Persistent;
            if let Some(Tensor { shape, dtype, bytes, .. }) = value {
                *handle = Tensor { shape, dtype, bytes, ..handle.clone() };
            }
        }
    }
}
