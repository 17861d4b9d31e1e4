//! Shapes of the operators whose rules are long.

use super::value::{Context, axis, broadcast, dimension, product};
use super::{INT64, Value};

pub fn reduce(context: &Context, op: &str) -> Result<Value, String> {
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

pub fn reshaped(from: &[u64], to: &[i64], allow_zero: bool) -> Result<Vec<u64>, String> {
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

pub fn matmul(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
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

pub fn split(context: &Context) -> Result<Vec<Value>, String> {
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

pub fn slice(context: &Context) -> Result<Value, String> {
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

pub fn resize(context: &Context) -> Result<Value, String> {
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

/// Infers the outputs of a recurrent layer: all states, the last one, and of an LSTM the last cell.
pub fn recurrent(context: &Context, op: &str) -> Result<Vec<Value>, String> {
    let (x, weights) = (context.input(0)?, context.input(2)?);
    let [first, second, _] = x.shape[..] else {
        return Err("its input is not of three dimensions".into());
    };
    // [directions, gates * hidden, hidden]
    let [directions, _, hidden] = weights.shape[..] else {
        return Err("its recurrent weights are not of three dimensions".into());
    };
    let wanted = if context.text("direction") == "bidirectional" { 2 } else { 1 };
    if directions != wanted {
        return Err(format!("its weights have {directions} directions, not {wanted}"));
    }
    let told = context.int("hidden_size", hidden as i64);
    if dimension(told)? != hidden {
        return Err(format!("its hidden_size is {told}, but its weights have {hidden}"));
    }
    let value = |shape: [u64; 3], length: Option<(usize, u64)>| {
        let mut shape = shape.to_vec();
        if let Some((at, length)) = length {
            shape.insert(at, length);
        }
        Value { shape, dtype: x.dtype, ..Value::default() }
    };
    let (all, last) = match context.int("layout", 0) {
        0 => {
            (value([directions, second, hidden], Some((0, first))), value([directions, second, hidden], None))
        }
        _ => {
            (value([first, directions, hidden], Some((1, second))), value([first, directions, hidden], None))
        }
    };
    let mut outputs = vec![all, last.clone()];
    if op == "LSTM" {
        outputs.push(last);
    }
    Ok(outputs)
}

/// Infers the output of a convolution or a pooling.
pub fn windows(context: &Context, op: &str) -> Result<Vec<Value>, String> {
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
