//! Infers the outputs of network layers.

use super::context::Context;
use super::fault::{Fault, refuse_if};
use super::layout::{Values, one};
use super::value::{FLOAT, INT32, INT64, Value, axis, dimension, dims};

/// Infers the outputs of a recurrent layer: all states, the last state, and for an LSTM the last cell.
pub fn recurrent(context: &Context) -> Values {
    let (x, weights) = (context.input(0)?, context.input(2)?);
    let [first, second, _] = x.dims("its input")?;
    // [directions, gates * hidden, hidden], or for ONNX Runtime [directions, hidden, gates * hidden]
    let quantized = context.op() == "DynamicQuantizeLSTM";
    let [directions, rows, columns] = weights.dims("its recurrent weights")?;
    let hidden = if quantized { rows } else { columns };
    let wanted = if context.text("direction") == "bidirectional" { 2 } else { 1 };
    refuse_if(directions != wanted, || format!("its weights have {directions} directions, not {wanted}"))?;
    if let Some(told) = context.attribute("hidden_size").filter(|told| dimension(told.i).ok() != Some(hidden))
    {
        return Err(format!("its hidden_size is {}, but its weights have {hidden}", told.i).into());
    }
    let (all, last) = match context.int("layout", 0) {
        0 => (vec![first, directions, second, hidden], vec![directions, second, hidden]),
        _ => (vec![first, second, directions, hidden], vec![first, directions, hidden]),
    };
    let last = Value::new(last, x.dtype);
    let mut outputs = vec![Value::new(all, x.dtype), last.clone()];
    if context.op().ends_with("LSTM") {
        outputs.push(last);
    }
    Ok(outputs)
}

/// Returns whether the channels are the last axis rather than the second.
fn channels_last(context: &Context) -> bool {
    context.op().starts_with("Nhwc") || context.flag("channels_last")
}

/// Infers a convolution; the weights are input 1, or input 3 if the inputs are quantized.
pub fn conv(context: &Context) -> Values {
    match context.op() {
        "QLinearConv" => windows(context, Some(context.input(3)?), context.input(7)?.dtype),
        "ConvInteger" => windows(context, Some(context.input(1)?), INT32),
        _ => windows(context, Some(context.input(1)?), context.input(0)?.dtype),
    }
}

pub fn pool(context: &Context) -> Values {
    let dtype = context.input(0)?.dtype;
    let first = windows(context, None, dtype)?;
    let places = first.iter().map(|value| Value::new(value.shape.clone(), INT64)).collect::<Vec<_>>();
    Ok([first, places].concat())
}

/// Infers the output of a convolution or pooling.
fn windows(context: &Context, weights: Option<&Value>, dtype: i32) -> Values {
    let mut x = context.input(0)?.unknown();
    let last = channels_last(context) && x.shape.len() > 1;
    if last {
        x.shape[1..].rotate_right(1);
    }
    let op = context.op();
    let spatial = x.shape.len().checked_sub(2).ok_or("its input has fewer than two dimensions")?;
    let kernel: Vec<u64> = match (context.ints("kernel_shape"), weights) {
        (Some(kernel), _) => dims(kernel)?,
        (None, Some(weights)) => weights.shape.get(2..).unwrap_or_default().to_vec(),
        (None, None) => return Err("its kernel_shape is missing".into()),
    };
    let list = |name: &str, count: usize, default: i64| -> Result<Vec<i64>, Fault> {
        let list = context.ints(name).map_or(vec![default; count], <[i64]>::to_vec);
        if list.len() == count {
            Ok(list)
        } else {
            Err(format!("{name} has {} entries of {count}", list.len()).into())
        }
    };
    let strides = list("strides", spatial, 1)?;
    let dilations = list("dilations", spatial, 1)?;
    let pads = list("pads", 2 * spatial, 0)?;
    let extra = list("output_padding", spatial, 0)?;
    refuse_if(
        kernel.len() != spatial || strides.iter().any(|&stride| stride < 1),
        || "its kernel or strides do not fit its input",
    )?;
    let auto = context.text("auto_pad");
    let group = context.int("group", 1).max(1) as u64;
    let transposed = matches!(op, "ConvTranspose" | "MaxUnpool");
    let channels = match weights {
        Some(weights) if !transposed => *weights.shape.first().ok_or("its weights are a scalar")?,
        Some(weights) => weights.shape.get(1).ok_or("its weights have one dimension")?.saturating_mul(group),
        None => x.shape[1],
    };
    if let Some(weights) = weights {
        let read = match transposed {
            true => weights.shape.first().copied(),
            false => weights.shape.get(1).map(|per_group| per_group.saturating_mul(group)),
        };
        refuse_if(read != Some(x.shape[1]), || {
            format!("{:?} does not fit weights of {:?} in {group} groups", x.shape, weights.shape)
        })?;
    }
    let mut shape = vec![x.shape[0], channels];
    let told = context.ints("output_shape").filter(|told| transposed && told.len() >= spatial);
    for n in 0..spatial {
        let (dim, stride) = (i128::from(x.shape[n + 2]), i128::from(strides[n]));
        let reach = (i128::from(kernel[n]) - 1) * i128::from(dilations[n]) + 1;
        let before = if auto == "VALID" { 0 } else { i128::from(pads[n]) };
        let pad = if auto == "VALID" { 0 } else { before + i128::from(pads[n + spatial]) };
        let out = match (transposed, auto.as_str()) {
            (true, _) if told.is_some() => told.map_or(-1, |told| told[told.len() - spatial + n].into()),
            (true, "SAME_UPPER" | "SAME_LOWER") => dim * stride,
            (true, _) => stride * (dim - 1) + i128::from(extra[n]) + reach - pad,
            (false, "SAME_UPPER" | "SAME_LOWER") => (dim + stride - 1) / stride,
            (false, _) => {
                let room = dim + pad - reach;
                let up = weights.is_none() && context.flag("ceil_mode");
                let out = if room < 0 { -1 } else { (room + if up { stride - 1 } else { 0 }) / stride + 1 };
                // No window starts in the trailing padding.
                if up && out > 0 && (out - 1) * stride >= dim + before { out - 1 } else { out }
            }
        };
        shape.push(u64::try_from(out).map_err(|_| format!("its window does not fit {:?}", x.shape))?);
    }
    if last {
        shape[1..].rotate_left(1);
    }
    one(shape, dtype)
}

pub fn global_pool(context: &Context) -> Values {
    let x = context.input(0)?;
    let channels = if channels_last(context) { x.shape.len().saturating_sub(1) } else { 1 };
    let dims = x.shape.iter().enumerate();
    one(dims.map(|(n, &dim)| if n == 0 || n == channels { dim } else { 1 }).collect(), x.dtype)
}

pub fn max_unpool(context: &Context) -> Values {
    let dtype = context.input(0)?.dtype;
    match context.optional(2) {
        Some(_) => one(dims(context.known(2)?)?, dtype),
        None => windows(context, None, dtype),
    }
}

/// Infers the normalized tensor, and for training a mean and a variance of each channel.
pub fn batch_norm(context: &Context) -> Values {
    let x = context.input(0)?;
    let channels = x.shape.get(1).copied().unwrap_or(1);
    let each = Value::new(vec![channels], context.optional(3).map_or(x.dtype, |mean| mean.dtype));
    Ok([vec![x.unknown()], vec![each; 4]].concat())
}

/// Infers the normalized tensor, and a mean and a deviation of each row.
pub fn layer_norm(context: &Context) -> Values {
    let x = context.input(0)?;
    let at = axis(context.int("axis", -1), x.shape.len())?;
    let rows = x.shape.iter().enumerate().map(|(n, &dim)| if n < at { dim } else { 1 }).collect();
    let each = Value::new(rows, context.dtype("stash_type", FLOAT));
    Ok(vec![x.unknown(), each.clone(), each])
}

/// Infers a layer of ONNX Runtime that adds two tensors and normalizes the sum; the sum is its last output.
pub fn skip_layer_norm(context: &Context) -> Values {
    let x = context.input(0)?;
    let rows = x.shape.split_last().map_or(vec![], |(_, rows)| [rows, &[1]].concat());
    let each = Value::new(rows, FLOAT);
    Ok(vec![x.unknown(), each.clone(), each, x.unknown()])
}

/// Infers attention: the result, the keys and values of all steps, and the products of queries and keys.
pub fn attention(context: &Context) -> Values {
    let (q, k, v) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let wrong = || Fault::from(format!("{:?}, {:?} and {:?} do not fit", q.shape, k.shape, v.shape));
    let heads = |value: &Value, name: &str| -> Result<[u64; 4], Fault> {
        match value.shape[..] {
            [batch, heads, length, size] => Ok([batch, heads, length, size]),
            [batch, length, hidden] => {
                let heads = dimension(context.int(name, 0))?;
                refuse_if(heads == 0 || hidden % heads != 0, || {
                    format!("{heads} heads ({name}) for {:?}", value.shape)
                })?;
                Ok([batch, heads, length, hidden / heads])
            }
            _ => Err(wrong()),
        }
    };
    let [batch, q_heads, length, _] = heads(q, "q_num_heads")?;
    let [_, k_heads, more, k_size] = heads(k, "kv_num_heads")?;
    let [.., v_size] = heads(v, "kv_num_heads")?;
    let past = context.optional(4).map_or(Some(0), |past| past.shape.get(2).copied()).ok_or_else(wrong)?;
    let total = past.checked_add(more).ok_or_else(wrong)?;
    let y = match q.shape.len() {
        4 => vec![batch, q_heads, length, v_size],
        _ => vec![batch, length, q_heads.saturating_mul(v_size)],
    };
    Ok(vec![
        Value::new(y, q.dtype),
        Value::new(vec![batch, k_heads, total, k_size], k.dtype),
        Value::new(vec![batch, k_heads, total, v_size], v.dtype),
        Value::new(vec![batch, q_heads, length, total], q.dtype),
    ])
}

/// Infers linear attention: the result and the state.
pub fn linear_attention(context: &Context) -> Values {
    let (q, k, v) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let (Some(heads @ 1..), Some(kv @ 1..)) = (
        u64::try_from(context.int("q_num_heads", 0)).ok(),
        u64::try_from(context.int("kv_num_heads", 0)).ok(),
    ) else {
        return Err("its q_num_heads or kv_num_heads is missing".into());
    };
    let (&[batch, time, _], &[.., keys], &[.., values]) = (&q.shape[..], &k.shape[..], &v.shape[..]) else {
        return Err("its inputs are not of three dimensions".into());
    };
    let y = vec![batch, time, heads.saturating_mul(values / kv)];
    let state = context.optional(3).map_or(q.dtype, |past| past.dtype);
    Ok(vec![Value::new(y, q.dtype), Value::new(vec![batch, kv, keys / kv, values / kv], state)])
}

/// Infers a convolution over the past: its result, and the inputs for the next convolution.
pub fn causal_conv(context: &Context) -> Values {
    let (x, weights) = (context.input(0)?, context.input(1)?);
    let (&[batch, channels, _], &[.., reach]) = (&x.shape[..], &weights.shape[..]) else {
        return Err("its input is not of three dimensions".into());
    };
    Ok(vec![x.unknown(), Value::new(vec![batch, channels, reach.saturating_sub(1)], x.dtype)])
}

pub fn grid_sample(context: &Context) -> Values {
    let (x, grid) = (context.input(0)?, context.input(1)?);
    match (&x.shape[..], grid.shape.split_last()) {
        (&[n, c, ..], Some((_, places))) if places.len() + 1 == x.shape.len() => {
            one([&[n, c], &places[1..]].concat(), x.dtype)
        }
        _ => Err(format!("a grid of {:?} for {:?}", grid.shape, x.shape).into()),
    }
}

pub fn affine_grid(context: &Context) -> Values {
    let theta = context.input(0)?;
    let size = dims(context.known(1)?)?;
    match size[..] {
        [n, _, ref places @ ..] if !places.is_empty() => {
            one([&[n], places, &[places.len() as u64]].concat(), theta.dtype)
        }
        _ => Err(format!("its size is {size:?}").into()),
    }
}

/// Infers the pooling of regions.
pub fn regions(context: &Context) -> Values {
    let (x, regions) = (context.input(0)?, context.input(1)?);
    let (&[_, c, ..], &[count, ..]) = (&x.shape[..], &regions.shape[..]) else {
        return Err(format!("regions of {:?} for {:?}", regions.shape, x.shape).into());
    };
    let size = match context.ints("pooled_shape") {
        Some(&[h, w]) => [h, w],
        Some(_) => return Err("its pooled_shape is not of two dimensions".into()),
        None => [context.int("output_height", 1), context.int("output_width", 1)],
    };
    one(vec![count, c, dimension(size[0])?, dimension(size[1])?], x.dtype)
}

/// Infers the boxes that a run chooses.
pub fn boxes(context: &Context) -> Values {
    // Empty inputs have no boxes.
    let count = context.input(0)?.count().min(context.input(1)?.count());
    if count == 0 {
        return one(vec![0, 3], INT64);
    }
    Err(Fault::Unknown("how many boxes it takes is known only when the model runs".into()))
}
