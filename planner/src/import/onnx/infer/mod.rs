//! Shapes of operators' outputs, and the values of small integer tensors from which shapes are made.

mod shapes;
mod value;

use super::proto::Node;
use shapes::{matmul, recurrent, reduce, reshaped, resize, slice, split, windows};
pub use value::constant;
use value::{Context, axis, broadcast, dimension, fold, product, stretched};

/// The known properties of a tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    pub shape: Vec<u64>,
    pub dtype: i32,
    /// Its elements, if they are integers or booleans that are known without running the model.
    pub ints: Option<Vec<i64>>,
    /// The same for floats, of constants only.
    pub floats: Option<Vec<f32>>,
}

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i32 = 9;

/// Integer tensors of more elements are not followed.
const FOLDED: usize = 4096;

/// Operators whose first output is their first input in another shape.
pub const VIEWS: &[&str] = &["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"];

/// Operators that work on one input, element by element.
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

/// Operators that broadcast two or more inputs against each other, with an output of their type.
pub const BINARY: &[&str] =
    &["Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Xor"];

/// Operators that broadcast two inputs against each other, with booleans as their output.
const COMPARE: &[&str] = &["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];

/// Operators whose output has the first input's shape, and each row of it depends on the same row alone, so that it may
/// overwrite the input.
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
    "GRU",
    "Gather",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "InstanceNormalization",
    "Isnan",
    "LRN",
    "LSTM",
    "MatMul",
    "MaxPool",
    "Not",
    "Pad",
    "QuantizeLinear",
    "RNN",
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

/// Returns whether this importer knows the operator's shapes.
pub fn known(node: &Node) -> bool {
    let op = node.op_type.as_str();
    let standard = node.domain.is_empty() || node.domain == "ai.onnx";
    standard && [VIEWS, UNARY, BINARY, COMPARE, ROWWISE, REDUCE, OTHER].iter().any(|list| list.contains(&op))
}

/// Returns the operator's name with its domain.
pub fn full_name(node: &Node) -> String {
    if node.domain.is_empty() { node.op_type.clone() } else { format!("{}.{}", node.domain, node.op_type) }
}

/// Infers the outputs of a node.
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
        "GRU" | "LSTM" | "RNN" => recurrent(&context, op),
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
