//! Shapes of operators' outputs, and the values of small integer tensors from which shapes are made.

use super::proto::{Attribute, Node, TensorProto};

/// What is known of a tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    pub shape: Vec<u64>,
    pub dtype: i32,
    /// Its elements, if they are integers (or truths) that are known without running the model.
    pub ints: Option<Vec<i64>>,
    /// The same for floats, of constants only.
    pub floats: Option<Vec<f32>>,
}

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i32 = 9;

/// Integer tensors of more elements are not followed.
const FOLDED: usize = 4096;

/// The first output is the first input, seen otherwise.
pub const VIEWS: &[&str] = &["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"];

/// One input, element by element.
pub const UNARY: &[&str] = &[
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
];

/// Two inputs (or more) broadcast against each other, of their own type.
pub const BINARY: &[&str] =
    &["Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Xor"];

/// Two inputs broadcast against each other, to truths.
const COMPARE: &[&str] = &["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];

/// Of the first input's shape; each row depends on itself alone, so it can be overwritten.
pub const ROWWISE: &[&str] = &["BatchNormalization", "LayerNormalization", "LogSoftmax", "Softmax"];

const REDUCE: &[&str] = &[
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

const OTHER: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "Cast",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "DequantizeLinear",
    "Expand",
    "Gather",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "InstanceNormalization",
    "Isnan",
    "LRN",
    "MatMul",
    "MaxPool",
    "Not",
    "Pad",
    "QuantizeLinear",
    "Range",
    "Resize",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Tile",
    "Transpose",
    "Trilu",
    "Where",
];

/// True if the operator's shapes are known here.
pub fn known(node: &Node) -> bool {
    let op = node.op_type.as_str();
    let standard = node.domain.is_empty() || node.domain == "ai.onnx";
    standard && [VIEWS, UNARY, BINARY, COMPARE, ROWWISE, REDUCE, OTHER].iter().any(|list| list.contains(&op))
}

/// The operator's name with its domain.
pub fn full_name(node: &Node) -> String {
    if node.domain.is_empty() { node.op_type.clone() } else { format!("{}.{}", node.domain, node.op_type) }
}

/// An initializer's value.
pub fn constant(tensor: &TensorProto) -> Result<Value, String> {
    let shape = tensor.dims.iter().map(|&dim| dimension(dim)).collect::<Result<Vec<u64>, _>>()?;
    let count =
        shape.iter().try_fold(1_u64, |count, &dim| count.checked_mul(dim)).ok_or("the shape overflows")?;
    let mut value = Value { shape, dtype: tensor.data_type, ..Value::default() };
    if count > FOLDED as u64 {
        return Ok(value);
    }
    let raw = |bytes: usize| {
        let chunks = tensor.raw_data.chunks_exact(bytes);
        chunks
            .map(|chunk| chunk.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte)))
            .collect::<Vec<_>>()
    };
    let ints: Option<Vec<i64>> = match tensor.data_type {
        7 if !tensor.raw_data.is_empty() => Some(raw(8).into_iter().map(|word| word as i64).collect()),
        7 => Some(tensor.int64_data.clone()),
        6 if !tensor.raw_data.is_empty() => {
            Some(raw(4).into_iter().map(|word| i64::from(word as u32 as i32)).collect())
        }
        9 if !tensor.raw_data.is_empty() => {
            Some(tensor.raw_data.iter().map(|&byte| i64::from(byte)).collect())
        }
        6 | 9 => Some(tensor.int32_data.iter().map(|&int| i64::from(int)).collect()),
        _ => None,
    };
    match ints {
        Some(ints) if ints.len() as u64 != count => {
            return Err(format!("it has {} elements of {count}", ints.len()));
        }
        ints => value.ints = ints,
    }
    if tensor.data_type == FLOAT {
        let words = raw(4).into_iter().map(|word| f32::from_bits(word as u32));
        let floats = if tensor.raw_data.is_empty() { tensor.float_data.clone() } else { words.collect() };
        value.floats = Some(floats).filter(|floats| floats.len() as u64 == count);
    }
    Ok(value)
}

fn dimension(dim: i64) -> Result<u64, String> {
    u64::try_from(dim).map_err(|_| format!("a dimension is {dim}"))
}

/// A node's attributes and inputs, with errors that name what is missing.
struct Context<'a> {
    node: &'a Node,
    inputs: &'a [Option<&'a Value>],
}

impl<'a> Context<'a> {
    fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    fn ints(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    fn text(&self, name: &str) -> String {
        self.attribute(name)
            .map_or(String::new(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    fn optional(&self, n: usize) -> Option<&'a Value> {
        self.inputs.get(n).copied().flatten()
    }

    fn input(&self, n: usize) -> Result<&'a Value, String> {
        self.optional(n).ok_or_else(|| format!("input {n} is missing"))
    }

    /// The elements of an input that must be known.
    fn known(&self, n: usize) -> Result<&'a [i64], String> {
        let ints = self.input(n)?.ints.as_deref();
        ints.ok_or_else(|| format!("input {n} is not known before the model runs"))
    }

    /// A list given as an attribute (older opsets) or as an input (newer ones).
    fn list(&self, name: &str, n: usize) -> Result<Option<&'a [i64]>, String> {
        match (self.ints(name), self.optional(n)) {
            (Some(ints), _) => Ok(Some(ints)),
            (None, Some(_)) => self.known(n).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// An axis counted from the front.
fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let from_front = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    let found = usize::try_from(from_front).ok().filter(|&axis| axis < rank);
    found.ok_or_else(|| format!("axis {axis} of {rank}"))
}

fn product(dims: &[u64]) -> Result<u64, String> {
    dims.iter()
        .try_fold(1_u64, |count, &dim| count.checked_mul(dim))
        .ok_or_else(|| "the shape overflows".into())
}

fn broadcast(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for shape in shapes {
        for (out, &dim) in out[rank - shape.len()..].iter_mut().zip(*shape) {
            if *out == 1 {
                *out = dim;
            } else if dim != 1 && dim != *out {
                return Err(format!("the shapes {shapes:?} do not broadcast"));
            }
        }
    }
    Ok(out)
}

/// The elements of a tensor seen in a larger shape.
fn stretched(value: &Value, shape: &[u64]) -> Option<Vec<i64>> {
    let ints = value.ints.as_ref()?;
    let count = usize::try_from(product(shape).ok()?).ok().filter(|&count| count <= FOLDED)?;
    let lead = shape.len() - value.shape.len();
    let mut out = Vec::with_capacity(count);
    for flat in 0..count {
        let (mut rest, mut at, mut stride) = (flat, 0, 1);
        for n in (0..shape.len()).rev() {
            let place = rest % shape[n] as usize;
            rest /= shape[n] as usize;
            if n >= lead {
                let dim = value.shape[n - lead] as usize;
                at += if dim == 1 { 0 } else { place * stride };
                stride *= dim;
            }
        }
        out.push(*ints.get(at)?);
    }
    Some(out)
}

fn fold(op: &str, a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let pairs = a.iter().zip(b);
    pairs
        .map(|(&a, &b)| match op {
            "Add" | "Sum" => a.checked_add(b),
            "Sub" => a.checked_sub(b),
            "Mul" => a.checked_mul(b),
            "Div" => a.checked_div(b),
            "Mod" => a.checked_rem_euclid(b),
            "Max" => Some(a.max(b)),
            "Min" => Some(a.min(b)),
            "And" => Some(i64::from(a != 0 && b != 0)),
            "Or" => Some(i64::from(a != 0 || b != 0)),
            "Equal" => Some(i64::from(a == b)),
            "Greater" => Some(i64::from(a > b)),
            "GreaterOrEqual" => Some(i64::from(a >= b)),
            "Less" => Some(i64::from(a < b)),
            "LessOrEqual" => Some(i64::from(a <= b)),
            _ => None,
        })
        .collect()
}

/// The outputs of a node.
pub fn infer(node: &Node, inputs: &[Option<&Value>]) -> Result<Vec<Value>, String> {
    let context = Context { node, inputs };
    let op = node.op_type.as_str();
    let same = |value: &Value, shape: Vec<u64>| Value { shape, dtype: value.dtype, ..Value::default() };
    let one = |value: Value| Ok(vec![value]);
    if UNARY.contains(&op) || op == "LRN" || op == "Not" || op == "Trilu" {
        let x = context.input(0)?;
        return one(same(x, x.shape.clone()));
    }
    if BINARY.contains(&op) || COMPARE.contains(&op) {
        let values = (0..inputs.len()).map(|n| context.input(n)).collect::<Result<Vec<_>, _>>()?;
        let first = *values.first().ok_or("it has no input")?;
        let shapes: Vec<&[u64]> = values.iter().map(|value| value.shape.as_slice()).collect();
        let shape = broadcast(&shapes)?;
        let ints = match values[..] {
            [a, b] => stretched(a, &shape).zip(stretched(b, &shape)).and_then(|(a, b)| fold(op, &a, &b)),
            _ => None,
        };
        let dtype = if COMPARE.contains(&op) { BOOL } else { first.dtype };
        return one(Value { shape, dtype, ints, ..Value::default() });
    }
    if REDUCE.contains(&op) || op == "ArgMax" || op == "ArgMin" {
        return one(reduce(&context, op)?);
    }
    match op {
        "Softmax" | "LogSoftmax" | "InstanceNormalization" => {
            let x = context.input(0)?;
            one(same(x, x.shape.clone()))
        }
        "BatchNormalization" | "LayerNormalization" => {
            if node.output.len() > 1 {
                return Err("only its first output is supported".into());
            }
            let x = context.input(0)?;
            one(same(x, x.shape.clone()))
        }
        "Identity" => one(context.input(0)?.clone()),
        "Dropout" => {
            let x = context.input(0)?;
            Ok(vec![x.clone(), Value { dtype: BOOL, ints: None, ..x.clone() }])
        }
        "Constant" => one(constant_node(&context)?),
        "ConstantOfShape" => {
            let shape = context.known(0)?.iter().map(|&dim| dimension(dim)).collect::<Result<Vec<_>, _>>()?;
            let fill = context
                .attribute("value")
                .and_then(|attribute| attribute.t.as_ref())
                .map(constant)
                .transpose()?;
            let count = product(&shape)?;
            let dtype = fill.as_ref().map_or(FLOAT, |fill| fill.dtype);
            let element = fill.and_then(|fill| fill.ints).and_then(|ints| ints.first().copied());
            let ints =
                element.filter(|_| count <= FOLDED as u64).map(|element| vec![element; count as usize]);
            one(Value { shape, dtype, ints, ..Value::default() })
        }
        "Shape" => {
            let dims = &context.input(0)?.shape;
            let bound = |name: &str, default: usize| {
                let at = context.int(name, default as i64);
                let at = if at < 0 { at.saturating_add(dims.len() as i64) } else { at };
                at.clamp(0, dims.len() as i64) as usize
            };
            let (start, end) = (bound("start", 0), bound("end", dims.len()));
            let ints: Vec<i64> = dims[start..end.max(start)].iter().map(|&dim| dim as i64).collect();
            one(Value { shape: vec![ints.len() as u64], dtype: INT64, ints: Some(ints), ..Value::default() })
        }
        "Size" => {
            let count = product(&context.input(0)?.shape)?;
            one(Value { shape: vec![], dtype: INT64, ints: Some(vec![count as i64]), ..Value::default() })
        }
        "Cast" => {
            let x = context.input(0)?;
            let dtype = context.int("to", 0) as i32;
            let ints = x.ints.clone().filter(|_| matches!(dtype, 6 | 7));
            one(Value { shape: x.shape.clone(), dtype, ints, ..Value::default() })
        }
        "QuantizeLinear" => {
            let x = context.input(0)?;
            let dtype = context.optional(2).map_or(2, |zero| zero.dtype);
            one(Value { shape: x.shape.clone(), dtype, ..Value::default() })
        }
        "DequantizeLinear" => {
            let (x, scale) = (context.input(0)?, context.input(1)?);
            one(Value { shape: x.shape.clone(), dtype: scale.dtype, ..Value::default() })
        }
        "Reshape" => {
            let x = context.input(0)?;
            let shape = reshaped(&x.shape, context.known(1)?, context.int("allowzero", 0) != 0)?;
            one(Value { shape, ..x.clone() })
        }
        "Flatten" => {
            let x = context.input(0)?;
            let at = context.int("axis", 1);
            let at = if at < 0 { at.saturating_add(x.shape.len() as i64) } else { at };
            let at = usize::try_from(at)
                .ok()
                .filter(|&at| at <= x.shape.len())
                .ok_or("its axis is out of range")?;
            one(Value { shape: vec![product(&x.shape[..at])?, product(&x.shape[at..])?], ..x.clone() })
        }
        "Squeeze" => {
            let x = context.input(0)?;
            let axes = match context.list("axes", 1)? {
                Some(axes) => axes.iter().map(|&a| axis(a, x.shape.len())).collect::<Result<Vec<_>, _>>()?,
                None => (0..x.shape.len()).filter(|&n| x.shape[n] == 1).collect(),
            };
            let kept = x.shape.iter().enumerate().filter(|(n, _)| !axes.contains(n));
            one(Value { shape: kept.map(|(_, &dim)| dim).collect(), ..x.clone() })
        }
        "Unsqueeze" => {
            let x = context.input(0)?;
            let axes = context.list("axes", 1)?.ok_or("its axes are missing")?;
            let rank = x.shape.len() + axes.len();
            let axes = axes.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
            let mut rest = x.shape.iter().copied();
            let shape =
                (0..rank).map(|n| if axes.contains(&n) { 1 } else { rest.next().unwrap_or(1) }).collect();
            one(Value { shape, ..x.clone() })
        }
        "Transpose" => {
            let x = context.input(0)?;
            let rank = x.shape.len();
            let order = match context.ints("perm") {
                Some(order) => order.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?,
                None => (0..rank).rev().collect(),
            };
            if order.len() != rank {
                return Err(format!("{} axes for {rank}", order.len()));
            }
            one(same(x, order.into_iter().map(|n| x.shape[n]).collect()))
        }
        "Concat" => {
            let values = (0..inputs.len()).map(|n| context.input(n)).collect::<Result<Vec<_>, _>>()?;
            let first = *values.first().ok_or("it has no input")?;
            let at = axis(context.int("axis", 0), first.shape.len())?;
            let mut shape = first.shape.clone();
            shape[at] = 0;
            for value in &values {
                let fits = value.shape.len() == shape.len()
                    && (0..shape.len()).all(|n| n == at || value.shape[n] == first.shape[n]);
                if !fits {
                    return Err(format!("{:?} does not join {:?} along axis {at}", value.shape, first.shape));
                }
                shape[at] = shape[at].checked_add(value.shape[at]).ok_or("the shape overflows")?;
            }
            let lists: Option<Vec<&[i64]>> = values.iter().map(|value| value.ints.as_deref()).collect();
            let ints = lists.filter(|_| shape.len() == 1).map(|lists| lists.concat());
            one(Value { shape, dtype: first.dtype, ints, ..Value::default() })
        }
        "Split" => split(&context),
        "Slice" => one(slice(&context)?),
        "Gather" => {
            let (x, at) = (context.input(0)?, context.input(1)?);
            let along = axis(context.int("axis", 0), x.shape.len())?;
            let shape: Vec<u64> =
                x.shape[..along].iter().chain(&at.shape).chain(&x.shape[along + 1..]).copied().collect();
            let ints = x.ints.as_ref().zip(at.ints.as_ref()).filter(|_| x.shape.len() == 1).and_then(
                |(ints, at)| {
                    let pick = |&n: &i64| {
                        ints.get(
                            usize::try_from(if n < 0 { n.saturating_add(ints.len() as i64) } else { n })
                                .ok()?,
                        )
                    };
                    at.iter().map(|n| pick(n).copied()).collect()
                },
            );
            one(Value { shape, dtype: x.dtype, ints, ..Value::default() })
        }
        "Expand" => {
            let x = context.input(0)?;
            let shape = context.known(1)?.iter().map(|&dim| dimension(dim)).collect::<Result<Vec<_>, _>>()?;
            let shape = broadcast(&[&x.shape, &shape])?;
            let ints = stretched(x, &shape);
            one(Value { shape, dtype: x.dtype, ints, ..Value::default() })
        }
        "Where" => {
            let (test, a, b) = (context.input(0)?, context.input(1)?, context.input(2)?);
            let shape = broadcast(&[&test.shape, &a.shape, &b.shape])?;
            let ints = stretched(test, &shape).zip(stretched(a, &shape)).zip(stretched(b, &shape));
            let choose = |((test, a), b): ((Vec<i64>, Vec<i64>), Vec<i64>)| {
                test.iter()
                    .zip(a.iter().zip(b))
                    .map(|(&test, (&a, b))| if test != 0 { a } else { b })
                    .collect()
            };
            one(Value { shape, dtype: a.dtype, ints: ints.map(choose), ..Value::default() })
        }
        "Tile" => {
            let x = context.input(0)?;
            let times = context.known(1)?;
            if times.len() != x.shape.len() {
                return Err(format!("{} repeats for {} axes", times.len(), x.shape.len()));
            }
            let dims = x.shape.iter().zip(times).map(|(&dim, &times)| {
                dimension(times).and_then(|times| dim.checked_mul(times).ok_or("the shape overflows".into()))
            });
            one(same(x, dims.collect::<Result<_, String>>()?))
        }
        "Range" => {
            let (start, limit, step) = (context.known(0)?, context.known(1)?, context.known(2)?);
            let (&[start], &[limit], &[step]) = (start, limit, step) else {
                return Err("its inputs are no scalars".into());
            };
            if step == 0 {
                return Err("its step is 0".into());
            }
            let span = i128::from(limit) - i128::from(start);
            let count = (span / i128::from(step) + i128::from(span % i128::from(step) != 0)).max(0);
            let count = u64::try_from(count).map_err(|_| "it is too long")?;
            let known = count <= FOLDED as u64;
            let ints =
                known.then(|| (0..count as i64).map(|n| start.wrapping_add(n.wrapping_mul(step))).collect());
            one(Value { shape: vec![count], dtype: context.input(0)?.dtype, ints, ..Value::default() })
        }
        "Pad" => {
            let x = context.input(0)?;
            let pads = context.list("pads", 1)?.ok_or("its pads are missing")?;
            let axes: Vec<usize> = match context.optional(3) {
                Some(_) => {
                    context.known(3)?.iter().map(|&a| axis(a, x.shape.len())).collect::<Result<_, _>>()?
                }
                None => (0..x.shape.len()).collect(),
            };
            if pads.len() != 2 * axes.len() {
                return Err(format!("{} pads for {} axes", pads.len(), axes.len()));
            }
            let mut shape = x.shape.clone();
            for (n, &at) in axes.iter().enumerate() {
                let padded = i128::from(shape[at]) + i128::from(pads[n]) + i128::from(pads[n + axes.len()]);
                shape[at] = u64::try_from(padded).map_err(|_| format!("a dimension is {padded}"))?;
            }
            one(same(x, shape))
        }
        "Resize" => one(resize(&context)?),
        "DepthToSpace" | "SpaceToDepth" => {
            let x = context.input(0)?;
            let block = dimension(context.int("blocksize", 1))?.max(1);
            let [n, c, h, w] = x.shape[..] else {
                return Err("its input is not of four dimensions".into());
            };
            let area = block.saturating_mul(block);
            let shape = if op == "DepthToSpace" {
                vec![n, c / area, h.saturating_mul(block), w.saturating_mul(block)]
            } else {
                vec![n, c.saturating_mul(area), h / block, w / block]
            };
            one(same(x, shape))
        }
        "MatMul" => {
            let (a, b) = (context.input(0)?, context.input(1)?);
            one(same(a, matmul(&a.shape, &b.shape)?))
        }
        "Gemm" => {
            let (a, b) = (context.input(0)?, context.input(1)?);
            let ([m, k], [p, q]) = (&a.shape[..], &b.shape[..]) else {
                return Err("its inputs are no matrices".into());
            };
            let (m, k) = if context.int("transA", 0) != 0 { (k, m) } else { (m, k) };
            let (p, q) = if context.int("transB", 0) != 0 { (q, p) } else { (p, q) };
            if k != p {
                return Err(format!("{:?} and {:?} do not multiply", a.shape, b.shape));
            }
            one(same(a, vec![*m, *q]))
        }
        "Conv" | "MaxPool" | "AveragePool" | "ConvTranspose" => windows(&context, op),
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let x = context.input(0)?;
            let dims = x.shape.iter().enumerate();
            one(same(x, dims.map(|(n, &dim)| if n < 2 { dim } else { 1 }).collect()))
        }
        _ => Err("it is not supported".into()),
    }
}

fn constant_node(context: &Context) -> Result<Value, String> {
    let scalar = |dtype, ints| Value { shape: vec![], dtype, ints, ..Value::default() };
    if let Some(tensor) = context.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        return constant(tensor);
    }
    if let Some(attribute) = context.attribute("value_int") {
        return Ok(scalar(INT64, Some(vec![attribute.i])));
    }
    if context.attribute("value_float").is_some() {
        return Ok(scalar(FLOAT, None));
    }
    if let Some(ints) = context.ints("value_ints") {
        return Ok(Value {
            shape: vec![ints.len() as u64],
            dtype: INT64,
            ints: Some(ints.into()),
            ..Value::default()
        });
    }
    Err("it has no value that is supported".into())
}

fn reduce(context: &Context, op: &str) -> Result<Value, String> {
    let x = context.input(0)?;
    let rank = x.shape.len();
    let arg = op.starts_with("Arg");
    let axes: Vec<usize> = if arg {
        vec![axis(context.int("axis", 0), rank)?]
    } else {
        match context.list("axes", 1)? {
            Some(axes) if !axes.is_empty() => {
                axes.iter().map(|&a| axis(a, rank)).collect::<Result<_, _>>()?
            }
            _ if context.int("noop_with_empty_axes", 0) != 0 => vec![],
            _ => (0..rank).collect(),
        }
    };
    let keep = context.int("keepdims", 1) != 0;
    let dims = x.shape.iter().enumerate();
    let shape = dims
        .filter_map(|(n, &dim)| match axes.contains(&n) {
            true if keep => Some(1),
            true => None,
            false => Some(dim),
        })
        .collect();
    Ok(Value { shape, dtype: if arg { INT64 } else { x.dtype }, ..Value::default() })
}

fn reshaped(from: &[u64], to: &[i64], allow_zero: bool) -> Result<Vec<u64>, String> {
    let count = product(from)?;
    let mut shape = Vec::with_capacity(to.len());
    let mut open = None;
    for (n, &dim) in to.iter().enumerate() {
        shape.push(match dim {
            -1 if open.is_none() => {
                open = Some(n);
                1
            }
            0 if !allow_zero => *from.get(n).ok_or("a 0 copies a dimension that is not there")?,
            dim => dimension(dim)?,
        });
    }
    let fixed = product(&shape)?;
    if let Some(n) = open {
        if fixed == 0 || count % fixed != 0 {
            return Err(format!("{from:?} cannot take the shape {to:?}"));
        }
        shape[n] = count / fixed;
    } else if fixed != count {
        return Err(format!("{from:?} cannot take the shape {to:?}"));
    }
    Ok(shape)
}

fn matmul(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
    let wrong = || format!("{a:?} and {b:?} do not multiply");
    let (Some(&k), Some(&first)) = (a.last(), b.first()) else {
        return Err(wrong());
    };
    let p = if b.len() == 1 { first } else { b[b.len() - 2] };
    if k != p {
        return Err(wrong());
    }
    let batch = |shape: &'_ [u64]| shape[..shape.len().saturating_sub(2)].to_vec();
    let mut shape = broadcast(&[&batch(a), &batch(b)])?;
    if a.len() > 1 {
        shape.push(a[a.len() - 2]);
    }
    if b.len() > 1 {
        shape.push(b[b.len() - 1]);
    }
    Ok(shape)
}

fn split(context: &Context) -> Result<Vec<Value>, String> {
    let x = context.input(0)?;
    let at = axis(context.int("axis", 0), x.shape.len())?;
    let count = context.node.output.len() as u64;
    let sizes: Vec<u64> = match context.list("split", 1)? {
        Some(sizes) => sizes.iter().map(|&size| dimension(size)).collect::<Result<_, _>>()?,
        None => {
            let part = x.shape[at].div_ceil(count.max(1));
            (0..count).map(|n| part.min(x.shape[at].saturating_sub(n * part))).collect()
        }
    };
    let total = sizes.iter().try_fold(0_u64, |total, &size| total.checked_add(size));
    if sizes.len() as u64 != count || total != Some(x.shape[at]) {
        return Err(format!("{sizes:?} do not divide {}", x.shape[at]));
    }
    let value = |size| {
        let mut shape = x.shape.clone();
        shape[at] = size;
        Value { shape, dtype: x.dtype, ..Value::default() }
    };
    Ok(sizes.into_iter().map(value).collect())
}

fn slice(context: &Context) -> Result<Value, String> {
    let x = context.input(0)?;
    let missing = || "its starts or ends are missing".to_string();
    let starts = context.list("starts", 1)?.ok_or_else(missing)?;
    let ends = context.list("ends", 2)?.ok_or_else(missing)?;
    let axes = match context.list("axes", 3)? {
        Some(axes) => axes.iter().map(|&a| axis(a, x.shape.len())).collect::<Result<Vec<_>, _>>()?,
        None => (0..starts.len()).collect(),
    };
    let steps = context.optional(4).map(|_| context.known(4)).transpose()?;
    if starts.len() != ends.len() || axes.len() != starts.len() || axes.iter().any(|&at| at >= x.shape.len())
    {
        return Err("its starts, ends and axes do not fit".into());
    }
    let mut shape = x.shape.clone();
    let mut ints = x.ints.clone().filter(|_| x.shape.len() == 1);
    for (n, &at) in axes.iter().enumerate() {
        let step = steps.and_then(|steps| steps.get(n).copied()).unwrap_or(1);
        let dim = x.shape[at] as i64;
        let clamp = |place: i64, low: i64, high: i64| {
            (if place < 0 { place.saturating_add(dim) } else { place }).clamp(low, high)
        };
        let (start, end) = match step {
            0 => return Err("its step is 0".into()),
            1.. => (clamp(starts[n], 0, dim), clamp(ends[n], 0, dim)),
            _ => (clamp(starts[n], 0, (dim - 1).max(0)), clamp(ends[n], -1, dim - 1)),
        };
        let span = i128::from(end) - i128::from(start);
        let step = i128::from(step);
        let count = if span == 0 || (span > 0) != (step > 0) {
            0
        } else {
            (span.abs() + step.abs() - 1) / step.abs()
        };
        shape[at] = count as u64;
        ints = ints.map(|ints| {
            let places = (0..count).map(|k| (i128::from(start) + k * step) as usize);
            places.filter_map(|place| ints.get(place).copied()).collect()
        });
    }
    Ok(Value { shape, dtype: x.dtype, ints, ..Value::default() })
}

fn resize(context: &Context) -> Result<Value, String> {
    let x = context.input(0)?;
    if context.optional(3).is_some() {
        let sizes = context.known(3)?;
        if sizes.len() == x.shape.len() {
            let shape = sizes.iter().map(|&dim| dimension(dim)).collect::<Result<_, _>>()?;
            return Ok(Value { shape, dtype: x.dtype, ..Value::default() });
        }
    }
    let at = if context.node.input.len() == 2 { 1 } else { 2 };
    let scales = context.optional(at).and_then(|scales| scales.floats.as_ref());
    match scales.filter(|scales| scales.len() == x.shape.len()) {
        Some(scales) => {
            let dims =
                x.shape.iter().zip(scales).map(|(&dim, &scale)| (dim as f64 * f64::from(scale)).floor());
            Ok(Value { shape: dims.map(|dim| dim as u64).collect(), dtype: x.dtype, ..Value::default() })
        }
        None => Err("neither its sizes nor its scales are known for all axes".into()),
    }
}

/// Convolutions and poolings.
fn windows(context: &Context, op: &str) -> Result<Vec<Value>, String> {
    let x = context.input(0)?;
    let spatial = x.shape.len().checked_sub(2).ok_or("its input has fewer than two dimensions")?;
    let conv = op.starts_with("Conv");
    let weights = if conv { Some(context.input(1)?) } else { None };
    let kernel: Vec<u64> = match (context.ints("kernel_shape"), weights) {
        (Some(kernel), _) => kernel.iter().map(|&dim| dimension(dim)).collect::<Result<_, _>>()?,
        (None, Some(weights)) => weights.shape.get(2..).unwrap_or_default().to_vec(),
        (None, None) => return Err("its kernel_shape is missing".into()),
    };
    let list = |name: &str, count: usize, default: i64| -> Result<Vec<i64>, String> {
        let list = context.ints(name).map_or(vec![default; count], <[i64]>::to_vec);
        if list.len() == count {
            Ok(list)
        } else {
            Err(format!("{name} has {} entries of {count}", list.len()))
        }
    };
    let strides = list("strides", spatial, 1)?;
    let dilations = list("dilations", spatial, 1)?;
    let pads = list("pads", 2 * spatial, 0)?;
    let extra = list("output_padding", spatial, 0)?;
    if kernel.len() != spatial || strides.iter().any(|&stride| stride < 1) {
        return Err("its kernel or strides do not fit its input".into());
    }
    let auto = context.text("auto_pad");
    let group = context.int("group", 1).max(1) as u64;
    let channels = match weights {
        Some(weights) if op == "Conv" => *weights.shape.first().ok_or("its weights are a scalar")?,
        Some(weights) => weights.shape.get(1).ok_or("its weights have one dimension")?.saturating_mul(group),
        None => x.shape[1],
    };
    if let Some(weights) = weights.filter(|_| op == "Conv") {
        if weights.shape.get(1).is_none_or(|&per_group| per_group.saturating_mul(group) != x.shape[1]) {
            return Err(format!(
                "{:?} does not fit weights of {:?} in {group} groups",
                x.shape, weights.shape
            ));
        }
    }
    let mut shape = vec![x.shape[0], channels];
    for n in 0..spatial {
        let (dim, stride) = (i128::from(x.shape[n + 2]), i128::from(strides[n]));
        let reach = (i128::from(kernel[n]) - 1) * i128::from(dilations[n]) + 1;
        let pad = i128::from(pads[n]) + i128::from(pads[n + spatial]);
        let out = match (op, auto.as_str()) {
            ("ConvTranspose", "SAME_UPPER" | "SAME_LOWER") => dim * stride,
            ("ConvTranspose", _) => stride * (dim - 1) + i128::from(extra[n]) + reach - pad,
            (_, "SAME_UPPER" | "SAME_LOWER") => (dim + stride - 1) / stride,
            _ => {
                let pad = if auto == "VALID" { 0 } else { pad };
                let room = dim + pad - reach;
                let up = context.int("ceil_mode", 0) != 0;
                if room < 0 { -1 } else { (room + if up { stride - 1 } else { 0 }) / stride + 1 }
            }
        };
        shape.push(u64::try_from(out).map_err(|_| format!("its window does not fit {:?}", x.shape))?);
    }
    let first = Value { shape: shape.clone(), dtype: x.dtype, ..Value::default() };
    let places = Value { shape, dtype: INT64, ..Value::default() };
    Ok(vec![first, places])
}
