//! `If`, `Loop` and `Scan`: their bodies become operators of the graph.
//!
//! The operator itself comes before its bodies and makes the tensors that live throughout: its outputs, and the tensors passed from one
//! round of a loop to the next. An operator of the kind `If.end` (`Loop.end`, `Scan.end`) follows the bodies and reads all tensors that
//! must live until then. The branches of an `If` follow each other, though only one runs: no tensor is live in both, so they share their
//! memory. A branch that a known test rules out, or that does not fit the shapes, is left out.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::infer::{BOOL, INT64, Value, attribute, axis};
use super::proto::{Attribute, GraphProto, Node};
use super::{Frame, Known, OnnxError, Reader, Result, Scope};
use crate::graph::{Graph, Kind, Op, Sharing};

/// The kind of the operator that replaces a branch which cannot run, because it does not fit the shapes. Its name gives the reason.
pub const UNREACHABLE: &str = "If.unreachable";

/// Returns whether the operator has bodies that this importer knows.
pub fn known(node: &Node) -> bool {
    let standard = node.domain.is_empty() || node.domain == "ai.onnx";
    standard && matches!(node.op_type.as_str(), "If" | "Loop" | "Scan")
}

/// An operator that other operators replace, and its surroundings.
pub struct Outer<'a, 'm> {
    pub node: &'m Node,
    pub name: &'m str,
    pub frame: &'a Frame<'a, 'm>,
    pub inputs: &'a [Known],
}

impl<'m> Outer<'_, 'm> {
    pub fn fails(&self, what: impl Into<String>) -> OnnxError {
        OnnxError::Node { node: self.name.into(), op: self.node.op_type.clone(), what: what.into() }
    }

    fn attribute(&self, name: &str) -> Option<&'m Attribute> {
        attribute(self.node, self.frame.given, name)
    }

    fn body(&self, name: &str) -> Result<&'m GraphProto> {
        let body = self.attribute(name).and_then(|attribute| attribute.g.as_ref());
        body.ok_or_else(|| self.fails(format!("its {name} is missing")))
    }

    fn input(&self, n: usize) -> Option<&(usize, Value)> {
        self.inputs.get(n).and_then(Option::as_ref)
    }

    fn ints(&self, name: &str) -> &'m [i64] {
        self.attribute(name).map_or(&[], |attribute| &attribute.ints)
    }
}

/// How a body's output becomes an output of the operator.
#[derive(Clone, Copy)]
enum Joined {
    /// Unchanged.
    Whole,
    /// Stacked along an axis, this many times; `None` if the number is not known before the model runs.
    Stacked(usize, Option<u64>),
}

impl<'m> Reader<'m> {
    /// Adds an operator with its bodies.
    pub(super) fn bodies(&mut self, outer: &Outer<'_, 'm>, scope: &mut Scope<'_, 'm>) -> Result {
        match outer.node.op_type.as_str() {
            "If" => self.branches(outer, scope),
            "Loop" => self.rounds(outer, scope),
            _ => self.scan(outer, scope),
        }
    }

    /// Adds the operator that comes before the bodies, without outputs so far; returns its index.
    fn begin(&mut self, outer: &Outer) -> Result<usize> {
        let inputs = outer.inputs.iter().flatten().map(|(number, _)| *number).collect();
        let op = Op::marker(String::new(), outer.node.op_type.clone(), inputs);
        self.op(outer.frame, outer.name, op)?;
        Ok(self.made.ops.len() - 1)
    }

    /// Adds the operator that comes after the bodies and reads `kept`.
    fn end(&mut self, outer: &Outer, kept: BTreeSet<usize>) -> Result {
        let (kind, inputs) = (format!("{}.end", outer.node.op_type), kept.into_iter().collect());
        self.op(outer.frame, &format!("{}.end", outer.name), Op::marker(String::new(), kind, inputs))
    }

    /// Removes all operators after the first `ops`, and all tensors after the first `tensors`.
    fn forget(&mut self, ops: usize, tensors: usize) {
        self.made.ops.truncate(ops);
        for (number, tensor) in self.made.tensors.drain(tensors..).enumerate() {
            self.names.remove(&tensor.name);
            self.merged.remove(&(tensors + number));
        }
        self.makers.truncate(tensors);
    }

    /// Adds an operator in place of a branch that cannot run, with the reason in its name.
    fn unreachable(&mut self, outer: &Outer, branch: &str, why: &OnnxError) -> Result {
        let name = format!("{}/{branch}: {why}", outer.name);
        self.made.ops.push(Op::marker(name.clone(), UNREACHABLE.into(), Vec::new()));
        self.charge(outer.frame, name.len())
    }

    /// Adds a body's nodes; returns its outputs.
    fn body(
        &mut self,
        outer: &Outer<'_, 'm>,
        body: &'m GraphProto,
        prefix: String,
        mut scope: Scope<'_, 'm>,
    ) -> Result<Vec<(usize, Value)>> {
        let frame = outer.frame.inner(prefix, [&body.value_info, &body.output]);
        self.constants(body, &frame, &mut scope)?;
        self.nodes(&body.node, &frame, &mut scope)?;
        let missing = |name: &str| outer.fails(format!("nothing makes the output `{name}` of its body"));
        let output = |name: &str| scope.get(name).flatten().cloned().ok_or_else(|| missing(name));
        body.output.iter().map(|info| output(&info.name)).collect()
    }

    fn branches(&mut self, outer: &Outer<'_, 'm>, scope: &mut Scope<'_, 'm>) -> Result {
        let branch = |name: &str| {
            let body = outer.body(name)?;
            if body.input.is_empty() { Ok(body) } else { Err(outer.fails(format!("its {name} has inputs"))) }
        };
        let bodies = [("then_branch", branch("then_branch")?), ("else_branch", branch("else_branch")?)];
        let test = outer.input(0).and_then(|(_, value)| value.data.ints()?.first());
        if let Some(&test) = test {
            // Exporters write a constant test for facts they do not know themselves; the other branch may not even fit the shapes.
            let (name, body) = bodies[usize::from(test == 0)];
            let from = self.made.tensors.len();
            let prefix = self.prefix(outer.frame, outer.name, &format!("{name}/"));
            let results = self.body(outer, body, prefix, Scope::within(scope))?;
            return self.bind(outer, from, results.into_iter().map(Some).collect(), scope);
        }
        let begin = self.begin(outer)?;
        let mut results: Vec<Vec<(usize, Value)>> = Vec::new();
        let mut ranges = Vec::new();
        let mut unfit = None;
        for (name, body) in bodies {
            let (ops, tensors) = (self.made.ops.len(), self.made.tensors.len());
            let prefix = self.prefix(outer.frame, outer.name, &format!("{name}/"));
            match self.body(outer, body, prefix, Scope::within(scope)) {
                Ok(outputs) => {
                    results.push(outputs);
                    ranges.push((ops, self.made.ops.len()));
                }
                // A branch that does not fit the shapes cannot run with them: the model takes the other one.
                Err(error @ OnnxError::Node { .. }) if unfit.is_none() => {
                    self.forget(ops, tensors);
                    self.unreachable(outer, name, &error)?;
                    unfit = Some(error);
                }
                Err(error) => return Err(unfit.unwrap_or(error)),
            }
        }
        let count = outer.node.output.len();
        if results.iter().any(|outputs| outputs.len() != count) {
            return Err(outer.fails(format!("its branches do not have {count} outputs")));
        }
        let mut kept = BTreeSet::new();
        for (n, name) in outer.node.output.iter().enumerate() {
            let (then, other) = (&results[0][n], &results[results.len() - 1][n]);
            if then.1.dtype != other.1.dtype {
                return Err(outer.fails(format!("its branches make `{name}` of two types")));
            }
            // Use the larger result: the smaller lies in its memory.
            let larger = if self.made.tensors[then.0].bytes >= self.made.tensors[other.0].bytes {
                then
            } else {
                other
            };
            let value = if then.1 == other.1 { then.1.clone() } else { larger.1.unknown() };
            let number = self.output(outer, begin, name, &value, scope)?;
            for (result, &range) in results.iter().zip(&ranges) {
                self.merge(result[n].0, number, range);
            }
            kept.insert(number);
        }
        self.end(outer, kept)
    }

    fn rounds(&mut self, outer: &Outer<'_, 'm>, scope: &mut Scope<'_, 'm>) -> Result {
        let body = outer.body("body")?;
        let carried = outer.inputs.len().saturating_sub(2);
        if body.input.len() != carried + 2 || body.output.len() < carried + 1 {
            return Err(outer.fails("the inputs and outputs of its body do not fit its own"));
        }
        let count = outer.input(0).and_then(|(_, value)| value.data.ints()?.first().copied());
        let count = count.map(|count| u64::try_from(count).unwrap_or(0));
        let scalar = |dtype| Value::new(vec![], dtype);
        let mut given = vec![scalar(INT64), scalar(BOOL)];
        for n in 0..carried {
            let (_, value) =
                outer.input(n + 2).ok_or_else(|| outer.fails(format!("input {} is missing", n + 2)))?;
            given.push(value.unknown());
        }
        let mut results: Vec<Joined> = (0..carried).map(|_| Joined::Whole).collect();
        results.extend((carried + 1..body.output.len()).map(|_| Joined::Stacked(0, count)));
        self.repeated(outer, body, (&given, 2), 1, &results, scope)
    }

    fn scan(&mut self, outer: &Outer<'_, 'm>, scope: &mut Scope<'_, 'm>) -> Result {
        let body = outer.body("body")?;
        let attribute = outer.attribute("num_scan_inputs");
        let slices = attribute.and_then(|attribute| usize::try_from(attribute.i).ok()).unwrap_or(0);
        let Some(states) = outer.inputs.len().checked_sub(slices).filter(|_| slices > 0) else {
            return Err(outer.fails("its num_scan_inputs does not fit its inputs"));
        };
        if body.input.len() != outer.inputs.len() || body.output.len() < states {
            return Err(outer.fails("the inputs and outputs of its body do not fit its own"));
        }
        let (axes, into) = (outer.ints("scan_input_axes"), outer.ints("scan_output_axes"));
        let mut given = Vec::new();
        let mut count = None;
        for n in 0..outer.inputs.len() {
            let (_, value) = outer.input(n).ok_or_else(|| outer.fails(format!("input {n} is missing")))?;
            let mut value = value.unknown();
            if let Some(slice) = n.checked_sub(states) {
                let axis = axis(axes.get(slice).copied().unwrap_or(0), value.shape.len()).ok();
                let axis = axis.ok_or_else(|| outer.fails("its scan_input_axes do not fit its inputs"))?;
                let length = value.shape.remove(axis);
                if count.is_some_and(|count| count != length) {
                    return Err(outer.fails("its inputs are of different lengths"));
                }
                count = Some(length);
            }
            given.push(value);
        }
        let mut results: Vec<Joined> = (0..states).map(|_| Joined::Whole).collect();
        for n in 0..body.output.len() - states {
            let axis = into.get(n).copied().unwrap_or(0);
            results.push(Joined::Stacked(usize::try_from(axis).unwrap_or(usize::MAX), count));
        }
        self.repeated(outer, body, (&given, 0), 0, &results, scope)
    }

    /// Adds a body that runs repeatedly. `given` are its inputs, which from number `first` on pass from round to round; of its outputs,
    /// `skipped` come before the `results`.
    fn repeated(
        &mut self,
        outer: &Outer<'_, 'm>,
        body: &'m GraphProto,
        (given, first): (&[Value], usize),
        skipped: usize,
        results: &[Joined],
        scope: &mut Scope<'_, 'm>,
    ) -> Result {
        if outer.node.output.len() > results.len() {
            return Err(outer.fails("its body has fewer outputs than it"));
        }
        let begin = self.begin(outer)?;
        let prefix = self.prefix(outer.frame, outer.name, "body/");
        let frame = outer.frame.inner(prefix.clone(), [&body.value_info, &body.output]);
        let mut inner = Scope::within(scope);
        let mut kept = BTreeSet::new();
        for (input, value) in body.input.iter().zip(given) {
            let number = self.add(&frame, &input.name, value, Kind::Intermediate)?;
            inner.names.insert(&input.name, Some((number, value.clone())));
            self.makes(begin, number);
            kept.insert(number);
        }
        let from = self.made.ops.len();
        let outside = self.made.tensors.len();
        let outputs = self.body(outer, body, prefix, inner)?;
        let range = (from, self.made.ops.len());
        // Tensors from outside are read in every round.
        let read = self.made.ops[from..].iter().flat_map(|op| &op.inputs);
        kept.extend(read.copied().filter(|&number| number < outside));
        // The condition lives until the next round begins, as do outputs that become that round's inputs or parts of a stacked output.
        let mut last: Vec<usize> = outputs.iter().map(|(number, _)| *number).collect();
        for (n, &joined) in results.iter().enumerate() {
            let (number, value) = &outputs[skipped + n];
            let name = outer.node.output.get(n).filter(|name| !name.is_empty());
            let value = match joined {
                Joined::Whole => {
                    let before = &given[first + n].shape;
                    if value.shape != *before {
                        let body = &body.output[skipped + n].name;
                        return Err(outer.fails(format!(
                            "`{body}` goes in as {before:?} and comes out as {:?}",
                            value.shape
                        )));
                    }
                    value.clone()
                }
                Joined::Stacked(axis, Some(count)) if axis <= value.shape.len() => {
                    let mut shape = value.shape.clone();
                    shape.insert(axis, count);
                    Value::new(shape, value.dtype)
                }
                Joined::Stacked(..) => {
                    let Some(name) = name else { continue };
                    let stated = self.stated(outer.frame.infos);
                    let prefix = &outer.frame.prefix;
                    let told = self.recorded.output(outer.node, prefix, &stated, n, Some(value.dtype));
                    told.ok_or_else(|| {
                        outer.fails(format!(
                            "how often it runs is not known: give the shape of `{name}` with --shapes"
                        ))
                    })?
                }
            };
            let Some(name) = name else { continue };
            let made = self.output(outer, begin, name, &value.unknown(), scope)?;
            kept.insert(made);
            if matches!(joined, Joined::Whole) && self.merge(*number, made, range) {
                last.iter_mut().filter(|last| *last == number).for_each(|last| *last = made);
            }
        }
        kept.extend(last);
        self.end(outer, kept)
    }

    /// Adds an output of the operator at `begin`.
    fn output(
        &mut self,
        outer: &Outer<'_, 'm>,
        begin: usize,
        name: &'m str,
        value: &Value,
        scope: &mut Scope<'_, 'm>,
    ) -> Result<usize> {
        let number = self.add(outer.frame, name, value, Kind::Intermediate)?;
        scope.names.insert(name, Some((number, value.clone())));
        self.makes(begin, number);
        Ok(number)
    }

    /// Adds a tensor to an operator's outputs.
    fn makes(&mut self, op: usize, tensor: usize) {
        self.made.ops[op].outputs.push(tensor);
        self.makers[tensor] = Some(op);
    }

    /// If an operator of `range` makes `made`, lets the operators write into `into` instead and returns true. They then count as readers
    /// of `into`, which is already live. Tensors from outside the body are copied instead.
    fn merge(&mut self, made: usize, into: usize, range: (usize, usize)) -> bool {
        let tensors = &self.made.tensors;
        let fits = tensors[made].kind == Kind::Intermediate && tensors[made].bytes <= tensors[into].bytes;
        let inside = self.makers[made].is_some_and(|maker| (range.0..range.1).contains(&maker));
        if !fits || !inside || self.merged.contains_key(&made) {
            return false;
        }
        self.merged.insert(made, into);
        true
    }
}

/// Redirects writes of merged tensors to the tensors they were merged into, and removes tensors that no operator uses any more.
pub fn compact(mut graph: Graph, merged: &HashMap<usize, usize>) -> Graph {
    let whole = |mut tensor: usize| {
        while let Some(&into) = merged.get(&tensor) {
            tensor = into;
        }
        tensor
    };
    for op in &mut graph.ops {
        op.inputs.iter_mut().for_each(|input| *input = whole(*input));
        if op.outputs.iter().any(|output| merged.contains_key(output)) {
            let (inside, own) = op.outputs.iter().partition(|output| merged.contains_key(output));
            let inside: Vec<usize> = inside;
            op.outputs = own;
            op.inputs.extend(inside.into_iter().map(whole));
            op.sharing = Sharing::None;
        }
    }
    let used: HashSet<usize> =
        graph.ops.iter().flat_map(|op| op.inputs.iter().chain(&op.outputs)).copied().collect();
    let mut numbers = HashMap::new();
    let mut kept = Vec::with_capacity(graph.tensors.len());
    for (n, tensor) in graph.tensors.into_iter().enumerate() {
        if used.contains(&n) || tensor.kind != Kind::Intermediate {
            numbers.insert(n, kept.len());
            kept.push(tensor);
        }
    }
    graph.tensors = kept;
    for number in graph.ops.iter_mut().flat_map(|op| op.inputs.iter_mut().chain(&mut op.outputs)) {
        *number = numbers[number];
    }
    graph
}
