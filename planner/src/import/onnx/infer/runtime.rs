//! Operators of ONNX Runtime (`com.microsoft`), as written by its quantizer and its optimizer.

use super::context::Context;
use super::fault::{Fault, refuse_if};
use super::layout::{self, Values, one};
use super::math::{self, across};
use super::network;
use super::value::{FLOAT, INT32, UINT8, Value, axis, dimension, dims};
use super::{Rule, is_one_of};

/// Operators whose output has the shape and type of their first input.
const SAME: &str = "\
    BiasAdd BiasGelu BiasSoftmax FastGelu Gelu GroupNorm Inverse LongformerAttention MoE QLinearLeakyRelu \
    QLinearSigmoid QLinearSoftmax QMoE QuickGelu RotaryEmbedding Trilu";

/// Products of two matrices.
const PRODUCTS: &str = "\
    DynamicQuantizeMatMul FusedGemm FusedMatMul FusedMatMulActivation GemmFastGelu MatMulInteger16 \
    MatMulIntegerToFloat QGemm SparseToDenseMatMul TransposeMatMul";

/// Returns the rule of an operator, if this importer knows it.
pub fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        op if is_one_of(SAME, op) => layout::same,
        op if is_one_of(PRODUCTS, op) => math::product_of,
        "Attention" | "DecoderMaskedSelfAttention" | "QAttention" => attention,
        "BiasDropout" => layout::dropout,
        "BiasSplitGelu" => halves,
        "ComplexMul" | "ComplexMulConj" => math::broadcasts,
        "DecoderMaskedMultiHeadAttention" | "MultiHeadAttention" => multi_head,
        "DequantizeLinear" => math::dequantize,
        "DynamicQuantizeLSTM" => network::recurrent,
        "EmbedLayerNormalization" | "QEmbedLayerNormalization" => embeddings,
        "ExpandDims" => layout::unsqueeze,
        "FusedConv" | "NhwcConv" | "NhwcFusedConv" => network::conv,
        "GatedRelativePositionBias" => gated_bias,
        "GatherBlockQuantized" => gather_quantized,
        "GatherND" => layout::gather_nd,
        "GridSample" => network::grid_sample,
        "GroupQueryAttention" | "SparseAttention" => grouped,
        "MatMulBnb4" | "MatMulNBits" => |context| packed(context, dimension(context.int("N", -1))?),
        "MatMulFpQ4" => |context| match context.known(2)? {
            &[_, n] => packed(context, dimension(n)?),
            _ => Err("its B_shape is not of two dimensions".into()),
        },
        "MaxpoolWithMask" | "NhwcMaxPool" | "QLinearAveragePool" => network::pool,
        "MulInteger" => |context| across(context, &[0, 2], INT32),
        "NGramRepeatBlock" => |context| Ok(vec![context.input(1)?.unknown()]),
        "PackedAttention" => tokens,
        "Pad" => layout::pad,
        "QLinearAdd" | "QLinearMul" => |context| across(context, &[0, 3], context.input(0)?.dtype),
        "QLinearConcat" => quantized_concat,
        "QLinearConv" => network::conv,
        "QLinearGlobalAveragePool" => network::global_pool,
        "QLinearReduceMean" => math::reduce,
        "QLinearWhere" => |context| across(context, &[0, 1, 4], context.input(1)?.dtype),
        "QuantizeLinear" => math::quantize,
        "Range" => layout::range,
        "RelativePositionBias" => position_bias,
        "SimplifiedLayerNormalization" => network::layer_norm,
        "SkipGroupNorm" => |context| Ok(vec![context.input(0)?.unknown(); 2]),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => network::skip_layer_norm,
        "TorchEmbedding" => layout::gather,
        _ => return None,
    })
}

/// Infers a concatenation. Its inputs are the output's scale and zero point, then each tensor with its scale and zero point.
fn quantized_concat(context: &Context) -> Values {
    let tensors = (2..context.inputs.len()).step_by(3).map(|n| context.input(n));
    layout::joined(&tensors.collect::<Result<Vec<_>, _>>()?, context.int("axis", 0), false)
}

/// Infers a product with a matrix of `n` columns, packed in blocks.
fn packed(context: &Context, n: u64) -> Values {
    let a = context.input(0)?;
    let (&k, rows) = a.shape.split_last().ok_or("its input is a scalar")?;
    refuse_if(context.attribute("K").is_some_and(|told| dimension(told.i).ok() != Some(k)), || {
        format!("its K is {}, but its input is {:?}", context.int("K", 0), a.shape)
    })?;
    one([rows, &[n]].concat(), a.dtype)
}

/// Infers the first half of each row, multiplied by a function of the second.
fn halves(context: &Context) -> Values {
    let x = context.input(0)?;
    let (&last, rows) = x.shape.split_last().ok_or("its input is a scalar")?;
    one([rows, &[last / 2]].concat(), x.dtype)
}

/// Infers the normalized sum of three embeddings, the lengths of the masks, and the sum.
fn embeddings(context: &Context) -> Values {
    let (ids, words) = (context.input(0)?, context.input(2)?);
    let (&[batch, length], &[_, hidden]) = (&ids.shape[..], &words.shape[..]) else {
        return Err(format!("{:?} of {:?}", ids.shape, words.shape).into());
    };
    // The quantized form outputs floats, the type of its scale of gamma.
    let dtype = if context.op().starts_with('Q') { FLOAT } else { words.dtype };
    let sum = Value::new(vec![batch, length, hidden], dtype);
    Ok(vec![sum.clone(), Value::new(vec![batch], INT32), sum])
}

/// Infers rows of a table whose elements are packed in blocks.
fn gather_quantized(context: &Context) -> Values {
    let (x, at, scales) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let mut table = x.shape.clone();
    if let (UINT8, Some(last)) = (x.dtype, table.last_mut()) {
        let each = 8 / dimension(context.int("bits", 4))?.clamp(1, 8);
        *last = last.checked_mul(each).ok_or("the shape overflows")?;
    }
    let along = axis(context.int("gather_axis", 0), table.len())?;
    one([&table[..along], &at.shape, &table[along + 1..]].concat(), scales.dtype)
}

/// Infers a bias for each head and each pair of positions.
fn position_bias(context: &Context) -> Values {
    let table = context.input(0)?;
    let [_, heads] = table.dims("its table")?;
    let lengths = dims(&[context.scalar(1)?, context.scalar(2)?])?;
    one([&[1, heads], &lengths[..]].concat(), table.dtype)
}

/// Infers a bias for each head and each pair of positions, gated by the queries.
fn gated_bias(context: &Context) -> Values {
    let query = context.input(0)?;
    let [batch, length, _] = query.dims("its queries")?;
    one(vec![batch, heads(context, "num_heads")?, length, length], query.dtype)
}

fn heads(context: &Context, name: &str) -> Result<u64, Fault> {
    match dimension(context.int(name, 0))? {
        0 => Err(format!("its {name} is missing").into()),
        heads => Ok(heads),
    }
}

/// Returns the sizes of queries and values, from the weights of queries, keys and values.
fn projected(context: &Context) -> Result<[u64; 2], Fault> {
    let weights = context.input(1)?;
    match (context.ints("qkv_hidden_sizes"), weights.shape.last()) {
        (Some(&[q, _, v]), _) => Ok([dimension(q)?, dimension(v)?]),
        (None, Some(all)) => Ok([all / 3; 2]),
        _ => Err("its weights or qkv_hidden_sizes are not of queries, keys and values".into()),
    }
}

/// Infers attention with projections: the result, and the keys and values of all steps.
fn attention(context: &Context) -> Values {
    let x = context.input(0)?;
    let [batch, length, _] = x.dims("its input")?;
    let ([q, v], heads) = (projected(context)?, heads(context, "num_heads")?);
    let quantized = context.op() == "QAttention";
    let dtype = if quantized { context.input(3)?.dtype } else { x.dtype };
    let past = context.optional(if quantized { 8 } else { 4 });
    let total = reach(context, past, 3, length)?;
    let present = past.map_or(dtype, |past| past.dtype);
    Ok(vec![
        Value::new(vec![batch, length, v], dtype),
        Value::new(vec![2, batch, heads, total, q / heads], present),
    ])
}

/// Returns the number of keys of all steps: those along axis `at` of the past, and `more`. Memory shared by past and present already has
/// room for all.
fn reach(context: &Context, past: Option<&Value>, at: usize, more: u64) -> Result<u64, Fault> {
    let Some(past) = past else { return Ok(more) };
    let before = *past.shape.get(at).ok_or_else(|| format!("a past of {:?}", past.shape))?;
    if context.flag("past_present_share_buffer") {
        return Ok(before);
    }
    before.checked_add(more).ok_or_else(|| "the shape overflows".into())
}

/// Infers attention over the tokens of all sequences, one after the other.
fn tokens(context: &Context) -> Values {
    let x = context.input(0)?;
    let [count, _] = x.dims("its input")?;
    one(vec![count, projected(context)?[1]], x.dtype)
}

/// Infers attention over projected queries, keys and values: the result, the keys and values of all steps, and the products.
fn multi_head(context: &Context) -> Values {
    let (query, heads) = (context.input(0)?, heads(context, "num_heads")?);
    let (batch, length, hidden) = match query.shape[..] {
        [batch, length, hidden] => (batch, length, hidden),
        // The queries, keys and values in one tensor.
        [batch, length, heads, _, size] => (batch, length, heads.saturating_mul(size)),
        _ => return Err("its queries are not of three dimensions".into()),
    };
    let (more, values) = match (context.optional(1), context.optional(2)) {
        (Some(key), Some(value)) => match (&key.shape[..], &value.shape[..]) {
            (&[_, more, _], &[_, _, values]) => (more, values),
            // From another layer, already split into heads.
            (&[_, _, more, _], &[_, _, _, size]) => (more, heads.saturating_mul(size)),
            _ => return Err(format!("keys of {:?} and values of {:?}", key.shape, value.shape).into()),
        },
        (Some(key), None) => (*key.shape.get(1).ok_or("its keys are not of five dimensions")?, hidden),
        _ => (length, hidden),
    };
    let masked = context.op().starts_with("Decoder");
    let past = context.optional(if masked { 5 } else { 6 });
    let total = reach(context, past, 2, more)?;
    let kept = |size: u64| Value::new(vec![batch, heads, total, size / heads], query.dtype);
    Ok(vec![
        Value::new(vec![batch, length, values], query.dtype),
        kept(hidden),
        kept(values),
        Value::new(vec![batch, heads, length, total], query.dtype),
    ])
}

/// Infers attention in which several query heads share a key head: the result, and the keys and values of all steps.
fn grouped(context: &Context) -> Values {
    let query = context.input(0)?;
    let (heads, kv) = (heads(context, "num_heads")?, heads(context, "kv_num_heads")?);
    let [batch, length, hidden] = query.dims("its queries")?;
    // Without a tensor of keys, the keys and values follow the queries.
    let size = match context.optional(1) {
        Some(_) => hidden / heads,
        None => hidden / heads.saturating_add(kv.saturating_mul(2)),
    };
    let past = context.optional(3);
    let total = match (past, context.optional(6).and_then(|total| total.data.ints())) {
        // Memory shared by past and present has room for all steps.
        (Some(_), Some(&[total])) if context.op() == "GroupQueryAttention" => {
            dimension(total)?.max(past.and_then(|past| past.shape.get(2).copied()).unwrap_or(0))
        }
        (Some(past), _) if context.op() == "SparseAttention" => {
            *past.shape.get(2).ok_or_else(|| format!("a past of {:?}", past.shape))?
        }
        _ => reach(context, past, 2, length)?,
    };
    let kept = Value::new(vec![batch, kv, total, size], past.map_or(query.dtype, |past| past.dtype));
    let y = Value::new(vec![batch, length, heads.saturating_mul(size)], query.dtype);
    Ok(vec![y, kept.clone(), kept])
}
