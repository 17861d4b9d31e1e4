//! Operators that compute with elements: broadcasts, reductions, products, and signals.

use std::collections::BTreeMap;

use super::context::Context;
use super::fault::{Fault, refuse_if};
use super::layout::{Values, one};
use super::value::{BOOL, FLOAT, INT32, INT64, UINT8, Value, axes, axis, broadcast, dimension};

/// Broadcasts all inputs against each other.
pub fn broadcasts(context: &Context) -> Values {
    let values = context.all()?;
    let shapes: Vec<&[u64]> = values.iter().map(|value| value.shape.as_slice()).collect();
    one(broadcast(&shapes)?, values.first().ok_or("it has no input")?.dtype)
}

/// Broadcasts some of the inputs against each other.
pub fn across(context: &Context, inputs: &[usize], dtype: i32) -> Values {
    let shapes = inputs.iter().map(|&n| Ok(context.input(n)?.shape.as_slice()));
    one(broadcast(&shapes.collect::<Result<Vec<_>, Fault>>()?)?, dtype)
}

pub fn compare(context: &Context) -> Values {
    Ok(broadcasts(context)?.into_iter().map(|value| Value { dtype: BOOL, ..value }).collect())
}

/// Returns, for each axis, whether a reduction reduces it.
pub fn reduced(context: &Context) -> Result<Vec<bool>, Fault> {
    let rank = context.input(0)?.shape.len();
    let mut out = vec![false; rank];
    if context.op().starts_with("Arg") {
        out[axis(context.int("axis", 0), rank)?] = true;
        return Ok(out);
    }
    // The second input of `QLinearReduceMean` is a scale.
    let listed = match context.op() {
        "QLinearReduceMean" => context.ints("axes"),
        _ => context.list("axes", 1)?,
    };
    match listed {
        Some(list) if !list.is_empty() => axes(list, rank)?.into_iter().for_each(|at| out[at] = true),
        _ => out.fill(!context.flag("noop_with_empty_axes")),
    }
    Ok(out)
}

pub fn reduce(context: &Context) -> Values {
    let x = context.input(0)?;
    let keep = context.int("keepdims", 1) != 0;
    let dims = x.shape.iter().zip(reduced(context)?);
    let shape = dims.filter_map(|(&dim, out)| if out { keep.then_some(1) } else { Some(dim) }).collect();
    one(shape, if context.op().starts_with("Arg") { INT64 } else { x.dtype })
}

pub fn top_k(context: &Context) -> Values {
    let x = context.input(0)?;
    let at = axis(context.int("axis", -1), x.shape.len())?;
    let k = match context.attribute("k") {
        Some(attribute) => attribute.i,
        None => context.scalar(1)?,
    };
    let k = dimension(k)?;
    refuse_if(k > x.shape[at], || format!("{k} of {}", x.shape[at]))?;
    let mut shape = x.shape.clone();
    shape[at] = k;
    Ok(vec![Value::new(shape.clone(), x.dtype), Value::new(shape, INT64)])
}

fn matmul(a: &[u64], b: &[u64]) -> Result<Vec<u64>, Fault> {
    let wrong = || format!("{a:?} and {b:?} do not multiply").into();
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

/// Infers a product of matrices; the second is input 1, or input 3 if the inputs are quantized. Without a zero point `QGemm` outputs
/// floats.
pub fn product_of(context: &Context) -> Values {
    match context.op() {
        "QGemm" => product(context, context.input(3)?, context.optional(8).map_or(FLOAT, |zero| zero.dtype)),
        "QLinearMatMul" => product(context, context.input(3)?, context.input(7)?.dtype),
        "MatMulInteger" | "MatMulInteger16" => product(context, context.input(1)?, INT32),
        "MatMulIntegerToFloat" => product(context, context.input(1)?, context.input(2)?.dtype),
        _ => product(context, context.input(1)?, context.input(0)?.dtype),
    }
}

/// Infers the product of input 0 and another matrix.
fn product(context: &Context, b: &Value, dtype: i32) -> Values {
    let a = context.input(0)?;
    refuse_if(
        context.op().ends_with("Gemm") && (a.shape.len() != 2 || b.shape.len() != 2),
        || "its inputs are no matrices",
    )?;
    let turned = |value: &Value, flag: &str, batch: &str| {
        let mut shape = value.shape.clone();
        let rank = shape.len();
        if context.flag(batch) && rank > 1 {
            shape[..rank - 1].rotate_left(1);
        }
        if context.flag(flag) && rank > 1 {
            shape.swap(rank - 1, rank - 2);
        }
        shape
    };
    one(matmul(&turned(a, "transA", "transBatchA"), &turned(b, "transB", "transBatchB"))?, dtype)
}

/// Infers the output of a sum of products over named axes, such as `bij,bjk->bik`.
pub fn einsum(context: &Context) -> Values {
    let equation: String = context.text("equation").chars().filter(|char| !char.is_whitespace()).collect();
    let (terms, output) = match equation.split_once("->") {
        Some((terms, output)) => (terms, Some(output)),
        None => (equation.as_str(), None),
    };
    let values = context.all()?;
    let wrong = || Fault::from(format!("its equation `{equation}` does not fit its inputs"));
    if terms.split(',').count() != values.len() {
        return Err(wrong());
    }
    let mut dims: BTreeMap<char, (u64, usize)> = BTreeMap::new();
    let mut rest: Vec<Vec<u64>> = Vec::new();
    for (term, value) in terms.split(',').zip(&values) {
        let (before, after) = term.split_once("...").unwrap_or((term, ""));
        let (front, back) = (before.chars().count(), after.chars().count());
        let end = value.shape.len().checked_sub(back).filter(|&end| end >= front).ok_or_else(wrong)?;
        if !term.contains("...") && end != front {
            return Err(wrong());
        }
        rest.push(value.shape[front..end].to_vec());
        let named = value.shape[..front].iter().chain(&value.shape[end..]);
        for (label, &dim) in before.chars().chain(after.chars()).zip(named) {
            if !label.is_alphabetic() {
                return Err(wrong());
            }
            let known = dims.entry(label).or_insert((dim, 0));
            if known.0 == 1 {
                known.0 = dim;
            } else if dim != 1 && dim != known.0 {
                return Err(wrong());
            }
            known.1 += 1;
        }
    }
    let rest = broadcast(&rest.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    let of = |label: char| dims.get(&label).map(|&(dim, _)| dim).ok_or_else(wrong);
    let shape = match output {
        Some(output) => {
            let (before, after) = output.split_once("...").unwrap_or((output, ""));
            let mut shape = before.chars().map(of).collect::<Result<Vec<_>, _>>()?;
            if output.contains("...") {
                shape.extend(rest);
            }
            for label in after.chars() {
                shape.push(of(label)?);
            }
            shape
        }
        None => rest
            .into_iter()
            .chain(dims.values().filter(|(_, times)| *times == 1).map(|(dim, _)| *dim))
            .collect(),
    };
    one(shape, values.first().ok_or("it has no input")?.dtype)
}

pub fn quantize(context: &Context) -> Values {
    let x = context.input(0)?;
    let told = context.dtype("output_dtype", 0);
    let dtype = context.optional(2).map_or(if told == 0 { UINT8 } else { told }, |zero| zero.dtype);
    one(x.shape.clone(), dtype)
}

pub fn dequantize(context: &Context) -> Values {
    let (x, scale) = (context.input(0)?, context.input(1)?);
    let told = context.dtype("output_dtype", 0);
    one(x.shape.clone(), if told == 0 { scale.dtype } else { told })
}

pub fn dynamic_quantize(context: &Context) -> Values {
    let x = context.input(0)?;
    Ok(vec![Value::new(x.shape.clone(), UINT8), Value::new(vec![], FLOAT), Value::new(vec![], UINT8)])
}

pub fn det(context: &Context) -> Values {
    let x = context.input(0)?;
    let lead = x.shape.len().checked_sub(2).ok_or("its input is no matrix")?;
    one(x.shape[..lead].to_vec(), x.dtype)
}

pub fn window(context: &Context) -> Values {
    one(vec![dimension(context.scalar(0)?)?], context.dtype("output_datatype", FLOAT))
}

pub fn mel(context: &Context) -> Values {
    let (bins, length) = (dimension(context.scalar(0)?)?, dimension(context.scalar(1)?)?);
    one(vec![length / 2 + 1, bins], context.dtype("output_datatype", FLOAT))
}

pub fn dft(context: &Context) -> Values {
    let x = context.input(0)?;
    let rank = x.shape.len();
    let at = match (context.attribute("axis"), context.optional(2)) {
        (Some(attribute), _) => attribute.i,
        (None, Some(_)) => context.scalar(2)?,
        // Before opset 20 the default was 1, which is also axis -2 for a batch of signals.
        (None, None) => -2,
    };
    let at = axis(at, rank)?;
    let mut shape = x.shape.clone();
    let parts = shape.last_mut().filter(|parts| (1..=2).contains(*parts) && at + 1 != rank);
    let parts = parts.ok_or("its last axis holds no real or complex numbers")?;
    let (inverse, half) = (context.flag("inverse"), context.flag("onesided"));
    *parts = if inverse && half { 1 } else { 2 };
    if context.optional(1).is_some() {
        shape[at] = dimension(context.scalar(1)?)?;
    } else if inverse && half {
        shape[at] = shape[at].saturating_sub(1).saturating_mul(2);
    }
    if half && !inverse {
        shape[at] = shape[at] / 2 + 1;
    }
    one(shape, x.dtype)
}

pub fn stft(context: &Context) -> Values {
    let x = context.input(0)?;
    let (Some(&batch), Some(&length)) = (x.shape.first(), x.shape.get(1)) else {
        return Err("its signal has no axis of time".into());
    };
    let step = dimension(context.scalar(1)?)?;
    let frame = match (context.optional(3), context.optional(2)) {
        (Some(_), _) => dimension(context.scalar(3)?)?,
        (None, Some(window)) => *window.shape.first().ok_or("its window is a scalar")?,
        (None, None) => return Err("neither its window nor its frame_length is given".into()),
    };
    refuse_if(step == 0 || frame > length, || {
        format!("frames of {frame} in steps of {step} do not fit {length}")
    })?;
    let bins = if context.int("onesided", 1) != 0 { frame / 2 + 1 } else { frame };
    one(vec![batch, (length - frame) / step + 1, bins, 2], x.dtype)
}

/// Infers samples for each row of the first input.
pub fn multinomial(context: &Context) -> Values {
    let batch = *context.input(0)?.shape.first().ok_or("its input is a scalar")?;
    one(vec![batch, dimension(context.int("sample_size", 1))?], context.dtype("dtype", INT32))
}

pub fn tf_idf(context: &Context) -> Values {
    let x = context.input(0)?;
    let places = context.ints("ngram_indexes").and_then(|list| list.iter().max()).copied().unwrap_or(-1);
    let lead = x.shape.len().checked_sub(1).map_or(&[][..], |lead| &x.shape[..lead]);
    one([lead, &[dimension(places.saturating_add(1))?]].concat(), FLOAT)
}

/// Infers the loss, and for `SoftmaxCrossEntropyLoss` also the logarithms.
pub fn loss(context: &Context) -> Values {
    let (x, labels) = (context.input(0)?, context.input(1)?);
    let each = context.text("reduction") == "none";
    let first = Value::new(if each { labels.shape.clone() } else { vec![] }, x.dtype);
    Ok(vec![first, x.unknown()])
}
