//! Computes the elements of small outputs with known inputs, since shapes may depend on them.

use super::context::Context;
use super::layout::{cuts, pads, permutation, taken};
use super::math::reduced;
use super::scalar::{binary, reduction, unary};
use super::value::Number::{self, Float, Int};
use super::value::{Data, FOLDED, Value, axis, is_float, product};
use super::{BINARY, UNARY, is_one_of};

/// Computes the elements of a node's outputs, whose shapes and types are already known, if the inputs are known and the elements few.
pub fn fold(context: &Context, outputs: &mut [Value]) {
    if context.inputs.is_empty()
        || outputs.iter().any(|output| output.data.known() || output.count() > FOLDED)
    {
        return;
    }
    let inputs = context.inputs.iter().flatten();
    if let Some(unknown) = inputs.clone().find(|input| !input.data.known()) {
        // If only the contents of a file are missing, the outputs are missing for the same reason.
        let missing = matches!(unknown.data, Data::Missing(_))
            && inputs.clone().all(|input| !matches!(input.data, Data::Unknown));
        if missing && !matches!(context.op(), "Shape" | "Size") {
            outputs.iter_mut().for_each(|output| output.data = unknown.data.clone());
        }
        return;
    }
    let elements = inputs.map(|input| input.count().min(FOLDED));
    let elements = elements.chain(outputs.iter().map(Value::count)).fold(0, u64::saturating_add);
    if !context.limits.allow(elements.saturating_add(1)) {
        return;
    }
    for (n, data) in evaluate(context, outputs).unwrap_or_default().into_iter().enumerate() {
        if let Some(output) = outputs.get_mut(n) {
            output.data = data;
        }
    }
}

/// Returns the number of elements; `usize::MAX` if there are more.
fn size(shape: &[u64]) -> usize {
    product(shape).map_or(usize::MAX, |count| count as usize)
}

/// Calls `at` with the position of each element of a tensor, in memory order.
fn places<T>(shape: &[u64], mut at: impl FnMut(&[usize]) -> T) -> Vec<T> {
    let count = size(shape);
    let mut place = vec![0; shape.len()];
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        made.push(at(&place));
        for (n, step) in place.iter_mut().enumerate().rev() {
            *step += 1;
            if *step < shape[n] as usize {
                break;
            }
            *step = 0;
        }
    }
    made
}

/// Returns the index of the element at a position.
fn flat(shape: &[u64], place: impl IntoIterator<Item = usize>) -> Option<usize> {
    let mut at = 0_usize;
    let mut place = place.into_iter();
    for &dim in shape {
        let step = place.next().filter(|&step| step < dim as usize)?;
        at = at.checked_mul(dim as usize)?.checked_add(step)?;
    }
    Some(at)
}

/// Returns the element at a position of a tensor broadcast to a larger shape.
fn stretched(x: &Value, place: &[usize]) -> Option<Number> {
    let lead = place.len().checked_sub(x.shape.len())?;
    let own = place[lead..].iter().zip(&x.shape).map(|(&at, &dim)| if dim == 1 { 0 } else { at });
    x.data.get(flat(&x.shape, own)?)
}

/// Returns an index counted from the front; a negative `at` counts from the end.
fn index(at: Number, dim: u64) -> Option<usize> {
    let Int(at) = at else { return None };
    axis(at, dim as usize).ok()
}

fn evaluate(context: &Context, outputs: &[Value]) -> Option<Vec<Data>> {
    let x = context.optional(0)?;
    let out = outputs.first()?;
    // Computes the first output from the element at each position.
    let each = |at: &mut dyn FnMut(&[usize]) -> Option<Number>| {
        Some(vec![Data::collect(out.dtype, places(&out.shape, |place| at(place)))])
    };
    let moved = |at: &mut dyn FnMut(&[usize]) -> Option<usize>| each(&mut |place| x.data.get(at(place)?));
    match context.op() {
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => Some(vec![x.data.clone()]),
        "Dropout" if !context.inputs.get(2).is_some_and(Option::is_some) => Some(vec![x.data.clone()]),
        "Clip" => {
            let bound = |n: usize, name: &str| match context.optional(n) {
                Some(bound) => bound.data.get(0),
                None => context.attribute(name).map(|bound| Float(bound.f.into())),
            };
            let (low, high) = (bound(1, "min"), bound(2, "max"));
            each(&mut |place| {
                let x = x.data.get(flat(&x.shape, place.iter().copied())?)?;
                let x = low.filter(|low| low.float() > x.float()).unwrap_or(x);
                Some(high.filter(|high| high.float() < x.float()).unwrap_or(x))
            })
        }
        "Cast" | "CastLike" => moved(&mut |place| flat(&x.shape, place.iter().copied())),
        "IsInf" | "IsNaN" => each(&mut |place| unary(context, stretched(x, place)?)),
        op if is_one_of(UNARY, op) => each(&mut |place| unary(context, stretched(x, place)?)),
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
            each(&mut |place| binary(context, stretched(x, place)?, stretched(context.optional(1)?, place)?))
        }
        op if is_one_of(BINARY, op) => {
            let count = context.inputs.len() as f64;
            each(&mut |place| {
                let mut made = stretched(x, place)?;
                for other in &context.inputs[1..] {
                    made = binary(context, made, stretched((*other)?, place)?)?;
                }
                Some(if op == "Mean" { Float(made.float() / count) } else { made })
            })
        }
        op if op.starts_with("Reduce") => reduce(context, x, out),
        "ArgMax" | "ArgMin" => arg(context, x, out),
        "Where" => {
            let (a, b) = (context.optional(1)?, context.optional(2)?);
            each(&mut |place| {
                let test = stretched(x, place)?.float() != 0.0;
                stretched(if test { a } else { b }, place)
            })
        }
        "Expand" => each(&mut |place| stretched(x, place)),
        "Tile" => moved(&mut |place| {
            flat(&x.shape, place.iter().zip(&x.shape).map(|(&at, &dim)| at % dim.max(1) as usize))
        }),
        "Transpose" => {
            let order = permutation(context, x.shape.len()).ok()?;
            moved(&mut |place| {
                let mut own = vec![0; place.len()];
                order.iter().zip(place).for_each(|(&axis, &at)| own[axis] = at);
                flat(&x.shape, own)
            })
        }
        "Slice" => {
            let cuts = cuts(context).ok()?;
            moved(&mut |place| {
                let mut own = place.to_vec();
                for cut in &cuts {
                    own[cut.axis] = usize::try_from(cut.start + cut.step * place[cut.axis] as i128).ok()?;
                }
                flat(&x.shape, own)
            })
        }
        "Pad" => pad(context, x, out),
        "Concat" => {
            let along = axis(context.int("axis", 1), x.shape.len()).ok()?;
            let mut starts = Vec::new();
            let mut start = 0_usize;
            for input in context.inputs {
                starts.push(start);
                start += (*input)?.shape[along] as usize;
            }
            each(&mut |place| {
                // Find the last input that begins here or before; an empty input begins where the next does.
                let n = starts.partition_point(|&start| start <= place[along]) - 1;
                let mut own = place.to_vec();
                own[along] -= starts[n];
                let input = context.inputs[n]?;
                input.data.get(flat(&input.shape, own)?)
            })
        }
        "Split" => {
            let along = axis(context.int("axis", 0), x.shape.len()).ok()?;
            let mut start = 0;
            let part = |part: &Value| {
                let numbers = places(&part.shape, |place| {
                    let mut own = place.to_vec();
                    own[along] += start;
                    x.data.get(flat(&x.shape, own)?)
                });
                start += part.shape[along] as usize;
                Data::collect(part.dtype, numbers)
            };
            Some(outputs.iter().map(part).collect())
        }
        "Gather" => {
            let at = context.optional(1)?;
            let along = axis(context.int("axis", 0), x.shape.len()).ok()?;
            moved(&mut |place| {
                let (before, rest) = place.split_at(along);
                let (middle, after) = rest.split_at(at.shape.len());
                let picked = index(at.data.get(flat(&at.shape, middle.iter().copied())?)?, x.shape[along])?;
                flat(&x.shape, before.iter().copied().chain([picked]).chain(after.iter().copied()))
            })
        }
        "GatherElements" => {
            let at = context.optional(1)?;
            let along = axis(context.int("axis", 0), x.shape.len()).ok()?;
            moved(&mut |place| {
                let mut own = place.to_vec();
                own[along] = index(at.data.get(flat(&at.shape, place.iter().copied())?)?, x.shape[along])?;
                flat(&x.shape, own)
            })
        }
        "GatherND" => {
            let at = context.optional(1)?;
            let batch = usize::try_from(context.int("batch_dims", 0)).ok()?;
            let (&depth, lead) = at.shape.split_last()?;
            moved(&mut |place| {
                let (own, rest) = place.split_at(lead.len());
                let mut picked = own.get(..batch)?.to_vec();
                for n in 0..depth as usize {
                    let number = at.data.get(flat(&at.shape, own.iter().copied().chain([n]))?)?;
                    picked.push(index(number, *x.shape.get(batch + n)?)?);
                }
                picked.extend(rest);
                flat(&x.shape, picked)
            })
        }
        "ScatterND" | "ScatterElements" | "Scatter" => scatter(context, x, out),
        "CumSum" => cum_sum(context, x, out),
        "TopK" => top_k(context, x, outputs),
        "Trilu" => {
            let upper = context.int("upper", 1) != 0;
            let k = context.optional(1).map_or(Some(0), |k| k.data.ints()?.first().copied())?;
            each(&mut |place| {
                let [.., row, column] = *place else { return None };
                let right = i128::from(column as i64) - i128::from(row as i64) - i128::from(k);
                let kept = if upper { right >= 0 } else { right <= 0 };
                if kept { stretched(x, place) } else { Some(Int(0)) }
            })
        }
        "EyeLike" => {
            let k = i128::from(context.int("k", 0));
            each(&mut |place| {
                let [row, column] = *place else { return None };
                Some(Int((column as i128 - row as i128 == k).into()))
            })
        }
        "OneHot" => {
            let (depth, values) = (context.optional(1)?.data.get(0)?, context.optional(2)?);
            let along = axis(context.int("axis", -1), x.shape.len() + 1).ok()?;
            each(&mut |place| {
                let mut own = place.to_vec();
                let column = own.remove(along);
                let at = index(Int(x.data.get(flat(&x.shape, own)?)?.float() as i64), depth.float() as u64);
                values.data.get(usize::from(at == Some(column)))
            })
        }
        "Compress" => {
            let taken = taken(context).ok()?;
            match context.attribute("axis") {
                Some(along) => {
                    let along = axis(along.i, x.shape.len()).ok()?;
                    moved(&mut |place| {
                        let mut own = place.to_vec();
                        own[along] = *taken.get(place[along])?;
                        flat(&x.shape, own)
                    })
                }
                None => moved(&mut |place| taken.get(place[0]).copied()),
            }
        }
        _ => None,
    }
}

/// Returns the position in a reduction's result for a position in its input.
fn kept(place: &[usize], out: &[bool], keep: bool) -> Vec<usize> {
    let steps = place.iter().zip(out);
    steps.filter_map(|(&at, &out)| if out { keep.then_some(0) } else { Some(at) }).collect()
}

fn reduce(context: &Context, x: &Value, out: &Value) -> Option<Vec<Data>> {
    let op = context.op();
    let (start, step) = reduction(op)?;
    let axes = reduced(context).ok()?;
    let keep = context.int("keepdims", 1) != 0;
    let mut made = vec![Some(start); out.count() as usize];
    let mut number = 0;
    places(&x.shape, |place| {
        let element = x.data.get(number);
        number += 1;
        if let Some(at) = flat(&out.shape, kept(place, &axes, keep)) {
            made[at] = made[at].and_then(|so_far| step(so_far, element?));
        }
    });
    let count = x.count() / out.count().max(1);
    // An empty range has no largest element or mean.
    if count == 0 && !matches!(op, "ReduceSum" | "ReduceProd") {
        return None;
    }
    let made = made.into_iter().map(|number| {
        Some(match (op, number?) {
            ("ReduceMean", Int(sum)) => Int(sum / count as i64),
            ("ReduceMean", Float(sum)) => Float(sum / count as f64),
            ("ReduceL2", number) => Float(number.float().sqrt()),
            (_, number) => number,
        })
    });
    Some(vec![Data::collect(out.dtype, made)])
}

fn arg(context: &Context, x: &Value, out: &Value) -> Option<Vec<Data>> {
    let axes = reduced(context).ok()?;
    let along = axes.iter().position(|&out| out)?;
    let keep = context.int("keepdims", 1) != 0;
    let (most, last) = (context.op() == "ArgMax", context.flag("select_last_index"));
    let mut best: Vec<Option<(f64, usize)>> = vec![None; out.count() as usize];
    let mut number = 0;
    places(&x.shape, |place| {
        let element = x.data.get(number).map(|x| if most { x.float() } else { -x.float() });
        number += 1;
        if let (Some(element), Some(at)) = (element, flat(&out.shape, kept(place, &axes, keep))) {
            let better = best[at].is_none_or(|(so_far, _)| element > so_far || last && element == so_far);
            if better {
                best[at] = Some((element, place[along]));
            }
        }
    });
    Some(vec![Data::collect(out.dtype, best.into_iter().map(|best| Some(Int(best?.1 as i64))))])
}

fn pad(context: &Context, x: &Value, out: &Value) -> Option<Vec<Data>> {
    let pads = pads(context).ok()?;
    let mode = context.text("mode");
    let fill = context.optional(2).map_or(Some(Int(0)), |fill| fill.data.get(0))?;
    let numbers = places(&out.shape, |place| {
        let mut own = Vec::with_capacity(place.len());
        for ((&at, &dim), &(before, _)) in place.iter().zip(&x.shape).zip(&pads) {
            let (at, dim) = (at as i128 - i128::from(before), i128::from(dim));
            let inside = (0..dim).contains(&at);
            let at = match mode.as_str() {
                _ if inside => at,
                "" | "constant" => return Some(fill),
                "edge" => at.clamp(0, dim - 1),
                "wrap" => at.rem_euclid(dim.max(1)),
                "reflect" if dim > 1 => {
                    let turn = at.rem_euclid(2 * (dim - 1));
                    turn.min(2 * (dim - 1) - turn)
                }
                _ => return None,
            };
            own.push(usize::try_from(at).ok()?);
        }
        x.data.get(flat(&x.shape, own)?)
    });
    Some(vec![Data::collect(out.dtype, numbers)])
}

fn scatter(context: &Context, x: &Value, out: &Value) -> Option<Vec<Data>> {
    let (at, updates) = (context.optional(1)?, context.optional(2)?);
    if !matches!(context.text("reduction").as_str(), "" | "none") {
        return None;
    }
    let mut numbers: Vec<_> = (0..x.count() as usize).map(|n| x.data.get(n)).collect();
    let along = axis(context.int("axis", 0), x.shape.len());
    let (depth, lead) = at.shape.split_last().map_or((0, 0), |(&depth, lead)| (depth as usize, lead.len()));
    let elements = context.op() != "ScatterND";
    let targets = places(&updates.shape, |place| {
        let own: Vec<usize> = if elements {
            let along = *along.as_ref().ok()?;
            let mut own = place.to_vec();
            own[along] = index(at.data.get(flat(&at.shape, place.iter().copied())?)?, x.shape[along])?;
            own
        } else {
            let (before, rest) = place.split_at_checked(lead)?;
            let picked = (0..depth).map(|n| {
                index(at.data.get(flat(&at.shape, before.iter().copied().chain([n]))?)?, *x.shape.get(n)?)
            });
            picked.chain(rest.iter().map(|&step| Some(step))).collect::<Option<_>>()?
        };
        flat(&x.shape, own)
    });
    for (n, target) in targets.into_iter().enumerate() {
        *numbers.get_mut(target?)? = updates.data.get(n);
    }
    Some(vec![Data::collect(out.dtype, numbers)])
}

fn cum_sum(context: &Context, x: &Value, out: &Value) -> Option<Vec<Data>> {
    let along = index(context.optional(1)?.data.get(0)?, x.shape.len() as u64)?;
    let (exclusive, reverse) = (context.flag("exclusive"), context.flag("reverse"));
    let stride = size(&x.shape[along + 1..]);
    let dim = x.shape[along] as usize;
    let mut made: Vec<Option<Number>> = vec![None; x.count() as usize];
    for start in (0..made.len()).filter(|n| (n / stride.max(1)).is_multiple_of(dim.max(1))) {
        let mut sum = if is_float(x.dtype) { Float(0.0) } else { Int(0) };
        for step in 0..dim {
            let at = start + stride * if reverse { dim - 1 - step } else { step };
            let next = match (sum, x.data.get(at)?) {
                (Int(a), Int(b)) => Int(a.checked_add(b)?),
                (a, b) => Float(a.float() + b.float()),
            };
            made[at] = Some(if exclusive { sum } else { next });
            sum = next;
        }
    }
    Some(vec![Data::collect(out.dtype, made)])
}

fn top_k(context: &Context, x: &Value, outputs: &[Value]) -> Option<Vec<Data>> {
    let [values, places_out] = outputs else { return None };
    let along = axis(context.int("axis", -1), x.shape.len()).ok()?;
    let most = context.int("largest", 1) != 0;
    let stride = size(&x.shape[along + 1..]);
    let (dim, k) = (x.shape[along] as usize, values.shape[along] as usize);
    let mut best = vec![None; values.count() as usize];
    let lines = (0..x.count() as usize).filter(|n| (n / stride.max(1)).is_multiple_of(dim.max(1)));
    for (line, start) in lines.enumerate() {
        let mut order: Vec<usize> = (0..dim).collect();
        let key = |n: usize| x.data.get(start + n * stride).map_or(0.0, Number::float);
        order.sort_by(|&a, &b| if most { key(b).total_cmp(&key(a)) } else { key(a).total_cmp(&key(b)) });
        let first = line / stride.max(1) * k * stride + line % stride.max(1);
        for (n, &place) in order.iter().take(k).enumerate() {
            best[first + n * stride] = Some((x.data.get(start + place * stride)?, place));
        }
    }
    let numbers = Data::collect(values.dtype, best.iter().map(|best| Some((*best)?.0)));
    let found = Data::collect(places_out.dtype, best.iter().map(|best| Some(Int((*best)?.1 as i64))));
    Some(vec![numbers, found])
}
