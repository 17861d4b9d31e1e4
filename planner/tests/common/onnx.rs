//! Small ONNX models, written as protobuf field by field.

pub const FLOAT: i32 = 1;
pub const INT32: i32 = 6;
pub const INT64: i32 = 7;
pub const BOOL: i32 = 9;

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of bytes.
pub fn field(number: u64, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [varint(number << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A field of one integer.
pub fn number(field: u64, number: i64) -> Vec<u8> {
    [varint(field << 3), varint(number as u64)].concat()
}

fn each<T>(list: &[T], write: impl Fn(&T) -> Vec<u8>) -> Vec<u8> {
    list.iter().flat_map(write).collect()
}

/// A dimension of a graph's input: a size or a name.
pub enum Dim {
    Size(i64),
    Name(&'static str),
}

pub fn typed(name: &str, dtype: i32, dims: &[Dim]) -> Vec<u8> {
    let dims = each(dims, |dim| {
        field(
            1,
            match dim {
                Dim::Size(size) => number(1, *size),
                Dim::Name(name) => field(2, name),
            },
        )
    });
    let shape = [number(1, dtype.into()), field(2, dims)].concat();
    [field(1, name), field(2, field(1, shape))].concat()
}

/// The type of a tensor without a shape.
pub fn unshaped(name: &str, dtype: i32) -> Vec<u8> {
    [field(1, name), field(2, field(1, number(1, dtype.into())))].concat()
}

pub fn info(name: &str, dtype: i32, dims: &[i64]) -> Vec<u8> {
    typed(name, dtype, &dims.iter().map(|&dim| Dim::Size(dim)).collect::<Vec<_>>())
}

/// A tensor with its elements as raw bytes.
pub fn raw(name: &str, dtype: i32, dims: &[i64], bytes: &[u8]) -> Vec<u8> {
    let head = [each(dims, |&dim| number(1, dim)), number(2, dtype.into()), field(8, name)].concat();
    [head, field(9, bytes)].concat()
}

pub fn ints(name: &str, dims: &[i64], list: &[i64]) -> Vec<u8> {
    raw(name, INT64, dims, &each(list, |int| int.to_le_bytes().into()))
}

pub fn floats(name: &str, dims: &[i64], list: &[f32]) -> Vec<u8> {
    raw(name, FLOAT, dims, &each(list, |float| float.to_le_bytes().into()))
}

/// A tensor whose elements are in another file.
pub fn external(name: &str, dtype: i32, dims: &[i64], file: &str, offset: u64) -> Vec<u8> {
    let entry = |key: &str, value: &str| field(13, [field(1, key), field(2, value)].concat());
    let head = [each(dims, |&dim| number(1, dim)), number(2, dtype.into()), field(8, name)].concat();
    [head, entry("location", file), entry("offset", &offset.to_string()), number(14, 1)].concat()
}

/// The value of an attribute.
#[derive(Clone)]
pub enum Is {
    Int(i64),
    Ints(Vec<i64>),
    Text(&'static str),
    Floats(Vec<f32>),
    Tensor(Vec<u8>),
    Graph(Vec<u8>),
    /// That of the function's attribute of this name.
    Of(&'static str),
}

pub fn attribute(name: &str, value: &Is) -> Vec<u8> {
    let value = match value {
        Is::Int(int) => number(3, *int),
        Is::Ints(list) => each(list, |&int| number(8, int)),
        Is::Text(text) => field(4, text),
        Is::Floats(list) => field(7, each(list, |float| float.to_le_bytes().into())),
        Is::Tensor(tensor) => field(5, tensor),
        Is::Graph(graph) => field(6, graph),
        Is::Of(name) => field(21, name),
    };
    [field(1, name), value].concat()
}

/// A node of a domain; `inputs` and `outputs` are separated by spaces, `_` stands for one that is left out.
pub fn called(domain: &str, op: &str, inputs: &str, outputs: &str, attributes: &[(&str, Is)]) -> Vec<u8> {
    let names = |at: u64, list: &str| {
        list.split_whitespace()
            .flat_map(|name| field(at, if name == "_" { "" } else { name }))
            .collect::<Vec<_>>()
    };
    let attributes = each(attributes, |(name, value)| field(5, attribute(name, value)));
    [names(1, inputs), names(2, outputs), field(4, op), attributes, field(7, domain)].concat()
}

pub fn node(op: &str, inputs: &str, outputs: &str, attributes: &[(&str, Is)]) -> Vec<u8> {
    called("", op, inputs, outputs, attributes)
}

/// A graph: nodes, constants, inputs and outputs.
pub fn graph(nodes: &[Vec<u8>], constants: &[Vec<u8>], inputs: &[Vec<u8>], outputs: &[Vec<u8>]) -> Vec<u8> {
    let part = |at: u64, list: &[Vec<u8>]| each(list, |one| field(at, one));
    [part(1, nodes), part(5, constants), part(11, inputs), part(12, outputs)].concat()
}

/// A function of the domain `own`.
pub fn function(
    name: &str,
    inputs: &str,
    outputs: &str,
    nodes: &[Vec<u8>],
    defaults: &[(&str, Is)],
) -> Vec<u8> {
    let names =
        |at: u64, list: &str| list.split_whitespace().flat_map(|name| field(at, name)).collect::<Vec<_>>();
    let nodes = each(nodes, |node| field(7, node));
    let defaults = each(defaults, |(name, value)| field(11, attribute(name, value)));
    [field(1, name), names(4, inputs), names(5, outputs), nodes, field(10, "own"), defaults].concat()
}

pub fn model(graph: &[u8], functions: &[Vec<u8>]) -> Vec<u8> {
    [number(1, 8), field(7, graph), each(functions, |one| field(25, one))].concat()
}

/// A model of all that a reader must follow: bodies, a function, and shapes that are computed.
pub fn rich() -> Vec<u8> {
    let branch = |op: &str, name: &str| {
        Is::Graph(graph(&[node(op, "x", name, &[])], &[], &[], &[info(name, FLOAT, &[2, 3, 4])]))
    };
    let body = graph(
        &[node("Identity", "go", "on", &[]), node("Add", "s x", "t", &[]), node("Abs", "t", "row", &[])],
        &[],
        &[info("i", INT64, &[]), info("go", BOOL, &[]), info("s", FLOAT, &[2, 3, 4])],
        &[info("on", BOOL, &[]), info("t", FLOAT, &[2, 3, 4]), info("row", FLOAT, &[2, 3, 4])],
    );
    let half = function(
        "half",
        "v",
        "w",
        &[
            node("Constant", "", "two", &[("value_ints", Is::Of("parts"))]),
            node("Shape", "v", "dims", &[]),
            node("Div", "dims two", "less", &[]),
            node("ConstantOfShape", "less", "w", &[]),
        ],
        &[("parts", Is::Ints(vec![2]))],
    );
    let nodes = [
        node("If", "c", "y", &[("then_branch", branch("Sin", "p")), ("else_branch", branch("Cos", "q"))]),
        node("Loop", "count _ y", "z rows", &[("body", Is::Graph(body))]),
        called("own", "half", "rows", "h", &[]),
        node("Slice", "table start end axes steps", "turned", &[]),
        node("Transpose", "turned", "flat", &[("perm", Is::Ints(vec![1, 0]))]),
        node("Reshape", "flat one", "list", &[]),
        node("ConstantOfShape", "list", "o", &[]),
    ];
    let constants = [
        ints("count", &[], &[5]),
        ints("table", &[2, 2], &[1, 2, 3, 4]),
        ints("start", &[1], &[-1]),
        ints("end", &[1], &[-i64::MAX]),
        ints("axes", &[1], &[0]),
        ints("steps", &[1], &[-1]),
        ints("one", &[1], &[-1]),
    ];
    let inputs = [info("c", BOOL, &[]), info("x", FLOAT, &[2, 3, 4])];
    model(
        &graph(&nodes, &constants, &inputs, &[info("z", FLOAT, &[2, 3, 4]), info("o", FLOAT, &[])]),
        &[half],
    )
}
