//! Values: shapes, and the elements of small tensors.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};
use std::rc::Rc;

use half::{bf16, f16};

use super::super::dtype;
use super::super::proto::{SparseTensor, TensorProto};
use super::fault::Fault;

pub const FLOAT: i32 = 1;
pub const UINT8: i32 = 2;
pub const INT32: i32 = 6;
pub const INT64: i32 = 7;
pub const BOOL: i32 = 9;
const FLOAT16: i32 = 10;
const BFLOAT16: i32 = 16;

/// Largest number of elements for which a tensor's elements are computed.
pub const FOLDED: u64 = 4096;

/// Largest number of dimensions; no runtime supports more.
pub const RANK: usize = 64;

/// The known properties of a tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    pub shape: Vec<u64>,
    pub dtype: i32,
    pub data: Data,
}

impl Value {
    pub fn new(shape: Vec<u64>, dtype: i32) -> Self {
        Self { shape, dtype, data: Data::Unknown }
    }

    pub fn of(shape: Vec<u64>, dtype: i32, data: Data) -> Self {
        Self { shape, dtype, data }
    }

    /// Returns the dimensions; if there are not `N`, an error that names the tensor `what`.
    pub fn dims<const N: usize>(&self, what: &str) -> Result<[u64; N], Fault> {
        <[u64; N]>::try_from(&self.shape[..]).map_err(|_| format!("{what} has not {N} dimensions").into())
    }

    /// Returns the tensor without its elements.
    pub fn unknown(&self) -> Self {
        Self::new(self.shape.clone(), self.dtype)
    }

    /// Returns the number of elements; 2^64 - 1 if there are more.
    pub fn count(&self) -> u64 {
        product(&self.shape).unwrap_or(u64::MAX)
    }

    /// Returns the size in bytes, 2^64 - 1 if it is larger; `None` if the element type has no fixed size.
    pub fn bytes(&self) -> Option<u64> {
        if let Data::List(list) = &self.data {
            return list.iter().try_fold(0_u64, |sum, one| Some(sum.saturating_add(one.bytes()?)));
        }
        let bits = u128::from(Some(dtype(self.dtype).1).filter(|&bits| bits > 0)?);
        let bits = bits.checked_mul(self.count().into());
        Some(bits.and_then(|bits| bits.div_ceil(8).try_into().ok()).unwrap_or(u64::MAX))
    }
}

/// The elements of a tensor, if they are known without running the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Data {
    /// They are not known, or the tensor is large.
    #[default]
    Unknown,
    /// They would be known if not for a file; says what is wrong with it.
    Missing(Rc<str>),
    /// Integers and booleans.
    Ints(Rc<[i64]>),
    /// Floating-point numbers.
    Floats(Rc<[f64]>),
    /// The tensors of a sequence.
    List(Rc<[Value]>),
}

/// An element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

impl Data {
    pub fn known(&self) -> bool {
        matches!(self, Self::Ints(_) | Self::Floats(_) | Self::List(_))
    }

    pub fn ints(&self) -> Option<&[i64]> {
        if let Self::Ints(ints) = self { Some(ints) } else { None }
    }

    pub fn get(&self, at: usize) -> Option<Number> {
        match self {
            Self::Ints(ints) => ints.get(at).copied().map(Number::Int),
            Self::Floats(floats) => floats.get(at).copied().map(Number::Float),
            _ => None,
        }
    }

    /// Makes elements of a numeric type, as a runtime stores them; unknown if any of them is unknown or does not fit.
    pub fn collect(dtype: i32, numbers: impl IntoIterator<Item = Option<Number>>) -> Self {
        let numbers = numbers.into_iter();
        let made = if is_float(dtype) {
            let floats = numbers.map(|number| Some(rounded(dtype, number?.float())));
            floats.collect::<Option<Vec<_>>>().map(|floats| Self::Floats(floats.into()))
        } else {
            let ints = numbers.map(|number| stored(dtype, number?));
            ints.collect::<Option<Vec<_>>>().map(|ints| Self::Ints(ints.into()))
        };
        made.unwrap_or_default()
    }
}

pub fn is_float(dtype: i32) -> bool {
    matches!(dtype, 1 | 11 | FLOAT16 | BFLOAT16)
}

/// Returns an integer as stored in an integer type: narrower types wrap around.
fn stored(dtype: i32, number: Number) -> Option<i64> {
    let int = match number {
        Number::Float(float) if dtype == BOOL => i64::from(float != 0.0),
        Number::Int(int) => int,
        // Runtimes differ on values that do not fit.
        Number::Float(float) => Some(float as i64).filter(|_| float.abs() < 9e18)?,
    };
    Some(match dtype {
        UINT8 => i64::from(int as u8),
        3 => i64::from(int as i8),
        4 => i64::from(int as u16),
        5 => i64::from(int as i16),
        INT32 => i64::from(int as i32),
        INT64 => int,
        BOOL => i64::from(int != 0),
        12 => i64::from(int as u32),
        13 if int >= 0 => int,
        _ => return None,
    })
}

/// Returns the nearest number of a float type.
pub fn rounded(dtype: i32, x: f64) -> f64 {
    match dtype {
        FLOAT => f64::from(x as f32),
        // By way of 32 bits, which the crate rounds identically on all machines.
        FLOAT16 => f16::from_f32(x as f32).to_f64(),
        BFLOAT16 => bf16::from_f32(x as f32).to_f64(),
        _ => x,
    }
}

/// Returns the float that 16 bits encode.
fn half(dtype: i32, bits: u16) -> f64 {
    if dtype == BFLOAT16 { bf16::from_bits(bits).to_f64() } else { f16::from_bits(bits).to_f64() }
}

/// The folder of elements outside the model, and the number of elements that may still be read or computed.
pub struct Limits<'a> {
    pub folder: Option<&'a Path>,
    pub fuel: Cell<u64>,
}

impl Limits<'_> {
    /// Returns whether `elements` more may be handled, and if so counts them.
    pub fn allow(&self, elements: u64) -> bool {
        let left = self.fuel.get().checked_sub(elements);
        self.fuel.set(left.unwrap_or(self.fuel.get()));
        left.is_some()
    }
}

/// Returns the value of an initializer.
pub fn constant(tensor: &TensorProto, limits: &Limits) -> Result<Value, Fault> {
    let shape = dims(&tensor.dims)?;
    let count = product(&shape)?;
    let value = Value::new(shape, tensor.data_type);
    if count > FOLDED {
        return Ok(value);
    }
    let outside = tensor.data_location == 1;
    let data = if outside && !limits.allow(count) {
        Data::Unknown
    } else if outside {
        external(tensor, count, limits.folder)
    } else {
        // Decode at most a little more than the largest count: any excess is an error.
        elements(tensor, &tensor.raw_data[..tensor.raw_data.len().min(8 * FOLDED as usize + 8)])
    };
    let known = match &data {
        Data::Ints(ints) => ints.len() as u64,
        Data::Floats(floats) => floats.len() as u64,
        _ => count,
    };
    match tensor.data_type {
        _ if known == count => Ok(Value { data, ..value }),
        INT32 | INT64 | BOOL => Err(format!("it has {known} elements of {count}").into()),
        // The weights were removed from the model.
        _ => Ok(value),
    }
}

/// Returns the value of a sparse tensor.
pub fn sparse(tensor: &SparseTensor) -> Result<Value, Fault> {
    let shape = dims(&tensor.dims)?;
    Ok(Value::new(shape, tensor.values.as_ref().map_or(0, |values| values.data_type)))
}

/// Decodes the elements in one of a tensor's fields.
fn elements(tensor: &TensorProto, raw: &[u8]) -> Data {
    let kind = tensor.data_type;
    let bits = dtype(kind).1;
    if !is_float(kind) && !matches!(kind, 2..=7 | BOOL | 12 | 13) {
        return Data::Unknown;
    }
    if !raw.is_empty() {
        let words = raw
            .chunks_exact(bits as usize / 8)
            .map(|chunk| chunk.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte)));
        return Data::collect(
            kind,
            words.map(|word| {
                Some(match kind {
                    FLOAT => Number::Float(f64::from(f32::from_bits(word as u32))),
                    11 => Number::Float(f64::from_bits(word)),
                    FLOAT16 | BFLOAT16 => Number::Float(half(kind, word as u16)),
                    // Values beyond `i64` are unknown.
                    13 => Number::Int(i64::try_from(word).ok()?),
                    _ => Number::Int(word as i64),
                })
            }),
        );
    }
    match kind {
        FLOAT => Data::Floats(tensor.float_data.iter().map(|&float| f64::from(float)).collect()),
        11 => Data::Floats(tensor.double_data.clone().into()),
        FLOAT16 | BFLOAT16 => {
            Data::Floats(tensor.int32_data.iter().map(|&bits| half(kind, bits as u16)).collect())
        }
        INT64 => Data::Ints(tensor.int64_data.clone().into()),
        12 | 13 => Data::collect(
            kind,
            tensor.uint64_data.iter().map(|&int| i64::try_from(int).ok().map(Number::Int)),
        ),
        _ => Data::collect(kind, tensor.int32_data.iter().map(|&int| Some(Number::Int(int.into())))),
    }
}

/// Reads the elements of a small tensor from a file beside the model.
fn external(tensor: &TensorProto, count: u64, folder: Option<&Path>) -> Data {
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key);
    let name = entry("location").map_or("", |entry| entry.value.as_str());
    let missing = |why: &str| {
        Data::Missing(format!("the elements of `{}` are in the file `{name}` {why}", tensor.name).into())
    };
    // Read only files in the model's folder.
    let inside =
        |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if name.is_empty() || !inside(Path::new(name)) {
        return missing("outside of the model's folder, which is not read");
    }
    let Some(folder) = folder else {
        return missing("beside the model, and its folder is not known: read the model by its path");
    };
    let read = || -> std::io::Result<Vec<u8>> {
        let path = folder.join(name);
        // Opening a pipe would wait for a writer.
        if !path.metadata()?.is_file() {
            return Err(std::io::Error::other("it is no file"));
        }
        let mut file = File::open(path)?;
        let at = entry("offset").map_or(Ok(0), |entry| entry.value.parse());
        let at = at.map_err(|_| std::io::Error::other("its offset is no number"))?;
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = vec![0; (count * dtype(tensor.data_type).1 / 8) as usize];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => elements(tensor, &bytes),
        Err(error) => missing(&format!("beside the model, which cannot be read: {error}")),
    }
}

pub fn dimension(dim: i64) -> Result<u64, Fault> {
    u64::try_from(dim).map_err(|_| format!("a dimension is {dim}").into())
}

pub fn dims(list: &[i64]) -> Result<Vec<u64>, Fault> {
    list.iter().map(|&dim| dimension(dim)).collect()
}

/// Returns an index counted from the front; a negative `at` counts from the end of `count`.
pub fn from_front(at: i64, count: usize) -> i64 {
    if at < 0 { at.saturating_add(count as i64) } else { at }
}

/// Returns an axis counted from the front.
pub fn axis(axis: i64, rank: usize) -> Result<usize, Fault> {
    let found = usize::try_from(from_front(axis, rank)).ok().filter(|&axis| axis < rank);
    found.ok_or_else(|| format!("axis {axis} of {rank}").into())
}

pub fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, Fault> {
    list.iter().map(|&at| axis(at, rank)).collect()
}

pub fn product(dims: &[u64]) -> Result<u64, Fault> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let count = dims.iter().try_fold(1_u64, |count, &dim| count.checked_mul(dim));
    count.ok_or_else(|| "the shape overflows".into())
}

pub fn broadcast(shapes: &[&[u64]]) -> Result<Vec<u64>, Fault> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for shape in shapes {
        for (out, &dim) in out[rank - shape.len()..].iter_mut().zip(*shape) {
            if *out == 1 {
                *out = dim;
            } else if dim != 1 && dim != *out {
                return Err(format!("the shapes {shapes:?} do not broadcast").into());
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_round_to_the_nearest() {
        let above_a_tie = f64::from(f32::from_bits(0x3f80_8001));
        assert_eq!(rounded(BFLOAT16, above_a_tie), 1.0078125);
        assert_eq!(rounded(FLOAT16, 1.0 + 2f64.powi(-11) + 2f64.powi(-21)), 1.0 + 2f64.powi(-10));
        assert_eq!(rounded(FLOAT16, 1.0 + 2f64.powi(-11)), 1.0);
    }
}
