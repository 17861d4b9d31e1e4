//! Shapes from a recorded run or from the model, for tensors whose shapes cannot be inferred.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::Stated;
use super::infer::Value;
use super::proto::{Node, ValueInfo};
use crate::graph::Graph;

const FLOAT: i32 = 1;

/// Why a file of shapes was refused.
#[derive(Debug, thiserror::Error)]
pub enum ShapesError {
    /// The text is not JSON.
    #[error("the shapes are no JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A shape cannot be parsed.
    #[error(
        "the shape of `{0}` is not understood: write a list of numbers, or {{\"shape\": [...], \"dtype\": \"float32\"}}"
    )]
    Shape(String),
    /// The JSON has another form.
    #[error("the shapes are neither a dictionary by tensor nor a profile of ONNX Runtime")]
    Form,
}

/// A shape, and ONNX's number of the element type if known.
type Told = (Vec<u64>, Option<i32>);

/// Shapes of tensors by name, and of nodes' outputs by the node's name.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    tensors: HashMap<String, Told>,
    nodes: HashMap<String, Vec<Told>>,
}

impl Shapes {
    /// Reads JSON of one of two forms: a dictionary from tensors to shapes (`{"y": [1, 8]}` or `{"y": {"shape": [1, 8], "dtype":
    /// "float32"}}`), or a profile of ONNX Runtime, whose events list each node's `output_type_shape`.
    ///
    /// # Errors
    /// [`ShapesError`] if the bytes have neither form.
    pub fn read(bytes: &[u8]) -> Result<Self, ShapesError> {
        let mut shapes = Self::default();
        match serde_json::from_slice(bytes)? {
            Json::Array(events) => shapes.profile(&events),
            Json::Object(fields) => {
                for (name, told) in fields {
                    let told = told_of(&told).ok_or_else(|| ShapesError::Shape(name.clone()))?;
                    shapes.tensors.insert(name, told);
                }
            }
            _ => return Err(ShapesError::Form),
        }
        if shapes.tensors.is_empty() && shapes.nodes.is_empty() {
            return Err(ShapesError::Form);
        }
        Ok(shapes)
    }

    /// Returns the names listed by tensor that no tensor of the model has, in order.
    pub fn unknown<'s>(&'s self, graph: &Graph) -> Vec<&'s str> {
        // Tensors of bodies and functions have a prefix.
        let has = |name: &str| graph.tensors.iter().any(|tensor| tensor.name.ends_with(name));
        let mut unknown: Vec<&str> =
            self.tensors.keys().map(String::as_str).filter(|name| !has(name)).collect();
        unknown.sort_unstable();
        unknown
    }

    /// Reads the shapes from a profile's events.
    fn profile(&mut self, events: &[Json]) {
        for event in events {
            let name = event["name"].as_str().and_then(|name| name.strip_suffix("_kernel_time"));
            let (Some(name), Some(outputs)) = (name, event["args"]["output_type_shape"].as_array()) else {
                continue;
            };
            let told: Option<Vec<Told>> = outputs
                .iter()
                .map(|output| {
                    let (dtype, dims) = output.as_object()?.iter().next()?;
                    Some((list(dims)?, Some(dtype_of(dtype)?)))
                })
                .collect();
            if let Some(told) = told {
                self.nodes.insert(name.into(), told);
            }
        }
    }

    /// Returns the shape of an input.
    pub(super) fn input(&self, name: &str) -> Option<&[u64]> {
        self.tensors.get(name).map(|(shape, _)| shape.as_slice())
    }

    /// Returns output `n` of a node as recorded, or else as its graph states it, of type `dtype` if no type is given. Within a body or a
    /// function, a tensor may be named with or without `prefix`.
    pub(super) fn output(
        &self,
        node: &Node,
        prefix: &str,
        stated: &Stated,
        n: usize,
        dtype: Option<i32>,
    ) -> Option<Value> {
        let name = node.output.get(n)?;
        let full = || self.tensors.get(&format!("{prefix}{name}"));
        let told = full().or_else(|| self.tensors.get(name)).cloned();
        let told = told.or_else(|| self.nodes.get(&node.name)?.get(n).cloned());
        let (shape, own) = told.or_else(|| stated_of(stated.get(name.as_str())?))?;
        Some(Value::new(shape, own.or(dtype).unwrap_or(FLOAT)))
    }

    /// Returns all outputs of a node, if each is known.
    pub(super) fn outputs(
        &self,
        node: &Node,
        prefix: &str,
        stated: &Stated,
        dtype: Option<i32>,
    ) -> Option<Vec<Value>> {
        let output = |n: usize| match node.output[n].as_str() {
            "" => Some(Value::default()),
            _ => self.output(node, prefix, stated, n, dtype),
        };
        if node.output.is_empty() {
            return None;
        }
        (0..node.output.len()).map(output).collect()
    }
}

/// Returns whether a graph states a tensor's shape without an open dimension.
pub fn tells(info: &ValueInfo) -> bool {
    stated_of(info).is_some()
}

/// Returns the shape that the model states for a tensor, if no dimension of it is open.
fn stated_of(info: &ValueInfo) -> Option<Told> {
    let tensor = info.r#type.as_ref()?.tensor.as_ref()?;
    let dims = tensor.shape.as_ref()?.dim.iter().map(|dim| u64::try_from(dim.value?).ok());
    Some((dims.collect::<Option<_>>()?, Some(tensor.elem_type).filter(|&dtype| dtype != 0)))
}

fn list(json: &Json) -> Option<Vec<u64>> {
    json.as_array()?.iter().map(Json::as_u64).collect()
}

fn told_of(json: &Json) -> Option<Told> {
    if json.is_array() {
        return Some((list(json)?, None));
    }
    let dtype = match &json["dtype"] {
        Json::Null => None,
        Json::String(name) => Some(dtype_of(name)?),
        other => Some(i32::try_from(other.as_u64()?).ok()?),
    };
    Some((list(json.get("shape")?)?, dtype))
}

/// Returns ONNX's number of an element type.
fn dtype_of(name: &str) -> Option<i32> {
    let name = name.strip_prefix("tensor(").and_then(|name| name.strip_suffix(')')).unwrap_or(name);
    let name = match name {
        "float" => "float32",
        "double" => "float64",
        other => other,
    };
    (1..=28).find(|&dtype| super::dtype(dtype).0 == name)
}
