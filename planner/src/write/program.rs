//! Writes a Rust program of a model's steps: `arena!` for the memory, a trait for the operators, and a function that runs them in order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use askama::Template;

use super::code::{Arena, Line, Sections, arenas, comment, constant, lines, unique};
use super::{Planned, rendered};
use crate::graph::{Graph, Kind, Tensor};
use crate::model::Buffer;
use crate::schedule::{Act, Operand, Share, Step};

/// Largest number of places in one memory that an operator can have in a program.
pub const MOST_OPERANDS: usize = 16;

/// An operator has too many operands for a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "operator `{operator}` has {count} tensors in one memory, and a program has at most 16: write .json, .csv or .h"
)]
pub struct TooMany {
    /// The operator.
    pub operator: String,
    /// Number of its operands with a place in that memory.
    pub count: usize,
}

/// The generated code's view of a buffer; displayed as the arena's constant, `Tier0::X`.
struct Slot<'a> {
    buffer: &'a Buffer,
    offset: u64,
    name: String,
    /// The type, such as `[f32; 10]`.
    kind: String,
    /// The name of a parameter.
    parameter: String,
    /// The tensors in it.
    tensors: Vec<String>,
}

impl fmt::Display for Slot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tier{}::{}", self.buffer.tier, self.name)
    }
}

impl Slot<'_> {
    /// Returns the declaration of a method's parameter for this buffer.
    fn declared(&self) -> String {
        format!("{}: &mut {}", self.parameter, self.kind)
    }
}

/// A method of the trait.
struct Method {
    name: String,
    /// The declarations of its parameters after `self`.
    parameters: Vec<String>,
    about: String,
}

/// A function of the program.
struct Function<'a> {
    name: &'static str,
    about: &'static str,
    calls: Vec<Call<'a>>,
}

/// A line of a function.
enum Call<'a> {
    /// An operator that computes nothing.
    View(String),
    /// A call of a method that reads or writes a buffer for the caller, at a time.
    Caller(String, &'a Slot<'a>, i64),
    /// A copy from one buffer to another, at a time.
    Copy([&'a Slot<'a>; 2], i64),
    /// A call of an operator's method, which borrows the places of each memory together, and each buffer once.
    Run { method: String, time: i64, tiers: BTreeMap<u32, Vec<&'a Slot<'a>>>, arguments: Vec<String> },
}

impl Function<'_> {
    /// Returns whether it uses a place in a memory.
    fn uses(&self, tier: &u32) -> bool {
        self.calls.iter().any(|call| match call {
            Call::View(_) => false,
            Call::Caller(_, slot, _) => slot.buffer.tier == *tier,
            Call::Copy(slots, _) => slots.iter().any(|slot| slot.buffer.tier == *tier),
            Call::Run { tiers, .. } => tiers.contains_key(tier),
        })
    }
}

#[derive(Template)]
#[template(path = "program.rs", escape = "none")]
struct Source<'a> {
    head: String,
    lines: &'a [Line],
    arenas: Vec<Arena>,
    slots: &'a [Slot<'a>],
    methods: Vec<Method>,
    functions: Vec<Function<'a>>,
}

/// Returns Rust code: `PLAN`, an index for each place, and a program with an arena for each memory, the trait `Operators` with a method
/// for each operator, and `run`, which calls the methods in order with their tensors. The code needs the crate `allotment` and no
/// `unsafe`.
///
/// # Errors
/// [`TooMany`] if an operator has too many operands.
pub fn rust_program(planned: Planned, sections: &Sections) -> Result<String, TooMany> {
    let empty = Graph::default();
    let graph = planned.schedule.lowered.graph.as_ref().unwrap_or(&empty);
    let lines = &lines(planned);
    let slots = &slots(planned, graph, lines);
    let (methods, functions) = program(planned, graph, slots)?;
    let (head, arenas) = (planned.head("// "), arenas(planned, sections));
    Ok(rendered(&Source { head, lines, arenas, slots, methods, functions }))
}

/// Returns the type and number of a tensor's elements, if they make up all of its bytes.
fn element(tensor: &Tensor) -> Option<(&'static str, u64)> {
    let (name, bytes) = match tensor.dtype.as_str() {
        "float32" => ("f32", 4),
        "float64" => ("f64", 8),
        "float16" | "bfloat16" | "uint16" => ("u16", 2),
        "int8" => ("i8", 1),
        "int16" => ("i16", 2),
        "int32" => ("i32", 4),
        "int64" => ("i64", 8),
        "uint32" => ("u32", 4),
        "uint64" => ("u64", 8),
        _ => return None,
    };
    let elements = tensor.elements();
    (elements.checked_mul(bytes) == Some(tensor.bytes)).then_some((name, elements))
}

/// Returns the number of the buffer of each place.
fn numbers(planned: Planned) -> Vec<usize> {
    planned.schedule.lowered.places().map(|place| place.number).collect()
}

/// Returns the slot of each buffer.
fn slots<'a>(planned: Planned<'a>, graph: &Graph, lines: &[Line]) -> Vec<Slot<'a>> {
    let lowered = &planned.schedule.lowered;
    // The types of the tensors that lie in each buffer.
    let mut types: HashMap<usize, HashSet<Option<(&str, u64)>>> = HashMap::new();
    let number = numbers(planned);
    for operand in lowered.steps.iter().flat_map(|step| step.reads.iter().chain(&step.writes)) {
        if let Some(place) = operand.place {
            types.entry(number[place]).or_default().insert(element(&graph.tensors[operand.tensor]));
        }
    }
    let mut slots: Vec<Slot> = Vec::new();
    let mut used = HashSet::new();
    for (n, ((place, offset), line)) in planned.schedule.placed().zip(lines).enumerate() {
        let buffer = place.buffer;
        if place.inside {
            slots[place.number].tensors.push(comment(place.id));
            continue;
        }
        let kind = match types.get(&n).map(|types| types.iter().collect::<Vec<_>>()).as_deref() {
            Some([Some((name, elements))]) => format!("[{name}; {elements}]"),
            _ => format!("[u8; {}]", buffer.size),
        };
        let (name, parameter) = (line.name.clone(), unique(&mut used, parameter(&line.name), n));
        slots.push(Slot { buffer, offset, name, kind, parameter, tensors: vec![comment(&buffer.id)] });
    }
    slots
}

/// Returns the name of a parameter or method for a constant's name: in snake case, and never a keyword.
fn parameter(name: &str) -> String {
    const WORDS: &str = " as break const continue crate else enum extern false fn for if impl in let loop match mod move mut pub ref return \
        self static struct super trait true type unsafe use where while async await dyn abstract become box do final gen macro override \
        priv try typeof unsized virtual yield operators chunk ";
    // The compiler warns of two underscores in a row.
    let mut last = ' ';
    let is_kept = |c: &char| std::mem::replace(&mut last, *c) != '_' || *c != '_';
    let name: String = name.to_lowercase().chars().filter(is_kept).collect();
    // A linter takes `_a` beside `a` for a slip.
    let name = match name.trim_start_matches('_') {
        bare if bare.starts_with(|c: char| c.is_ascii_lowercase()) => bare.to_owned(),
        _ => name,
    };
    if WORDS.contains(&format!(" {name} ")) { name + "_" } else { name }
}

/// The methods of the trait so far.
#[derive(Default)]
struct Methods {
    list: Vec<Method>,
    names: HashSet<String>,
    /// The method of each operator by the operator's name, if the name is unique.
    known: HashMap<String, usize>,
}

impl Methods {
    /// Returns the name of the method for an operator that runs with `parameters`.
    fn of(&mut self, operator: &str, parameters: Vec<String>, about: String) -> String {
        let base = operator.trim_end_matches(" again");
        // A repeated run uses the first run's method if its parameters have the same types.
        if base != operator {
            let known = self.known.get(base).map(|&n| &self.list[n]);
            if let Some(method) = known.filter(|method| types(&method.parameters).eq(types(&parameters))) {
                return method.name.clone();
            }
        }
        let name = unique(&mut self.names, parameter(&constant(operator)), self.list.len());
        if base == operator && self.known.insert(base.to_owned(), self.list.len()).is_some() {
            self.known.remove(base);
        }
        self.list.push(Method { name: name.clone(), parameters, about });
        name
    }
}

/// Returns the types of parameters, without their names.
fn types(parameters: &[String]) -> impl Iterator<Item = Option<&str>> {
    parameters.iter().map(|one| one.split(": ").nth(1))
}

/// Returns the methods of the trait, and the functions that call them.
fn program<'a>(
    planned: Planned,
    graph: &Graph,
    slots: &'a [Slot<'a>],
) -> Result<(Vec<Method>, Vec<Function<'a>>), TooMany> {
    let number = numbers(planned);
    let mut methods = Methods::default();
    let mut of_op: HashMap<usize, String> = HashMap::new();
    let (mut first, mut calls) = (Vec::new(), Vec::new());
    let slot = |operand: &Operand| operand.place.map(|place| &slots[number[place]]);
    let tensor = |operand: &Operand| comment(&graph.tensors[operand.tensor].name);
    for step in &planned.schedule.lowered.steps {
        let time = step.time;
        match step.act {
            Act::Given | Act::Load | Act::Taken => {
                for operand in step.reads.iter().chain(&step.writes) {
                    let Some(slot) = slot(operand) else { continue };
                    let tensor = tensor(operand);
                    let (verb, about) = match (step.act, graph.tensors[operand.tensor].kind) {
                        (Act::Given, Kind::Input) => ("give", format!("Writes the input `{tensor}`.")),
                        (Act::Given, _) => {
                            ("prepare", format!("Writes what `{tensor}` holds before the first run."))
                        }
                        (Act::Load, _) => {
                            ("load", format!("Writes what the constant `{tensor}` holds, again."))
                        }
                        (_, Kind::Output) => ("take", format!("Reads the output `{tensor}`.")),
                        // The tensor stays for the next run.
                        _ => continue,
                    };
                    let method = format!("{verb}_{}", slot.parameter);
                    let known = methods.known.get(&method).filter(|_| verb == "load");
                    let known = known.map(|&n| methods.list[n].name.clone());
                    let name = known.unwrap_or_else(|| methods.of(&method, vec![slot.declared()], about));
                    let to = if verb == "prepare" { &mut first } else { &mut calls };
                    to.push(Call::Caller(name, slot, time));
                }
            }
            Act::Run => {
                let Some(n) = step.op else { continue };
                let op = &graph.ops[n];
                if step.share == Share::View && step.writes.len() == 1 {
                    calls.push(Call::View(comment(&op.name)));
                    continue;
                }
                let list = |list: &[Operand]| list.iter().map(tensor).collect::<Vec<_>>().join("`, `");
                let kind = match comment(&op.kind) {
                    kind if kind.is_empty() => kind,
                    kind => format!(" ({kind})"),
                };
                let share = match step.share {
                    Share::Overwrite => ", where it overwrites what it reads.",
                    Share::View => ", the first of which is what it reads seen otherwise.",
                    Share::Apart => ".",
                };
                let chunks = match step.chunk.1 {
                    chunks @ 2.. => format!(" One chunk of {chunks} at a time."),
                    _ => String::new(),
                };
                let (name, reads, writes) = (comment(&op.name), list(&step.reads), list(&step.writes));
                let about = format!("Runs `{name}`{kind}: reads `{reads}`; writes `{writes}`{share}{chunks}");
                let (tiers, arguments, parameters) = operands(step, &op.name, &slot)?;
                // All chunks of an operator call one method.
                let method = of_op.entry(n).or_insert_with(|| methods.of(&op.name, parameters, about));
                calls.push(Call::Run { method: method.clone(), time, tiers, arguments });
            }
            Act::Copy => {
                if let (Some(from), Some(to)) = (slot(&step.reads[0]), slot(&step.writes[0])) {
                    calls.push(Call::Copy([from, to], time));
                }
            }
        }
    }
    let about = "Lets `operators` write what is kept from run to run, before the first";
    let prepare = (!first.is_empty()).then_some(Function { name: "prepare", about, calls: first });
    let run = Function { name: "run", about: "Runs the model once: all steps in order", calls };
    Ok((methods.list, prepare.into_iter().chain([run]).collect()))
}

/// The buffers of a step by memory, the arguments of the call, and the parameters of its method.
type Operands<'a> = (BTreeMap<u32, Vec<&'a Slot<'a>>>, Vec<String>, Vec<String>);

/// Returns the operands of a step of `operator`, each buffer once.
fn operands<'a>(
    step: &Step,
    operator: &str,
    slot: &dyn Fn(&Operand) -> Option<&'a Slot<'a>>,
) -> Result<Operands<'a>, TooMany> {
    let mut tiers: BTreeMap<u32, Vec<&Slot>> = BTreeMap::new();
    let (mut arguments, mut parameters) = (Vec::new(), Vec::new());
    if step.chunk.1 > 1 {
        arguments.push(step.chunk.0.to_string());
        parameters.push("chunk: usize".to_owned());
    }
    for slot in step.reads.iter().chain(&step.writes).filter_map(slot) {
        let places = tiers.entry(slot.buffer.tier).or_default();
        if !places.iter().any(|known| std::ptr::eq(*known, slot)) {
            arguments.push(format!("t{}_{}", slot.buffer.tier, places.len()));
            parameters.push(slot.declared());
            places.push(slot);
        }
    }
    let count = tiers.values().map(Vec::len).max().unwrap_or(0);
    if count > MOST_OPERANDS {
        return Err(TooMany { operator: operator.to_owned(), count });
    }
    Ok((tiers, arguments, parameters))
}
