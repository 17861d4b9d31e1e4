//! Streaming: passes a tensor between elementwise operators in chunks.

use super::peak_load;
use crate::deadline::{Deadline, Watch};
use crate::graph::{Chunked, Graph, Kind, Lowering, Sharing};

/// A graph with streamed tensors.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// The graph; streamed tensors have the size of a chunk, and [`Graph::chunked`] says which operators run interleaved.
    pub graph: Graph,
    /// The streamed tensors' numbers, and their bytes before.
    pub tensors: Vec<(usize, u64)>,
}

/// Cuts intermediate tensors of at least `least` bytes into `chunks`, if the operator after its producer is its only reader and both are
/// elementwise. The two then run interleaved, chunk by chunk, so that all tensors that either reads or makes are live during both; a
/// tensor for which that raises the peak load stays whole. Graphs with bodies (see [`Graph::has_bodies`]) stay as they are.
pub fn stream(graph: &Graph, lowering: Lowering, chunks: u64, least: u64, deadline: &Deadline) -> Streamed {
    let watch = &mut Watch::new(deadline);
    let mut streamed = Streamed { graph: graph.clone(), tensors: Vec::new() };
    if graph.has_bodies() || chunks < 2 {
        return streamed;
    }
    let mut readers = vec![0_usize; graph.tensors.len()];
    for op in &graph.ops {
        let inputs: std::collections::BTreeSet<usize> = op.inputs.iter().copied().collect();
        inputs.into_iter().for_each(|tensor| readers[tensor] += 1);
    }
    let mut load = peak_load(graph, lowering);
    for pair in 0..graph.ops.len().saturating_sub(1) {
        let (producer, reader) = (&graph.ops[pair], &graph.ops[pair + 1]);
        let by_element = |sharing| sharing == Sharing::InPlace;
        let (&[tensor], &[output]) = (&producer.outputs[..], &reader.outputs[..]) else {
            continue;
        };
        let bytes = graph.tensors[tensor].bytes;
        let fits = readers[tensor] == 1
            && reader.inputs.contains(&tensor)
            && graph.tensors[output].bytes == bytes
            && graph.tensors[tensor].kind == Kind::Intermediate
            && graph.tensors[output].kind != Kind::State
            && bytes >= least.max(chunks);
        if !fits || !by_element(producer.sharing) || !by_element(reader.sharing) {
            continue;
        }
        if watch.passed(4 * (graph.ops.len() + graph.tensors.len())) {
            break;
        }
        let before = (streamed.graph.chunked.clone(), bytes);
        match streamed.graph.chunked.last_mut().filter(|group| group.last == pair) {
            Some(group) => {
                group.last = pair + 1;
                group.tensors.push(tensor);
            }
            None => {
                let (first, last) = (pair, pair + 1);
                streamed.graph.chunked.push(Chunked { first, last, chunks, tensors: vec![tensor] });
            }
        }
        streamed.graph.tensors[tensor].bytes = bytes.div_ceil(chunks);
        let now = peak_load(&streamed.graph, lowering);
        if now <= load {
            load = now;
            streamed.tensors.push((tensor, bytes));
        } else {
            (streamed.graph.chunked, streamed.graph.tensors[tensor].bytes) = before;
        }
    }
    streamed
}
