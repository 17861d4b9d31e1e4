//! The model's inputs, and their open dimensions.

use std::collections::BTreeMap;

use super::infer::Value;
use super::proto::{Dim, GraphProto, ValueInfo};
use super::{OnnxError, Result, Shapes};

/// Returns the inputs that are not `constant`, with their shapes.
pub fn values<'m>(
    graph: &'m GraphProto,
    dims: &BTreeMap<String, u64>,
    recorded: &Shapes,
    constant: impl Fn(&str) -> bool,
) -> Result<Vec<(&'m ValueInfo, Value)>> {
    // The index of each open dimension in `open`, and the sizes from recorded shapes of inputs.
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut open: Vec<(String, Vec<String>)> = Vec::new();
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    let mut inputs = Vec::new();
    for input in graph.input.iter().filter(|input| !constant(&input.name)) {
        let tensor = input.r#type.as_ref().and_then(|kind| kind.tensor.as_ref());
        let Some(tensor) = tensor else {
            return Err(OnnxError::Type { tensor: input.name.clone(), dtype: 0 });
        };
        let run = recorded.input(&input.name);
        let Some(shape) = &tensor.shape else {
            let shape = run.ok_or_else(|| OnnxError::NoShape(input.name.clone()))?;
            inputs.push((input, tensor.elem_type, shape.iter().map(|&dim| Ok(dim)).collect()));
            continue;
        };
        let mut made = Vec::new();
        for (n, dim) in shape.dim.iter().enumerate() {
            let fixed = dim.value.and_then(|value| u64::try_from(value).ok());
            made.push(fixed.ok_or_else(|| {
                let name = name(input, n, dim);
                let at = *names.entry(name.clone()).or_insert(open.len());
                if at == open.len() {
                    open.push((name.clone(), Vec::new()));
                }
                let of = &mut open[at].1;
                if of.last() != Some(&input.name) {
                    of.push(input.name.clone());
                }
                if let Some(run) = run.filter(|run| run.len() == shape.dim.len()) {
                    told.insert(name.clone(), run[n]);
                }
                name
            }));
        }
        inputs.push((input, tensor.elem_type, made));
    }
    if let Some(unknown) = dims.keys().find(|name| !names.contains_key(*name)) {
        let known = open.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "none".into() } else { known };
        return Err(OnnxError::UnknownDim(unknown.clone(), known));
    }
    let size = |name: &String| dims.get(name).or_else(|| told.get(name)).copied();
    open.retain(|(name, _)| size(name).is_none());
    if !open.is_empty() {
        return Err(OnnxError::OpenDims(open));
    }
    let sized = |dim: Result<u64, String>| dim.unwrap_or_else(|name| size(&name).unwrap_or(0));
    let value = |(input, dtype, shape): (_, _, Vec<Result<u64, String>>)| {
        (input, Value::new(shape.into_iter().map(sized).collect(), dtype))
    };
    Ok(inputs.into_iter().map(value).collect())
}

/// Returns the name of an open dimension. Exporters write `?` for a dimension without a name.
fn name(input: &ValueInfo, n: usize, dim: &Dim) -> String {
    match dim.param.as_deref() {
        None | Some("" | "?") => format!("{}.{n}", input.name),
        Some(name) => name.into(),
    }
}

/// Lists open dimensions.
pub fn listed(open: &[(String, Vec<String>)]) -> String {
    let each = open.iter().map(|(name, inputs)| match &inputs[..] {
        [input, more @ ..] if !more.is_empty() => {
            format!("`{name}` of the input `{input}` (and of `{}`)", more.join("`, `"))
        }
        inputs => format!("`{name}` of the input `{}`", inputs.concat()),
    });
    let each = each.collect::<Vec<_>>().join(", ");
    let (s, are) = if open.len() == 1 { ("", "is") } else { ("s", "are") };
    format!("the dimension{s} {each} {are} open: give the size{s} by name")
}
