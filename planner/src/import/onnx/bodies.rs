//! `If`, `Loop` and `Scan`: their bodies become operators of the graph, in place of the operator.
//!
//! The operator itself stands before its bodies and makes what lives throughout: its outputs, and the tensors that go from one round of
//! a loop to the next. After the bodies stands an operator of the kind `If.end` (`Loop.end`, `Scan.end`), which reads what must not be
//! given up before that. The branches of an `If` follow each other, though only one runs: what is live in one is not in the other, so they
//! share their memory.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::infer::Value;
use super::proto::{GraphProto, Node};
use super::{OnnxError, Reader, Scope};
use crate::graph::{Graph, Kind, Op, Sharing};

const INT64: i32 = 7;
const BOOL: i32 = 9;

/// True if the operator has bodies that this importer knows.
pub fn known(node: &Node) -> bool {
    let standard = node.domain.is_empty() || node.domain == "ai.onnx";
    standard && matches!(node.op_type.as_str(), "If" | "Loop" | "Scan")
}

/// An operator with bodies, and what is around it.
pub struct Outer<'a> {
    pub node: &'a Node,
    pub graph: &'a GraphProto,
    pub name: &'a str,
    pub prefix: &'a str,
    pub inputs: &'a [Option<(usize, Value)>],
}

impl Outer<'_> {
    fn fails(&self, what: impl Into<String>) -> OnnxError {
        OnnxError::Node { node: self.name.into(), op: self.node.op_type.clone(), what: what.into() }
    }

    fn body(&self, name: &str) -> Result<&GraphProto, OnnxError> {
        let attribute = self.node.attribute.iter().find(|attribute| attribute.name == name);
        attribute
            .and_then(|attribute| attribute.g.as_ref())
            .ok_or_else(|| self.fails(format!("its {name} is missing")))
    }

    fn input(&self, n: usize) -> Option<&(usize, Value)> {
        self.inputs.get(n).and_then(Option::as_ref)
    }

    fn ints(&self, name: &str) -> &[i64] {
        let attribute = self.node.attribute.iter().find(|attribute| attribute.name == name);
        attribute.map_or(&[], |attribute| &attribute.ints)
    }
}

/// How a body's output becomes one of the operator's.
#[derive(Clone, Copy)]
enum Joined {
    /// As it is.
    Whole,
    /// One after the other, along an axis, this many times; `None`: not known before the model runs.
    Stacked(usize, Option<u64>),
}

impl Reader<'_> {
    /// Adds an operator with its bodies.
    pub(super) fn bodies(&mut self, outer: &Outer, scope: &mut Scope) -> Result<(), OnnxError> {
        match outer.node.op_type.as_str() {
            "If" => self.branches(outer, scope),
            "Loop" => self.rounds(outer, scope),
            _ => self.scan(outer, scope),
        }
    }

    /// Adds the operator that stands before the bodies, as yet without outputs; returns its place.
    fn begin(&mut self, outer: &Outer) -> usize {
        let inputs = outer.inputs.iter().flatten().map(|(number, _)| *number).collect();
        self.made.ops.push(Op {
            name: format!("{}{}", outer.prefix, outer.name),
            kind: outer.node.op_type.clone(),
            inputs,
            outputs: Vec::new(),
            sharing: Sharing::None,
            cost: 0,
        });
        self.made.ops.len() - 1
    }

    /// Adds the operator that stands after the bodies and reads `kept`.
    fn end(&mut self, outer: &Outer, kept: BTreeSet<usize>) {
        self.made.ops.push(Op {
            name: format!("{}{}.end", outer.prefix, outer.name),
            kind: format!("{}.end", outer.node.op_type),
            inputs: kept.into_iter().collect(),
            outputs: Vec::new(),
            sharing: Sharing::None,
            cost: 0,
        });
    }

    /// Adds a body's nodes; returns its outputs.
    fn body(
        &mut self,
        outer: &Outer,
        body: &GraphProto,
        prefix: &str,
        mut scope: Scope,
    ) -> Result<Vec<(usize, Value)>, OnnxError> {
        self.constants(body, prefix, &mut scope)?;
        self.nodes(body, prefix, &mut scope)?;
        let missing = |name: &str| outer.fails(format!("nothing makes the output `{name}` of its body"));
        body.output
            .iter()
            .map(|output| scope.get(&output.name).cloned().ok_or_else(|| missing(&output.name)))
            .collect()
    }

    fn branches(&mut self, outer: &Outer, scope: &mut Scope) -> Result<(), OnnxError> {
        let begin = self.begin(outer);
        let mut results: Vec<Vec<(usize, Value)>> = Vec::new();
        let mut ranges = Vec::new();
        for branch in ["then_branch", "else_branch"] {
            let body = outer.body(branch)?;
            if !body.input.is_empty() {
                return Err(outer.fails(format!("its {branch} has inputs")));
            }
            let from = self.made.ops.len();
            let prefix = format!("{}{}/{branch}/", outer.prefix, outer.name);
            results.push(self.body(outer, body, &prefix, scope.clone())?);
            ranges.push((from, self.made.ops.len()));
        }
        let count = outer.node.output.len();
        if results.iter().any(|outputs| outputs.len() != count) {
            return Err(outer.fails(format!("its branches do not have {count} outputs")));
        }
        let mut kept = BTreeSet::new();
        for (n, name) in outer.node.output.iter().enumerate() {
            let (then, other) = (&results[0][n], &results[1][n]);
            if then.1.dtype != other.1.dtype {
                return Err(outer.fails(format!("its branches make `{name}` of two types")));
            }
            // The larger one: the smaller lies in its memory.
            let larger = if self.made.tensors[then.0].bytes >= self.made.tensors[other.0].bytes {
                then
            } else {
                other
            };
            let value = Value { ints: None, floats: None, ..larger.1.clone() };
            let number = self.output(outer, begin, name, &value, scope)?;
            for (made, range) in [(then.0, ranges[0]), (other.0, ranges[1])] {
                self.merge(made, number, range);
            }
            kept.insert(number);
        }
        self.end(outer, kept);
        Ok(())
    }

    fn rounds(&mut self, outer: &Outer, scope: &mut Scope) -> Result<(), OnnxError> {
        let body = outer.body("body")?;
        let carried = outer.inputs.len().saturating_sub(2);
        if body.input.len() != carried + 2 || body.output.len() < carried + 1 {
            return Err(outer.fails("the inputs and outputs of its body do not fit its own"));
        }
        let count =
            outer.input(0).and_then(|(_, value)| value.ints.as_ref()).and_then(|ints| ints.first().copied());
        let count = count.map(|count| u64::try_from(count).unwrap_or(0));
        let scalar = |dtype| Value { dtype, ..Value::default() };
        let mut given = vec![scalar(INT64), scalar(BOOL)];
        for n in 0..carried {
            let (_, value) =
                outer.input(n + 2).ok_or_else(|| outer.fails(format!("input {} is missing", n + 2)))?;
            given.push(Value { ints: None, floats: None, ..value.clone() });
        }
        let mut results: Vec<Joined> = (0..carried).map(|_| Joined::Whole).collect();
        results.extend((carried + 1..body.output.len()).map(|_| Joined::Stacked(0, count)));
        self.repeated(outer, body, (&given, 2), 1, &results, scope)
    }

    fn scan(&mut self, outer: &Outer, scope: &mut Scope) -> Result<(), OnnxError> {
        let body = outer.body("body")?;
        let attribute = outer.node.attribute.iter().find(|attribute| attribute.name == "num_scan_inputs");
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
            let mut value = Value { ints: None, floats: None, ..value.clone() };
            if let Some(slice) = n.checked_sub(states) {
                let rank = value.shape.len() as i64;
                let axis = axes.get(slice).copied().unwrap_or(0);
                let axis = usize::try_from(if axis < 0 { axis.saturating_add(rank) } else { axis });
                let axis = axis.ok().filter(|&axis| axis < value.shape.len());
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

    /// Adds a body that runs again and again. `given` are its inputs, of which those from number `first` on go from round to round; of its
    /// outputs, `skipped` come before the `results`.
    fn repeated(
        &mut self,
        outer: &Outer,
        body: &GraphProto,
        (given, first): (&[Value], usize),
        skipped: usize,
        results: &[Joined],
        scope: &mut Scope,
    ) -> Result<(), OnnxError> {
        if outer.node.output.len() > results.len() {
            return Err(outer.fails("its body has fewer outputs than it"));
        }
        let begin = self.begin(outer);
        let prefix = format!("{}{}/body/", outer.prefix, outer.name);
        let mut inner = scope.clone();
        let mut kept = BTreeSet::new();
        for (input, value) in body.input.iter().zip(given) {
            let number = self.add(&format!("{prefix}{}", input.name), value, Kind::Intermediate)?;
            inner.insert(input.name.clone(), (number, value.clone()));
            self.made.ops[begin].outputs.push(number);
            kept.insert(number);
        }
        let from = self.made.ops.len();
        let outside = self.made.tensors.len();
        let outputs = self.body(outer, body, &prefix, inner)?;
        let range = (from, self.made.ops.len());
        // What comes from outside is read in every round.
        let read = self.made.ops[from..].iter().flat_map(|op| &op.inputs);
        kept.extend(read.copied().filter(|&number| number < outside));
        // The condition lives until the next round begins, as does what becomes that round's input or a part of a stacked output.
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
                    Value { shape, dtype: value.dtype, ..Value::default() }
                }
                Joined::Stacked(..) => {
                    let Some(name) = name else { continue };
                    let told = self.recorded.output(outer.node, outer.graph, n, Some(value.dtype));
                    told.ok_or_else(|| {
                        outer.fails(format!(
                            "how often it runs is not known: give the shape of `{name}` with --shapes"
                        ))
                    })?
                }
            };
            let Some(name) = name else { continue };
            let value = Value { ints: None, floats: None, ..value };
            let made = self.output(outer, begin, name, &value, scope)?;
            kept.insert(made);
            if matches!(joined, Joined::Whole) && self.merge(*number, made, range) {
                last.iter_mut().filter(|last| *last == number).for_each(|last| *last = made);
            }
        }
        kept.extend(last);
        self.end(outer, kept);
        Ok(())
    }

    /// Adds an output of the operator at `begin`.
    fn output(
        &mut self,
        outer: &Outer,
        begin: usize,
        name: &str,
        value: &Value,
        scope: &mut Scope,
    ) -> Result<usize, OnnxError> {
        let number = self.add(&format!("{}{name}", outer.prefix), value, Kind::Intermediate)?;
        scope.insert(name.into(), (number, value.clone()));
        self.made.ops[begin].outputs.push(number);
        Ok(number)
    }

    /// Lets the operators of `range` write into `into` instead of `made`, and returns true, if one of them makes that. They are then among
    /// the readers of `into`, which lives already. What comes from outside of the body is copied instead.
    fn merge(&mut self, made: usize, into: usize, range: (usize, usize)) -> bool {
        let tensors = &self.made.tensors;
        let fits = tensors[made].kind == Kind::Intermediate && tensors[made].bytes <= tensors[into].bytes;
        let ops = &mut self.made.ops[range.0..range.1];
        if !fits || !ops.iter().any(|op| op.outputs.contains(&made)) {
            return false;
        }
        for op in ops {
            if op.outputs.contains(&made) {
                op.outputs.retain(|&output| output != made);
                op.sharing = Sharing::None;
                op.inputs.push(into);
            }
            for input in &mut op.inputs {
                if *input == made {
                    *input = into;
                }
            }
        }
        true
    }
}

/// Takes away the tensors that [`Reader::merge`] left without an operator.
pub fn compact(mut graph: Graph) -> Graph {
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
