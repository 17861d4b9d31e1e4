//! Families of shapes: a model with a dimension that takes any value in a range, planned once for all values.
//!
//! The general plan places every tensor at its largest size over all values, so it is valid at each value. A plan for one value alone can
//! be smaller; the difference is the cost of generality at that value.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use crate::graph::Graph;

/// Largest number of values in a range.
pub const MOST: u64 = 1024;

/// Why graphs do not form a family.
#[derive(Debug, thiserror::Error)]
pub enum FamilyError<E: std::error::Error> {
    /// The range is empty or has too many values.
    #[error("a range holds 1 to 1024 values, not {0}")]
    Range(u64),
    /// The model cannot be read at a value.
    #[error("at {value}: {source}")]
    Member {
        /// The value.
        value: u64,
        /// The cause.
        source: E,
    },
    /// Operators or tensors differ between values.
    #[error("at {value} the model has other operators than at {first}: plan each by itself")]
    Different {
        /// The value.
        value: u64,
        /// The first value of the range.
        first: u64,
    },
}

/// A graph for all values of a dimension, and the sizes at each.
#[derive(Clone, Debug)]
pub struct Family {
    /// The graph with each tensor at its largest size over all values.
    pub graph: Graph,
    /// For each value, the bytes of each tensor in the graph's order.
    sizes: Vec<(u64, Vec<u64>)>,
}

impl Family {
    /// Reads the graph at every value of `range`. O(values · graph).
    ///
    /// # Errors
    /// [`FamilyError`] if the range is empty or too large, a graph cannot be read, or the graphs differ.
    pub fn new<E: std::error::Error>(
        range: RangeInclusive<u64>,
        read: impl Fn(u64) -> Result<Graph, E>,
    ) -> Result<Self, FamilyError<E>> {
        let (&first, &last) = (range.start(), range.end());
        let count = if last < first { 0 } else { (last - first).saturating_add(1) };
        if count == 0 || count > MOST {
            return Err(FamilyError::Range(count));
        }
        let member = |value| read(value).map_err(|source| FamilyError::Member { value, source });
        let mut graph = member(first)?;
        let mut sizes = Vec::new();
        for value in range {
            let other = member(value)?;
            let tensors = (graph.tensors.iter().map(|one| (&one.name, one.kind)))
                .eq(other.tensors.iter().map(|one| (&one.name, one.kind)));
            let ops = (graph.ops.iter().map(|op| (&op.inputs, &op.outputs)))
                .eq(other.ops.iter().map(|op| (&op.inputs, &op.outputs)));
            if !(tensors && ops) {
                return Err(FamilyError::Different { value, first });
            }
            for (general, own) in graph.tensors.iter_mut().zip(&other.tensors) {
                if own.bytes > general.bytes {
                    general.bytes = own.bytes;
                    general.shape.clone_from(&own.shape);
                }
            }
            sizes.push((value, other.tensors.iter().map(|tensor| tensor.bytes).collect()));
        }
        Ok(Self { graph, sizes })
    }

    /// Returns the values, ascending.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.sizes.iter().map(|&(value, _)| value)
    }

    /// Returns the values to check: the first and last, and the powers of two between them.
    pub fn buckets(&self) -> Vec<u64> {
        let (first, last) = (self.sizes[0].0, self.sizes[self.sizes.len() - 1].0);
        let mut buckets: Vec<u64> = self
            .values()
            .filter(|&value| value == first || value == last || value.is_power_of_two())
            .collect();
        buckets.dedup();
        buckets
    }

    /// Returns `graph`, which is [`Family::graph`] or was made from it, with the sizes at `value`. Tensors added by a transformation keep
    /// their sizes.
    pub fn member(&self, graph: &Graph, value: u64) -> Graph {
        let mut member = graph.clone();
        if let Some((_, sizes)) = self.sizes.iter().find(|(other, _)| *other == value) {
            let names = self.graph.tensors.iter().map(|tensor| tensor.name.as_str());
            let sizes: HashMap<&str, u64> = names.zip(sizes.iter().copied()).collect();
            for tensor in &mut member.tensors {
                tensor.bytes = sizes.get(tensor.name.as_str()).copied().unwrap_or(tensor.bytes);
            }
        }
        member
    }
}
