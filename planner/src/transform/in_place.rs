//! Views, and outputs that overwrite their inputs.

use super::Inside;
use crate::graph::{Graph, Kind, Lowering, Sharing};
use crate::model::{Buffer, Instance, InstanceError};

/// A graph lowered with shared buffers.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// One buffer for each group of tensors, named after the first.
    pub instance: Instance,
    /// For each tensor, the buffer that holds it, if any.
    pub buffer_of: Vec<Option<usize>>,
    /// The tensors that lie in a buffer named after another tensor.
    pub inside: Vec<Inside>,
    /// Number of tensors that are views of others.
    pub views: usize,
    /// Number of tensors that overwrite another.
    pub overwrites: usize,
}

/// Lowers a graph so that views share the memory of their tensors, and elementwise operators overwrite an input of the same size that is
/// not read afterwards (a larger one would keep more memory alive than necessary). A planned input may be overwritten too, because it is
/// provided again before every run. O(tensors + edges).
///
/// # Errors
/// If the total size of the tensors is too large to count.
pub fn in_place(graph: &Graph, lowering: Lowering) -> Result<InPlace, InstanceError> {
    in_place_by(graph, lowering, &mut |_| Some(0))
}

/// Lowers a graph like [`in_place`]. `choose` receives the number of inputs that an operator may overwrite, at least one, and returns the
/// index of the input to overwrite, or `None`.
pub(crate) fn in_place_by(
    graph: &Graph,
    lowering: Lowering,
    choose: &mut dyn FnMut(usize) -> Option<usize>,
) -> Result<InPlace, InstanceError> {
    let lives = graph.lives(lowering);
    let tensors = &graph.tensors;
    let mut root: Vec<usize> = (0..tensors.len()).collect();
    // For each group, the last step that reads it.
    let mut last: Vec<usize> = lives.iter().map(|life| life.map_or(0, |life| life.1)).collect();
    // A planned input's memory is reusable once it has been read, so it may be overwritten too.
    let ours = |tensor: usize| match tensors[tensor].kind {
        Kind::Intermediate => true,
        Kind::Input => lives[tensor].is_some(),
        _ => false,
    };
    let mut fixed: Vec<bool> = (0..tensors.len()).map(|tensor| !ours(tensor)).collect();
    // A buffer that holds a chunk at a time cannot hold a whole tensor.
    let mut streamed = vec![false; tensors.len()];
    graph.chunked.iter().flat_map(|group| &group.tensors).for_each(|&tensor| streamed[tensor] = true);
    let (mut views, mut overwrites) = (0, 0);
    for (step, op) in graph.ops.iter().enumerate() {
        // A tensor that outlives a run keeps its own place.
        let shares = |&&output: &&usize| lives[output].is_some() && tensors[output].kind != Kind::State;
        let Some(&output) = op.outputs.first().filter(shares) else { continue };
        let planned = |&&input: &&usize| lives[input].is_some();
        let target = match op.sharing {
            Sharing::None => None,
            Sharing::View => op.inputs.first().filter(planned).and_then(|&input| {
                let group = root[input];
                // The caller must not receive its own input as an output.
                let shown = tensors[group].kind == Kind::Input && tensors[output].kind == Kind::Output;
                // A view has no bytes beyond those of the viewed tensor.
                let within = tensors[output].bytes <= tensors[input].bytes;
                (ours(group) && !shown && within).then_some(group)
            }),
            Sharing::InPlace => {
                let free = |&group: &usize| {
                    let alike = streamed[output] == streamed[group];
                    alike
                        && !fixed[group]
                        && last[group] == step
                        && tensors[output].bytes == tensors[group].bytes
                };
                let mut candidates = Vec::new();
                for group in op.inputs.iter().filter(planned).map(|&input| root[input]).filter(free) {
                    // An operator may read a tensor twice.
                    if !candidates.contains(&group) {
                        candidates.push(group);
                    }
                }
                let chosen = if candidates.is_empty() { None } else { choose(candidates.len()) };
                chosen.and_then(|chosen| candidates.get(chosen).copied())
            }
        };
        if let Some(group) = target {
            match op.sharing {
                Sharing::View => views += 1,
                _ => overwrites += 1,
            }
            root[output] = group;
            last[group] = last[group].max(last[output]);
            fixed[group] |= fixed[output];
        }
    }
    let mut buffers = Vec::new();
    let mut buffer_of: Vec<Option<usize>> = vec![None; tensors.len()];
    let mut of_root = vec![None; tensors.len()];
    let mut inside = Vec::new();
    for (n, tensor) in tensors.iter().enumerate() {
        let (Some((first, end)), true) = (lives[n], tensor.bytes > 0) else {
            continue;
        };
        let group = root[n];
        let align = lowering.align.max(1);
        let size = |n: usize| lowering.size(&tensors[n]);
        let number = *of_root[group].get_or_insert_with(|| {
            let size = size(group);
            let start = lives[group].map_or(first, |life| life.0) as i64;
            buffers
                .push(Buffer { align, ..Buffer::new(tensors[group].name.clone(), size, start, start + 1) });
            buffers.len() - 1
        });
        buffers[number].end = buffers[number].end.max(end as i64 + 1);
        buffer_of[n] = Some(number);
        if n != group {
            let (name, start, end) = (tensor.name.clone(), first as i64, end as i64 + 1);
            inside.push(Inside { name, buffer: number, at: 0, size: size(n), start, end });
        }
    }
    Ok(InPlace { instance: Instance::new(buffers)?, buffer_of, inside, views, overwrites })
}
