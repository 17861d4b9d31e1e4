//! TensorFlow Lite models of several subgraphs.

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};

pub const ADD: i32 = 0;
pub const RELU: i32 = 19;
pub const CUSTOM: i32 = 32;
pub const MEAN: i32 = 40;
pub const IF: i32 = 118;
pub const WHILE: i32 = 119;
pub const CALL_ONCE: i32 = 129;
pub const VAR_HANDLE: i32 = 142;
pub const READ_VARIABLE: i32 = 143;
pub const ASSIGN_VARIABLE: i32 = 144;

const INT8: i8 = 9;
const RESOURCE: i8 = 13;

/// What an operator is given beside its tensors.
#[derive(Clone, Copy)]
pub enum Options {
    None,
    /// The subgraphs that `IF`, `WHILE` or `CALL_ONCE` calls.
    Calls(i32, i32),
    Variable(&'static str),
}

/// An operator: its code, inputs, outputs and options.
pub type Operator = (i32, Vec<i32>, Vec<i32>, Options);

/// A subgraph: its tensors with their sizes in bytes (0: a handle of a variable), inputs, outputs and operators.
#[derive(Clone, Default)]
pub struct Part {
    pub tensors: Vec<(&'static str, i32)>,
    pub inputs: Vec<i32>,
    pub outputs: Vec<i32>,
    pub operators: Vec<Operator>,
}

type Offset = WIPOffset<TableFinishedWIPOffset>;

fn slot(id: u16) -> u16 {
    4 + 2 * id
}

fn options(b: &mut FlatBufferBuilder, code: i32, given: Options) -> Option<(u8, Offset)> {
    match given {
        Options::None => None,
        Options::Calls(first, second) => {
            let start = b.start_table();
            b.push_slot_always(slot(0), first);
            b.push_slot_always(slot(1), second);
            let kind = match code {
                IF => 92,
                WHILE => 93,
                _ => 103,
            };
            Some((kind, b.end_table(start)))
        }
        Options::Variable(name) => {
            let name = b.create_string(name);
            let start = b.start_table();
            b.push_slot_always(slot(1), name);
            Some((111, b.end_table(start)))
        }
    }
}

fn subgraph(b: &mut FlatBufferBuilder, part: &Part) -> Offset {
    let mut tensors = Vec::new();
    for &(name, bytes) in &part.tensors {
        let (name, dims) = (b.create_string(name), b.create_vector(&[bytes][usize::from(bytes == 0)..]));
        let start = b.start_table();
        b.push_slot_always(slot(0), dims);
        b.push_slot_always(slot(1), if bytes == 0 { RESOURCE } else { INT8 });
        b.push_slot_always(slot(3), name);
        tensors.push(b.end_table(start));
    }
    let mut operators = Vec::new();
    for (code, inputs, outputs, given) in &part.operators {
        let given = options(b, *code, *given);
        let (inputs, outputs) = (b.create_vector(inputs), b.create_vector(outputs));
        let start = b.start_table();
        // Codes stand in the model's list at their own number.
        b.push_slot_always(slot(0), *code as u32);
        b.push_slot_always(slot(1), inputs);
        b.push_slot_always(slot(2), outputs);
        if let Some((kind, given)) = given {
            b.push_slot_always(slot(3), kind);
            b.push_slot_always(slot(4), given);
        }
        operators.push(b.end_table(start));
    }
    let (tensors, operators) = (b.create_vector(&tensors), b.create_vector(&operators));
    let (inputs, outputs) = (b.create_vector(&part.inputs), b.create_vector(&part.outputs));
    let start = b.start_table();
    b.push_slot_always(slot(0), tensors);
    b.push_slot_always(slot(1), inputs);
    b.push_slot_always(slot(2), outputs);
    b.push_slot_always(slot(3), operators);
    b.end_table(start)
}

/// A model of these subgraphs.
pub fn model(parts: &[Part]) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let mut codes = Vec::new();
    for code in 0..=ASSIGN_VARIABLE {
        let start = b.start_table();
        b.push_slot_always(slot(3), code);
        codes.push(b.end_table(start));
    }
    let codes = b.create_vector(&codes);
    let parts: Vec<Offset> = parts.iter().map(|part| subgraph(&mut b, part)).collect();
    let parts = b.create_vector(&parts);
    let start = b.start_table();
    let buffer = b.end_table(start);
    let buffers = b.create_vector(&[buffer]);
    let start = b.start_table();
    b.push_slot_always(slot(0), 3_u32);
    b.push_slot_always(slot(1), codes);
    b.push_slot_always(slot(2), parts);
    b.push_slot_always(slot(4), buffers);
    let model = b.end_table(start);
    b.finish(model, Some("TFL3"));
    b.finished_data().to_vec()
}

/// A streaming model: a variable that one subgraph sets up, and that each run reads and writes.
pub fn streaming() -> Vec<u8> {
    let main = Part {
        tensors: vec![("x", 40), ("states", 0), ("old", 80), ("new", 80), ("y", 16), ("z", 16)],
        inputs: vec![0],
        outputs: vec![5],
        operators: vec![
            (CALL_ONCE, vec![], vec![], Options::Calls(1, 0)),
            (VAR_HANDLE, vec![], vec![1], Options::Variable("states")),
            (READ_VARIABLE, vec![1], vec![2], Options::None),
            (CUSTOM, vec![2, 0], vec![3], Options::None),
            (ASSIGN_VARIABLE, vec![1, 3], vec![], Options::None),
            (CUSTOM, vec![3], vec![4], Options::None),
            (RELU, vec![4], vec![5], Options::None),
        ],
    };
    let init = Part {
        tensors: vec![("states", 0), ("zeros", 80)],
        operators: vec![
            (VAR_HANDLE, vec![], vec![0], Options::Variable("states")),
            (CUSTOM, vec![], vec![1], Options::None),
            (ASSIGN_VARIABLE, vec![0, 1], vec![], Options::None),
        ],
        ..Part::default()
    };
    model(&[main, init])
}
