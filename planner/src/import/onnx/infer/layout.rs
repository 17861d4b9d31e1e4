//! Operators that move elements, or make them from shapes.

use super::context::Context;
use super::fault::{Fault, refuse_if};
use super::value::{
    BOOL, Data, FLOAT, FOLDED, INT64, Number, Value, axes, axis, broadcast, constant as initializer,
    dimension, dims, from_front, product, rounded, sparse,
};

pub type Values = Result<Vec<Value>, Fault>;

pub fn one(shape: Vec<u64>, dtype: i32) -> Values {
    Ok(vec![Value::new(shape, dtype)])
}

/// Infers the first input's type and shape.
pub fn same(context: &Context) -> Values {
    Ok(vec![context.input(0)?.unknown()])
}

/// Infers the first input's shape, with the type that the attribute `to` or `dtype` names, if present.
pub fn cast(context: &Context) -> Values {
    let x = context.input(0)?;
    let name = if context.op().ends_with("Cast") { "to" } else { "dtype" };
    one(x.shape.clone(), context.dtype(name, x.dtype))
}

pub fn cast_like(context: &Context) -> Values {
    one(context.input(0)?.shape.clone(), context.input(1)?.dtype)
}

pub fn test(context: &Context) -> Values {
    one(context.input(0)?.shape.clone(), BOOL)
}

pub fn dropout(context: &Context) -> Values {
    let x = context.input(0)?;
    Ok(vec![x.unknown(), Value::new(x.shape.clone(), BOOL)])
}

pub fn constant(context: &Context) -> Values {
    let Some(own) = context.node.attribute.first() else { return Err("it has no value".into()) };
    let name = own.name.as_str();
    let Some(given) = context.attribute(name) else { return Err("its value is not given".into()) };
    let ints = |list: &[i64]| list.iter().map(|&int| Some(Number::Int(int))).collect();
    let floats = |list: &[f32]| list.iter().map(|&float| Some(Number::Float(float.into()))).collect();
    let (dtype, numbers): (_, Vec<Option<Number>>) = match (name, &given.t, &given.sparse_tensor) {
        ("value", Some(tensor), _) => return Ok(vec![initializer(tensor, context.limits)?]),
        ("sparse_value", _, Some(tensor)) => return Ok(vec![sparse(tensor)?]),
        ("value" | "sparse_value", ..) => return Err("it has no value".into()),
        ("value_int", ..) => (INT64, ints(&[given.i])),
        ("value_ints", ..) => (INT64, ints(&given.ints)),
        ("value_float", ..) => (FLOAT, floats(&[given.f])),
        ("value_floats", ..) => (FLOAT, floats(&given.floats)),
        (other, ..) => return Err(format!("its {other} is not supported").into()),
    };
    let count = numbers.len() as u64;
    let shape = if name.ends_with('s') { vec![count] } else { vec![] };
    let data = if count <= FOLDED { Data::collect(dtype, numbers) } else { Data::Unknown };
    Ok(vec![Value::of(shape, dtype, data)])
}

pub fn constant_of_shape(context: &Context) -> Values {
    let shape = dims(context.known(0)?)?;
    let fill = context.attribute("value").and_then(|attribute| attribute.t.as_ref());
    let fill = fill.map(|tensor| initializer(tensor, context.limits)).transpose()?;
    let dtype = fill.as_ref().map_or(FLOAT, |fill| fill.dtype);
    let element = fill.map_or(Some(Number::Float(0.0)), |fill| fill.data.get(0));
    let count = product(&shape)?;
    let data = match element.filter(|_| count <= FOLDED && context.limits.allow(count)) {
        Some(element) => Data::collect(dtype, (0..count).map(|_| Some(element))),
        None => Data::Unknown,
    };
    Ok(vec![Value::of(shape, dtype, data)])
}

pub fn shape(context: &Context) -> Values {
    let dims = &context.input(0)?.shape;
    let bound = |name: &str, default: usize| {
        from_front(context.int(name, default as i64), dims.len()).clamp(0, dims.len() as i64) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", dims.len()));
    let dims = &dims[start..end.max(start)];
    let data = Data::collect(INT64, dims.iter().map(|&dim| i64::try_from(dim).ok().map(Number::Int)));
    Ok(vec![Value::of(vec![dims.len() as u64], INT64, data)])
}

pub fn size(context: &Context) -> Values {
    let count = i64::try_from(product(&context.input(0)?.shape)?).ok();
    Ok(vec![Value::of(vec![], INT64, Data::collect(INT64, [count.map(Number::Int)]))])
}

pub fn reshape(context: &Context) -> Values {
    let x = context.input(0)?;
    let to = context.list("shape", 1)?.ok_or("its shape is missing")?;
    one(reshaped(&x.shape, to, context.flag("allowzero"))?, x.dtype)
}

fn reshaped(from: &[u64], to: &[i64], allow_zero: bool) -> Result<Vec<u64>, Fault> {
    let wrong = || format!("{from:?} cannot take the shape {to:?}").into();
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
    match open {
        // Runtimes accept any shape for an empty tensor: the open dimension is 0 too.
        Some(n) if fixed == 0 && count == 0 => shape[n] = 0,
        Some(n) if fixed > 0 && count % fixed == 0 => shape[n] = count / fixed,
        None if fixed == count => {}
        _ => return Err(wrong()),
    }
    Ok(shape)
}

pub fn flatten(context: &Context) -> Values {
    let x = context.input(0)?;
    let at = from_front(context.int("axis", 1), x.shape.len());
    let at = usize::try_from(at).ok().filter(|&at| at <= x.shape.len()).ok_or("its axis is out of range")?;
    one(vec![product(&x.shape[..at])?, product(&x.shape[at..])?], x.dtype)
}

pub fn squeeze(context: &Context) -> Values {
    let x = context.input(0)?;
    let out = match context.list("axes", 1)? {
        Some(list) => axes(list, x.shape.len())?,
        None => (0..x.shape.len()).filter(|&n| x.shape[n] == 1).collect(),
    };
    if let Some(n) = out.iter().find(|&&n| x.shape[n] != 1) {
        return Err(format!("axis {n} of {:?} is not 1", x.shape).into());
    }
    let kept = x.shape.iter().enumerate().filter(|(n, _)| !out.contains(n));
    one(kept.map(|(_, &dim)| dim).collect(), x.dtype)
}

pub fn unsqueeze(context: &Context) -> Values {
    let x = context.input(0)?;
    let list = context.list("axes", 1)?.ok_or("its axes are missing")?;
    let rank = x.shape.len() + list.len();
    let mut new = vec![false; rank];
    for at in axes(list, rank)? {
        refuse_if(std::mem::replace(&mut new[at], true), || format!("its axes {list:?} repeat"))?;
    }
    let mut rest = x.shape.iter().copied();
    one(new.into_iter().map(|new| if new { 1 } else { rest.next().unwrap_or(1) }).collect(), x.dtype)
}

/// Returns, for each axis of the output, the axis of the input.
pub fn permutation(context: &Context, rank: usize) -> Result<Vec<usize>, Fault> {
    let order = match context.ints("perm") {
        Some(order) => axes(order, rank)?,
        None => (0..rank).rev().collect(),
    };
    let mut seen = vec![false; rank];
    order.iter().for_each(|&at| seen[at] = true);
    refuse_if(order.len() != rank || seen.contains(&false), || {
        format!("its perm {order:?} is no order of {rank} axes")
    })?;
    Ok(order)
}

pub fn transpose(context: &Context) -> Values {
    let x = context.input(0)?;
    let order = permutation(context, x.shape.len())?;
    one(order.into_iter().map(|n| x.shape[n]).collect(), x.dtype)
}

pub fn concat(context: &Context) -> Values {
    let values = context.all()?;
    joined(&values, context.int("axis", 1), false)
}

/// Joins tensors along an existing or a new axis.
pub fn joined(values: &[&Value], at: i64, new: bool) -> Values {
    let first = *values.first().ok_or("it has no input")?;
    let rank = first.shape.len();
    let at = axis(at, rank + usize::from(new))?;
    let mut shape = first.shape.clone();
    if new {
        shape.insert(at, values.len() as u64);
    } else {
        shape[at] = 0;
    }
    for value in values {
        let fits = value.shape.len() == rank
            && (0..rank).all(|n| !new && n == at || value.shape[n] == first.shape[n]);
        refuse_if(!fits, || format!("{:?} does not join {:?} along axis {at}", value.shape, first.shape))?;
        if !new {
            shape[at] = shape[at].checked_add(value.shape[at]).ok_or("the shape overflows")?;
        }
    }
    one(shape, first.dtype)
}

pub fn split(context: &Context) -> Values {
    let x = context.input(0)?;
    let at = axis(context.int("axis", 0), x.shape.len())?;
    let count = context.node.output.len() as u64;
    let sizes: Vec<u64> = match context.list("split", 1)? {
        Some(sizes) => dims(sizes)?,
        None => {
            let part = x.shape[at].div_ceil(count.max(1));
            (0..count).map(|n| part.min(x.shape[at].saturating_sub(n.saturating_mul(part)))).collect()
        }
    };
    let total = sizes.iter().try_fold(0_u64, |total, &size| total.checked_add(size));
    refuse_if(sizes.len() as u64 != count || total != Some(x.shape[at]), || {
        format!("{sizes:?} do not divide {}", x.shape[at])
    })?;
    Ok(sizes.into_iter().map(|size| Value::new(replaced(&x.shape, at, size), x.dtype)).collect())
}

fn replaced(shape: &[u64], at: usize, dim: u64) -> Vec<u64> {
    let mut shape = shape.to_vec();
    shape[at] = dim;
    shape
}

/// The part of one axis that a slice selects.
pub struct Cut {
    pub axis: usize,
    pub start: i128,
    pub step: i128,
    pub count: u64,
}

pub fn cuts(context: &Context) -> Result<Vec<Cut>, Fault> {
    let x = context.input(0)?;
    let rank = x.shape.len();
    let starts = context.list("starts", 1)?.ok_or("its starts are missing")?;
    let ends = context.list("ends", 2)?.ok_or("its ends are missing")?;
    let over = match context.list("axes", 3)? {
        Some(list) => axes(list, rank)?,
        None => (0..starts.len()).collect(),
    };
    let steps = context.optional(4).map(|_| context.known(4)).transpose()?;
    refuse_if(
        starts.len() != ends.len() || over.len() != starts.len() || over.iter().any(|&at| at >= rank),
        || "its starts, ends and axes do not fit",
    )?;
    let cut = |(n, axis): (usize, usize)| {
        let step =
            i128::from(steps.map_or(Some(1), |steps| steps.get(n).copied()).ok_or("a step is missing")?);
        let dim = i128::from(x.shape[axis]);
        let clamp = |place: i64, low: i128, high: i128| {
            let place = i128::from(place);
            (if place < 0 { place + dim } else { place }).clamp(low, high.max(low))
        };
        let (start, end) = match step {
            0 => return Err("its step is 0".into()),
            1.. => (clamp(starts[n], 0, dim), clamp(ends[n], 0, dim)),
            _ => (clamp(starts[n], 0, dim - 1), clamp(ends[n], -1, dim - 1)),
        };
        let span = if step > 0 { end - start } else { start - end };
        let count = if span <= 0 || dim == 0 { 0 } else { (span - 1) / step.abs() + 1 };
        Ok(Cut { axis, start, step, count: count as u64 })
    };
    over.into_iter().enumerate().map(cut).collect()
}

pub fn slice(context: &Context) -> Values {
    let x = context.input(0)?;
    let mut shape = x.shape.clone();
    for cut in cuts(context)? {
        shape[cut.axis] = cut.count;
    }
    one(shape, x.dtype)
}

pub fn gather(context: &Context) -> Values {
    let (x, at) = (context.input(0)?, context.input(1)?);
    let along = axis(context.int("axis", 0), x.shape.len())?;
    one([&x.shape[..along], &at.shape, &x.shape[along + 1..]].concat(), x.dtype)
}

pub fn gather_elements(context: &Context) -> Values {
    let (x, at) = (context.input(0)?, context.input(1)?);
    refuse_if(x.shape.len() != at.shape.len(), || format!("indices of {:?} for {:?}", at.shape, x.shape))?;
    one(at.shape.clone(), x.dtype)
}

pub fn gather_nd(context: &Context) -> Values {
    let (x, at) = (context.input(0)?, context.input(1)?);
    let batch = context.int("batch_dims", 0);
    let wrong = || format!("indices of {:?} for {:?} with batch_dims {batch}", at.shape, x.shape);
    let rest = at.shape.split_last().and_then(|(&depth, lead)| {
        let from = usize::try_from(batch).ok()?.checked_add(usize::try_from(depth).ok()?)?;
        Some((lead, x.shape.get(from..)?))
    });
    let (lead, rest) = rest.ok_or_else(wrong)?;
    one([lead, rest].concat(), x.dtype)
}

pub fn expand(context: &Context) -> Values {
    let x = context.input(0)?;
    one(broadcast(&[&x.shape, &dims(context.known(1)?)?])?, x.dtype)
}

pub fn tile(context: &Context) -> Values {
    let x = context.input(0)?;
    let times = context.known(1)?;
    refuse_if(times.len() != x.shape.len(), || {
        format!("{} repeats for {} axes", times.len(), x.shape.len())
    })?;
    let tiled = |(&dim, &times): (&u64, &i64)| {
        dim.checked_mul(dimension(times)?).ok_or_else(|| Fault::from("the shape overflows"))
    };
    one(x.shape.iter().zip(times).map(tiled).collect::<Result<_, _>>()?, x.dtype)
}

pub fn range(context: &Context) -> Values {
    let dtype = context.input(0)?.dtype;
    let bounds = [0, 1, 2].map(|n| match context.data(n) {
        Ok(data) if context.input(n)?.count() == 1 => data.get(0).ok_or_else(|| Fault::from("no number")),
        Ok(_) => Err(format!("input {n} is no scalar").into()),
        Err(fault) => Err(fault),
    });
    let [start, limit, step] = bounds;
    let (start, limit, step) = (start?, limit?, step?);
    refuse_if(step.float() == 0.0, || "its step is 0")?;
    let count = match (start, limit, step) {
        (Number::Int(start), Number::Int(limit), Number::Int(step)) => {
            let (span, step) = (i128::from(limit) - i128::from(start), i128::from(step));
            (span / step + i128::from(span % step != 0 && (span > 0) == (step > 0))).max(0) as u64
        }
        _ => {
            let count = (rounded(dtype, limit.float() - start.float()) / step.float()).ceil();
            refuse_if(count.is_nan() || count > 1e18, || "its bounds are no range")?;
            count as u64
        }
    };
    let data = if count <= FOLDED && context.limits.allow(count) {
        Data::collect(
            dtype,
            (0..count as i64).map(|n| match (start, step) {
                (Number::Int(start), Number::Int(step)) => {
                    Some(Number::Int(start.checked_add(n.checked_mul(step)?)?))
                }
                _ => Some(Number::Float(start.float() + n as f64 * step.float())),
            }),
        )
    } else {
        Data::Unknown
    };
    Ok(vec![Value::of(vec![count], dtype, data)])
}

/// Returns the padding before and after each axis.
pub fn pads(context: &Context) -> Result<Vec<(i64, i64)>, Fault> {
    let rank = context.input(0)?.shape.len();
    let list = context.list("pads", 1)?.or(context.ints("paddings")).ok_or("its pads are missing")?;
    let over = over(context.optional(3).map(|_| context.known(3)).transpose()?, rank)?;
    refuse_if(list.len() != 2 * over.len(), || format!("{} pads for {} axes", list.len(), over.len()))?;
    let mut pads = vec![(0, 0); rank];
    for (n, &at) in over.iter().enumerate() {
        pads[at] = (list[n], list[n + over.len()]);
    }
    Ok(pads)
}

pub fn pad(context: &Context) -> Values {
    let x = context.input(0)?;
    let padded = |(&dim, (before, after)): (&u64, (i64, i64))| {
        let padded = i128::from(dim) + i128::from(before) + i128::from(after);
        u64::try_from(padded).map_err(|_| Fault::from(format!("a dimension is {padded}")))
    };
    one(x.shape.iter().zip(pads(context)?).map(padded).collect::<Result<_, _>>()?, x.dtype)
}

pub fn blocks(context: &Context) -> Values {
    let x = context.input(0)?;
    let block = dimension(context.int("blocksize", 1))?.max(1);
    let [n, c, h, w] = x.dims("its input")?;
    let area = block.saturating_mul(block);
    let (divided, shape) = if context.op() == "DepthToSpace" {
        (c % area == 0, [n, c / area, h.saturating_mul(block), w.saturating_mul(block)])
    } else {
        (h % block == 0 && w % block == 0, [n, c.saturating_mul(area), h / block, w / block])
    };
    refuse_if(!divided, || format!("blocks of {block} do not divide {:?}", x.shape))?;
    one(shape.into(), x.dtype)
}

pub fn one_hot(context: &Context) -> Values {
    let (at, values) = (context.input(0)?, context.input(2)?);
    let depth = context.data(1)?.get(0).ok_or("its depth is missing")?.float();
    let depth = dimension(depth as i64)?;
    let mut shape = at.shape.clone();
    shape.insert(axis(context.int("axis", -1), shape.len() + 1)?, depth);
    one(shape, values.dtype)
}

/// Returns the axes of `list`, or all axes without a list.
fn over(list: Option<&[i64]>, rank: usize) -> Result<Vec<usize>, Fault> {
    list.map_or_else(|| Ok((0..rank).collect()), |list| axes(list, rank))
}

pub fn center_crop_pad(context: &Context) -> Values {
    let x = context.input(0)?;
    let wanted = dims(context.known(1)?)?;
    let over = over(context.ints("axes"), x.shape.len())?;
    refuse_if(over.len() != wanted.len(), || format!("{} sizes for {} axes", wanted.len(), over.len()))?;
    let mut shape = x.shape.clone();
    for (at, dim) in over.into_iter().zip(wanted) {
        shape[at] = dim;
    }
    one(shape, x.dtype)
}

pub fn resize(context: &Context) -> Values {
    let x = context.input(0)?;
    let rank = x.shape.len();
    let over = over(context.ints("axes"), rank)?;
    let fits = |count: usize| {
        if count == over.len() { Ok(()) } else { Err(format!("{count} sizes for {} axes", over.len())) }
    };
    let mut shape = x.shape.clone();
    if context.optional(3).is_some_and(|sizes| sizes.count() > 0) {
        let sizes = dims(context.known(3)?)?;
        fits(sizes.len())?;
        let policy = context.text("keep_aspect_ratio_policy");
        let ratios = over.iter().zip(&sizes).map(|(&at, &size)| size as f64 / x.shape[at] as f64);
        let ratio = match policy.as_str() {
            "not_larger" => Some(ratios.fold(f64::INFINITY, f64::min)),
            "not_smaller" => Some(ratios.fold(0.0, f64::max)),
            _ => None,
        };
        for (&at, size) in over.iter().zip(sizes) {
            shape[at] = ratio.map_or(size, |ratio| (ratio * x.shape[at] as f64).round() as u64);
        }
        return one(shape, x.dtype);
    }
    let at = if context.inputs.len() == 2 { 1 } else { 2 };
    let scales: Vec<f64> = match context.floats("scales").filter(|scales| !scales.is_empty()) {
        Some(scales) => scales.iter().map(|&scale| scale.into()).collect(),
        None if context.optional(at).is_some() => match context.data(at)? {
            Data::Floats(scales) => scales.to_vec(),
            _ => return Err("its scales are no floats".into()),
        },
        None => return Err("neither its sizes nor its scales are given".into()),
    };
    fits(scales.len())?;
    for (&at, scale) in over.iter().zip(scales) {
        refuse_if(!(scale > 0.0 && scale.is_finite()), || {
            format!("its scale {scale} is no positive number")
        })?;
        shape[at] = (x.shape[at] as f64 * scale).floor() as u64;
    }
    one(shape, x.dtype)
}

/// Infers the positions of nonzero elements, whose number depends on the elements.
pub fn non_zero(context: &Context) -> Values {
    let x = context.input(0)?;
    let data = context.data(0)?;
    let mut places: Vec<Vec<Option<Number>>> = vec![Vec::new(); x.shape.len()];
    for flat in (0..x.count() as usize).filter(|&flat| data.get(flat).is_some_and(|x| x.float() != 0.0)) {
        let mut rest = flat;
        for (at, &dim) in x.shape.iter().enumerate().rev() {
            places[at].push(Some(Number::Int((rest % dim as usize) as i64)));
            rest /= dim as usize;
        }
    }
    let count = places.first().map_or(0, Vec::len) as u64;
    let few = count.saturating_mul(x.shape.len() as u64) <= FOLDED;
    let data = if few { Data::collect(INT64, places.into_iter().flatten()) } else { Data::Unknown };
    Ok(vec![Value::of(vec![x.shape.len() as u64, count], INT64, data)])
}

/// Returns the indices that a condition selects.
pub fn taken(context: &Context) -> Result<Vec<usize>, Fault> {
    let known = context.known(1)?;
    Ok(known.iter().enumerate().filter(|&(_, &test)| test != 0).map(|(n, _)| n).collect())
}

pub fn compress(context: &Context) -> Values {
    let x = context.input(0)?;
    let count = taken(context)?.len() as u64;
    let shape = match context.attribute("axis") {
        Some(attribute) => replaced(&x.shape, axis(attribute.i, x.shape.len())?, count),
        None => vec![count],
    };
    one(shape, x.dtype)
}

pub fn unique(context: &Context) -> Values {
    let x = context.input(0)?;
    let data = context.data(0)?;
    if context.attribute("axis").is_some() {
        return Err(Fault::Unknown("how many of its slices differ is known only when the model runs".into()));
    }
    let mut numbers: Vec<Number> = (0..x.count() as usize).filter_map(|n| data.get(n)).collect();
    if context.int("sorted", 1) != 0 {
        numbers.sort_by(|a, b| a.float().total_cmp(&b.float()));
    }
    let mut seen = std::collections::HashSet::new();
    numbers.retain(|number| match number {
        Number::Int(int) => seen.insert(*int as u64),
        Number::Float(float) => seen.insert(float.to_bits()),
    });
    let count = numbers.len() as u64;
    let values = Data::collect(x.dtype, numbers.into_iter().map(Some));
    let places = |dim| Value::new(vec![dim], INT64);
    Ok(vec![Value::of(vec![count], x.dtype, values), places(count), places(x.count()), places(count)])
}

pub fn sequence_construct(context: &Context) -> Values {
    list(context, context.all()?.into_iter().cloned().collect())
}

fn list(context: &Context, values: Vec<Value>) -> Values {
    let dtype = values.first().map_or(context.dtype("dtype", FLOAT), |value| value.dtype);
    let words: usize = values.iter().map(|value| 4 + value.shape.len()).sum();
    refuse_if(!context.limits.allow(words as u64), || "the model has too many sequences")?;
    Ok(vec![Value::of(vec![], dtype, Data::List(values.into()))])
}

fn sequence<'a>(context: &Context<'a, '_>) -> Result<&'a [Value], Fault> {
    match context.data(0)? {
        Data::List(list) => Ok(list),
        _ => Err("input 0 is no sequence".into()),
    }
}

fn place(context: &Context, n: usize, count: usize) -> Result<usize, Fault> {
    axis(context.scalar(n)?, count)
}

pub fn sequence_at(context: &Context) -> Values {
    let list = sequence(context)?;
    Ok(vec![list[place(context, 1, list.len())?].clone()])
}

pub fn sequence_insert(context: &Context) -> Values {
    let mut values = sequence(context)?.to_vec();
    let at = context.optional(2).map(|_| place(context, 2, values.len() + 1)).transpose()?;
    values.insert(at.unwrap_or(values.len()), context.input(1)?.clone());
    list(context, values)
}

pub fn sequence_erase(context: &Context) -> Values {
    let mut values = sequence(context)?.to_vec();
    let last = values.len().checked_sub(1).ok_or("its sequence is empty")?;
    let at = context.optional(1).map(|_| place(context, 1, values.len())).transpose()?;
    values.remove(at.unwrap_or(last));
    list(context, values)
}

pub fn sequence_empty(context: &Context) -> Values {
    list(context, Vec::new())
}

pub fn sequence_length(context: &Context) -> Values {
    let count = Number::Int(sequence(context)?.len() as i64);
    Ok(vec![Value::of(vec![], INT64, Data::collect(INT64, [Some(count)]))])
}

pub fn concat_from_sequence(context: &Context) -> Values {
    let values: Vec<&Value> = sequence(context)?.iter().collect();
    joined(&values, context.int("axis", 0), context.flag("new_axis"))
}

pub fn split_to_sequence(context: &Context) -> Values {
    let x = context.input(0)?;
    let at = axis(context.int("axis", 0), x.shape.len())?;
    let dim = x.shape[at];
    let sizes: Vec<u64> = match context.optional(1) {
        Some(sizes) if sizes.shape.is_empty() => {
            let size = dimension(context.scalar(1)?)?;
            refuse_if(size == 0 || dim.div_ceil(size) > FOLDED, || format!("parts of {size} of {dim}"))?;
            (0..dim.div_ceil(size)).map(|n| size.min(dim - n * size)).collect()
        }
        Some(_) => dims(context.known(1)?)?,
        None if dim > FOLDED => return Err(format!("{dim} parts").into()),
        None => vec![1; dim as usize],
    };
    refuse_if(sizes.iter().try_fold(0_u64, |total, &size| total.checked_add(size)) != Some(dim), || {
        format!("{sizes:?} do not divide {dim}")
    })?;
    let keep = context.optional(1).is_some() || context.int("keepdims", 1) != 0;
    let part = |size| {
        let mut shape = replaced(&x.shape, at, size);
        if !keep {
            shape.remove(at);
        }
        Value::new(shape, x.dtype)
    };
    list(context, sizes.into_iter().map(part).collect())
}

pub fn col2im(context: &Context) -> Values {
    let x = context.input(0)?;
    let (image, block) = (dims(context.known(1)?)?, product(&dims(context.known(2)?)?)?);
    let [n, c, _] = x.dims("its input")?;
    refuse_if(block == 0 || c % block != 0, || format!("blocks of {block} do not divide {:?}", x.shape))?;
    one([&[n, c / block][..], &image].concat(), x.dtype)
}

/// Infers a tensor whose shape an attribute gives.
pub fn random(context: &Context) -> Values {
    let shape = dims(context.ints("shape").ok_or("its shape is missing")?)?;
    one(shape, context.dtype("dtype", FLOAT))
}
