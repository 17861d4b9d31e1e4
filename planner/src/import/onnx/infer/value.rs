//! Values of small tensors, and the attributes and inputs of nodes.

use super::super::proto::{Attribute, Node, TensorProto};
use super::{FLOAT, FOLDED, Value};

/// Returns the value of an initializer.
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

pub fn dimension(dim: i64) -> Result<u64, String> {
    u64::try_from(dim).map_err(|_| format!("a dimension is {dim}"))
}

/// A node's attributes and inputs, with errors that name what is missing.
pub struct Context<'a> {
    pub node: &'a Node,
    pub inputs: &'a [Option<&'a Value>],
}

impl<'a> Context<'a> {
    pub fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub fn ints(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    pub fn text(&self, name: &str) -> String {
        self.attribute(name)
            .map_or(String::new(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    pub fn optional(&self, n: usize) -> Option<&'a Value> {
        self.inputs.get(n).copied().flatten()
    }

    pub fn input(&self, n: usize) -> Result<&'a Value, String> {
        self.optional(n).ok_or_else(|| format!("input {n} is missing"))
    }

    /// Returns the elements of an input whose values must be known.
    pub fn known(&self, n: usize) -> Result<&'a [i64], String> {
        let ints = self.input(n)?.ints.as_deref();
        ints.ok_or_else(|| format!("input {n} is not known before the model runs"))
    }

    /// Returns a list that older opsets give as an attribute and newer ones as an input.
    pub fn list(&self, name: &str, n: usize) -> Result<Option<&'a [i64]>, String> {
        match (self.ints(name), self.optional(n)) {
            (Some(ints), _) => Ok(Some(ints)),
            (None, Some(_)) => self.known(n).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// Returns an axis counted from the front.
pub fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let from_front = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    let found = usize::try_from(from_front).ok().filter(|&axis| axis < rank);
    found.ok_or_else(|| format!("axis {axis} of {rank}"))
}

pub fn product(dims: &[u64]) -> Result<u64, String> {
    dims.iter()
        .try_fold(1_u64, |count, &dim| count.checked_mul(dim))
        .ok_or_else(|| "the shape overflows".into())
}

pub fn broadcast(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
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

/// Returns the elements of a tensor that is broadcast to a larger shape.
pub fn stretched(value: &Value, shape: &[u64]) -> Option<Vec<i64>> {
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

pub fn fold(op: &str, a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
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
