//! Streaming: passes a tensor between two elementwise operators in chunks.

use crate::graph::{Graph, Kind, Sharing};

/// A graph with streamed tensors.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// The graph; streamed tensors have a chunk's bytes.
    pub graph: Graph,
    /// The streamed tensors: number and bytes before.
    pub tensors: Vec<(usize, u64)>,
}

/// Cuts every intermediate tensor of at least `least` bytes into `chunks`, if the operator after its producer is its only
/// reader and both are elementwise. The two must then run interleaved, chunk by chunk.
pub fn stream(graph: &Graph, chunks: u64, least: u64) -> Streamed {
    let mut streamed = Streamed { graph: graph.clone(), tensors: Vec::new() };
    let mut readers = vec![0_usize; graph.tensors.len()];
    for op in &graph.ops {
        let inputs: std::collections::BTreeSet<usize> = op.inputs.iter().copied().collect();
        inputs.into_iter().for_each(|tensor| readers[tensor] += 1);
    }
    for pair in 0..graph.ops.len().saturating_sub(1) {
        let (producer, reader) = (&graph.ops[pair], &graph.ops[pair + 1]);
        let by_element = |sharing| sharing == Sharing::InPlace;
        let &[tensor] = &producer.outputs[..] else {
            continue;
        };
        let same = reader
            .outputs
            .first()
            .is_some_and(|&output| graph.tensors[output].bytes == graph.tensors[tensor].bytes);
        let kind = graph.tensors[tensor].kind;
        let bytes = graph.tensors[tensor].bytes;
        let fits = readers[tensor] == 1
            && reader.inputs.contains(&tensor)
            && same
            && kind == Kind::Intermediate
            && bytes >= least;
        if fits && by_element(producer.sharing) && by_element(reader.sharing) {
            streamed.tensors.push((tensor, bytes));
            streamed.graph.tensors[tensor].bytes = bytes.div_ceil(chunks.max(1));
        }
    }
    streamed
}
