//! A Rust program of a model's steps: `arena!` for the memory, a trait for the operators, and a function that runs them in order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use super::Planned;
use super::arenas::{Arena, Sections, arenas, section};
use super::code::{comment, constants, rust_places};
use crate::graph::{Graph, Kind, Tensor};
use crate::schedule::{Act, Operand, Share, Step};

/// The most places of one memory that an operator can have in a program.
pub const MOST_OPERANDS: usize = 16;

/// An operator has too many operands for a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "operator `{operator}` has {count} tensors in one memory, and a program has at most 16: write .json, .csv or .h"
)]
pub struct TooMany {
    /// The operator.
    pub operator: String,
    /// Its operands with a place in that memory.
    pub count: usize,
}

/// The generated code's view of a buffer.
struct Slot {
    tier: u32,
    /// The constant of the arena, `Tier0::X`.
    path: String,
    /// The type, such as `[f32; 10]`.
    kind: String,
    /// The name of a parameter.
    parameter: String,
}

/// Rust: `PLAN` and an index for each place, and a program: an arena for each memory, the trait `Operators` with a method for each operator,
/// and `run`, which calls them in order with their tensors. Needs the crate `allotment`; nothing in it is `unsafe`.
///
/// # Errors
/// [`TooMany`] if an operator has too many operands.
pub fn rust_program(planned: Planned, sections: &Sections) -> Result<String, TooMany> {
    let lowered = &planned.schedule.lowered;
    let empty = Graph::default();
    let graph = lowered.graph.as_ref().unwrap_or(&empty);
    let names = constants(planned);
    let mut out = planned.head("// ");
    rust_places(&mut out, planned, &names);
    let slots = slots(planned, graph, &names);
    memory(&mut out, planned, sections, &slots);
    program(&mut out, planned, graph, &slots)?;
    Ok(out)
}

/// Returns the type of a tensor's elements, if all of its bytes are elements of it.
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

/// Returns the slot of each buffer.
fn slots(planned: Planned, graph: &Graph, names: &[String]) -> Vec<Slot> {
    let lowered = &planned.schedule.lowered;
    // The tensors that lie in each buffer.
    let mut inside: HashMap<usize, HashSet<usize>> = HashMap::new();
    let number: Vec<usize> = lowered.places().map(|place| place.number).collect();
    for operand in lowered.steps.iter().flat_map(|step| step.reads.iter().chain(&step.writes)) {
        if let Some(place) = operand.place {
            inside.entry(number[place]).or_default().insert(operand.tensor);
        }
    }
    let slot = |(n, buffer): (usize, &crate::model::Buffer)| {
        let tensors = inside.get(&n).into_iter().flatten().map(|&tensor| element(&graph.tensors[tensor]));
        let types: HashSet<_> = tensors.collect();
        let one = (types.len() == 1).then(|| types.into_iter().next().flatten()).flatten();
        let kind = match one {
            Some((name, elements)) => format!("[{name}; {elements}]"),
            None => format!("[u8; {}]", buffer.size),
        };
        Slot {
            tier: buffer.tier,
            path: format!("Tier{}::{}", buffer.tier, constant_of(&names[n])),
            kind,
            parameter: parameter(&names[n]),
        }
    };
    lowered.instance.buffers().iter().enumerate().map(slot).collect()
}

/// Returns a constant's name, which is not of underscores alone.
fn constant_of(name: &str) -> String {
    if name.bytes().all(|byte| byte == b'_') { format!("{name}T") } else { name.to_owned() }
}

/// Returns the name of a parameter or method: in small letters, and no word of the language.
fn parameter(name: &str) -> String {
    const WORDS: &str = " as break const continue crate else enum extern false fn for if impl in let loop match mod move mut pub ref return \
        self static struct super trait true type unsafe use where while async await dyn abstract become box do final gen macro override \
        priv try typeof unsized virtual yield operators chunk ";
    let name = constant_of(name).to_lowercase();
    if WORDS.contains(&format!(" {name} ")) { name + "_" } else { name }
}

/// The arenas, one for each memory.
fn memory(out: &mut String, planned: Planned, sections: &Sections, slots: &[Slot]) {
    let lowered = &planned.schedule.lowered;
    let buffers = lowered.instance.buffers();
    out.push_str(
        "\n/// The memories. The compiler checks that no two buffers which are live at once overlap.\n\
         pub mod memory {\n    #![allow(long_running_const_eval)]\n    use allotment::arena;\n    use allotment::plan::Arena;\n",
    );
    for Arena { tier, bytes, .. } in arenas(planned) {
        let _ = write!(
            out,
            "\n    arena! {{\n        /// The plan of memory {tier}.\n        pub struct Tier{tier}({bytes}) {{\n"
        );
        let members: Vec<usize> = (0..buffers.len()).filter(|&n| buffers[n].tier == tier).collect();
        for &n in &members {
            let (buffer, slot) = (&buffers[n], &slots[n]);
            let mut holds = String::new();
            for place in lowered.inside.iter().filter(|inside| inside.buffer == n) {
                let _ = write!(holds, ", then `{}`", comment(&place.name));
            }
            let name = slot.path.rsplit("::").next().unwrap_or_default();
            let _ = write!(
                out,
                "            /// `{}`{holds}.\n            {name}: {} = {}..{}, align({})",
                comment(&buffer.id),
                slot.kind,
                buffer.start,
                buffer.end,
                buffer.align.next_power_of_two()
            );
            if !buffer.gaps.is_empty() {
                let gap = |gap: &crate::model::Gap| {
                    format!("allotment::plan::Interval::new({}..{})", gap.start, gap.end)
                };
                let gaps: Vec<String> = buffer.gaps.iter().map(gap).collect();
                let _ = write!(out, ", gaps(&[{}])", gaps.join(", "));
            }
            out.push_str(";\n");
        }
        let offsets: Vec<String> =
            members.iter().map(|&n| planned.schedule.solution.offsets[n].to_string()).collect();
        let _ = write!(out, "        }} at [{}]\n    }}\n", offsets.join(", "));
        let place = section(sections, tier)
            .map_or(String::new(), |name| format!("    #[unsafe(link_section = \"{name}\")]\n"));
        let _ = write!(
            out,
            "\n    /// Memory {tier}.\n{place}    pub static ARENA_{tier}: Arena<Tier{tier}> = Arena::new();\n"
        );
    }
    out.push_str("}\n\n");
}

/// A method of the trait.
struct Method {
    name: String,
    /// Its parameters after `self`, as they are declared.
    parameters: String,
    about: String,
}

/// The parts of the program while it is written.
#[derive(Default)]
struct Program {
    methods: Vec<Method>,
    names: HashSet<String>,
    /// By an operator's name: its method, if no other operator has the name.
    known: HashMap<String, usize>,
}

impl Program {
    /// Returns the name of the method for an operator that runs with `parameters`.
    fn method(&mut self, operator: &str, parameters: String, about: String) -> String {
        let base = operator.trim_end_matches(" again");
        // It runs again as it ran before, if it does so with the same types.
        if base != operator {
            let known = self.known.get(base).map(|&n| &self.methods[n]);
            if let Some(method) = known.filter(|method| types(&method.parameters) == types(&parameters)) {
                return method.name.clone();
            }
        }
        let mut name = parameter(&super::code::constant(operator));
        while !self.names.insert(name.clone()) {
            let _ = write!(name, "_{}", self.methods.len());
        }
        if base == operator && self.known.insert(base.to_owned(), self.methods.len()).is_some() {
            self.known.remove(base);
        }
        self.methods.push(Method { name: name.clone(), parameters, about });
        name
    }
}

/// Returns the types of parameters, without their names.
fn types(parameters: &str) -> Vec<&str> {
    parameters.split(", ").map(|one| one.split(": ").nth(1).unwrap_or(one)).collect()
}

/// Returns the trait, and the function that runs all steps.
fn program(out: &mut String, planned: Planned, graph: &Graph, slots: &[Slot]) -> Result<(), TooMany> {
    let lowered = &planned.schedule.lowered;
    let number: Vec<usize> = lowered.places().map(|place| place.number).collect();
    let mut program = Program::default();
    let mut methods: HashMap<usize, String> = HashMap::new();
    let (mut first, mut run) = (String::new(), String::new());
    let buffer = |operand: &Operand| operand.place.map(|place| number[place]);
    let tensor = |operand: &Operand| comment(&graph.tensors[operand.tensor].name);
    for step in &lowered.steps {
        let time = step.time;
        match step.act {
            Act::Given | Act::Load | Act::Taken => {
                for operand in step.reads.iter().chain(&step.writes) {
                    let Some(slot) = buffer(operand).map(|n| &slots[n]) else { continue };
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
                        // It stays for the next run.
                        _ => continue,
                    };
                    let method = format!("{verb}_{}", slot.parameter);
                    let parameters = format!("{}: &mut {}", slot.parameter, slot.kind);
                    let known = program.known.get(&method).filter(|_| verb == "load");
                    let known = known.map(|&n| program.methods[n].name.clone());
                    let name = known.unwrap_or_else(|| program.method(&method, parameters, about));
                    let to = if verb == "prepare" { &mut first } else { &mut run };
                    let _ = writeln!(
                        to,
                        "    operators.{name}(tier{}.at::<{time}>().get(memory::{}));",
                        slot.tier, slot.path
                    );
                }
            }
            Act::Run => {
                let Some(n) = step.op else { continue };
                let op = &graph.ops[n];
                if step.share == Share::View && step.writes.len() == 1 {
                    let _ = writeln!(run, "    // `{}`: a view, nothing is computed.", comment(&op.name));
                    continue;
                }
                let call = call(step, &op.name, slots, &buffer)?;
                let list = |list: &[Operand]| list.iter().map(tensor).collect::<Vec<_>>().join("`, `");
                let mut about = format!("Runs `{}`", comment(&op.name));
                let kind = comment(&op.kind);
                if !kind.is_empty() {
                    let _ = write!(about, " ({kind})");
                }
                let _ = write!(about, ": reads `{}`; writes `{}`", list(&step.reads), list(&step.writes));
                about.push_str(match step.share {
                    Share::Overwrite => ", where it overwrites what it reads.",
                    Share::View => ", the first of which is what it reads seen otherwise.",
                    _ => ".",
                });
                if step.chunk.1 > 1 {
                    let _ = write!(about, " One chunk of {} at a time.", step.chunk.1);
                }
                // The chunks of one operator are calls of one method.
                let name =
                    methods.entry(n).or_insert_with(|| program.method(&op.name, call.parameters, about));
                let _ = write!(
                    run,
                    "    {{\n{}        operators.{name}({});\n    }}\n",
                    call.borrowed, call.arguments
                );
            }
            Act::Copy => {
                let (from, to) = (&step.reads[0], &step.writes[0]);
                let (Some(from), Some(to)) = (buffer(from), buffer(to)) else { continue };
                let (from, to) = (&slots[from], &slots[to]);
                let _ = writeln!(
                    run,
                    "    tier{}.at::<{time}>().get(memory::{}).copy_from_slice(tier{}.at::<{time}>().get(memory::{}));",
                    to.tier, to.path, from.tier, from.path
                );
            }
        }
    }
    out.push_str(
        "/// What the steps do: a method for each operator, with its tensors.\npub trait Operators {\n",
    );
    for Method { name, parameters, about } in &program.methods {
        let _ = write!(
            out,
            "    /// {about}\n    #[allow(clippy::too_many_arguments)]\n    fn {name}(&mut self{parameters});\n",
            parameters = if parameters.is_empty() { String::new() } else { format!(", {parameters}") }
        );
    }
    out.push_str("}\n");
    for (name, about, body) in [
        ("prepare", "Lets `operators` write what is kept from run to run, before the first", first),
        ("run", "Runs the model once: all steps in order", run),
    ] {
        if name == "prepare" && body.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "\n/// {about}. `None` if an arena is in use.\n\
             #[must_use]\npub fn {name}(operators: &mut impl Operators) -> Option<()> {{\n"
        );
        for Arena { tier, .. } in
            arenas(planned).iter().filter(|arena| body.contains(&format!("tier{}.", arena.tier)))
        {
            let _ = writeln!(out, "    let mut tier{tier} = memory::ARENA_{tier}.begin()?;");
        }
        let _ = write!(out, "{body}    Some(())\n}}\n");
    }
    Ok(())
}

/// A call of an operator.
struct Call {
    /// The parameters as they are declared.
    parameters: String,
    /// The lines that borrow the places.
    borrowed: String,
    arguments: String,
}

/// Returns the call of an operator's method in `step`: the places of each memory are borrowed at once, and each buffer once.
fn call(
    step: &Step,
    operator: &str,
    slots: &[Slot],
    buffer: &dyn Fn(&Operand) -> Option<usize>,
) -> Result<Call, TooMany> {
    let mut buffers: Vec<usize> = Vec::new();
    for n in step.reads.iter().chain(&step.writes).filter_map(buffer) {
        if !buffers.contains(&n) {
            buffers.push(n);
        }
    }
    let mut tiers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    buffers.iter().for_each(|&n| tiers.entry(slots[n].tier).or_default().push(n));
    let mut borrowed = String::new();
    let mut bound: HashMap<usize, String> = HashMap::new();
    for (tier, members) in &tiers {
        if members.len() > MOST_OPERANDS {
            return Err(TooMany { operator: operator.to_owned(), count: members.len() });
        }
        let local = |k: usize| format!("t{tier}_{k}");
        let names: String = (0..members.len()).map(|k| local(k) + ",").collect::<Vec<_>>().join(" ");
        let paths: String =
            members.iter().map(|&n| format!("memory::{},", slots[n].path)).collect::<Vec<_>>().join(" ");
        let _ =
            writeln!(borrowed, "        let ({names}) = tier{tier}.at::<{}>().get(({paths}));", step.time);
        bound.extend(members.iter().enumerate().map(|(k, &n)| (n, local(k))));
    }
    let parameter = |&n: &usize| format!("{}: &mut {}", slots[n].parameter, slots[n].kind);
    let mut parameters: Vec<String> = buffers.iter().map(parameter).collect();
    let mut arguments: Vec<String> = buffers.iter().map(|n| bound[n].clone()).collect();
    if step.chunk.1 > 1 {
        parameters.insert(0, "chunk: usize".to_owned());
        arguments.insert(0, step.chunk.0.to_string());
    }
    Ok(Call { parameters: parameters.join(", "), borrowed, arguments: arguments.join(", ") })
}
