//! A schedule by names, as written and read: only what a program needs to execute it.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Act, Schedule, Share};
use crate::graph::Kind;
use crate::model::{Buffer, Gap};

/// A place with a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WrittenPlace<'a> {
    /// Its name.
    pub id: Cow<'a, str>,
    /// First byte in its memory.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Alignment of the offset in bytes.
    pub align: u64,
    /// First time step at which it is live.
    pub start: i64,
    /// The time step after the last at which it is live.
    pub end: i64,
    /// The number of its memory.
    pub tier: u32,
    /// The buffer it lies in, if that has another name.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Cow<'a, str>>,
    /// The role of its tensor, if it belongs to a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Another buffer with which it may share its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<Cow<'a, str>>,
    /// The parts of its life in which not all of it is in use: first step, the step after the last, and the bytes `from..to` that stay in
    /// use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<(i64, i64, u64, u64)>,
}

/// A step with names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WrittenStep<'a> {
    /// The time step, as in lifetimes.
    pub time: i64,
    /// The kind of the step.
    #[serde(rename = "do")]
    pub act: Act,
    /// The operator's name.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub operator: Cow<'a, str>,
    /// The operator's type.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub kind: Cow<'a, str>,
    /// The chunk that the step makes, and the number of chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<(u64, u64)>,
    /// The places it reads; a name without a place is a tensor outside the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<Cow<'a, str>>,
    /// The places it writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<Cow<'a, str>>,
    /// The places in `reads` that the first place in `writes` overwrites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwrites: Vec<Cow<'a, str>>,
    /// The place of which the first place in `writes` is a view, so that it is not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view_of: Option<Cow<'a, str>>,
    /// The places in `reads` and `writes` that hold one chunk at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streamed: Vec<Cow<'a, str>>,
}

/// A schedule by names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Written<'a> {
    /// The places.
    pub buffers: Vec<WrittenPlace<'a>>,
    /// The steps; empty for buffers that belong to no model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<WrittenStep<'a>>,
}

impl Schedule {
    /// Returns the schedule by names.
    pub fn written(&self) -> Written<'_> {
        let graph = self.lowered.graph.as_ref();
        let places: Vec<_> = self.placed().collect();
        let mut kinds = vec![None; places.len()];
        for operand in self.lowered.steps.iter().flat_map(|step| step.reads.iter().chain(&step.writes)) {
            if let (Some(place), Some(graph)) = (operand.place, graph) {
                kinds[place] = Some(graph.tensors[operand.tensor].kind);
            }
        }
        let gaps = |buffer: &Buffer| {
            let window = |gap: &Gap| gap.window.unwrap_or_default();
            buffer.gaps.iter().map(|gap| (gap.start, gap.end, window(gap).0, window(gap).1)).collect()
        };
        let buffer_name = |n: usize| Cow::Borrowed(&*self.lowered.instance.buffers()[n].id);
        let buffers = (0..places.len()).map(|n| {
            let (place, offset) = places[n];
            WrittenPlace {
                id: Cow::Borrowed(place.id),
                offset,
                size: place.size,
                align: place.buffer.align,
                start: place.start,
                end: place.end,
                tier: place.buffer.tier,
                inside: place.inside.then_some(Cow::Borrowed(&place.buffer.id)),
                kind: kinds[n],
                alias: place.buffer.alias.map(buffer_name),
                gaps: gaps(place.buffer),
            }
        });
        let streamed: HashSet<usize> =
            graph.iter().flat_map(|graph| &graph.chunked).flat_map(|group| &group.tensors).copied().collect();
        let step = |step: &'_ super::Step| {
            let name = |operand: &super::Operand| -> Cow<'_, str> {
                let tensor = || graph.map_or("", |graph| graph.tensors[operand.tensor].name.as_str());
                Cow::Borrowed(operand.place.map_or_else(tensor, |place| places[place].0.id))
            };
            let buffer = |operand: &super::Operand| operand.place.map(|place| places[place].0.number);
            let op = step.op.zip(graph).map(|(n, graph)| &graph.ops[n]);
            let own = step.writes.first().and_then(buffer);
            let over = step.reads.iter().filter(|read| step.share == Share::Overwrite && buffer(read) == own);
            let mut overwrites: Vec<_> = over.map(name).collect();
            overwrites.dedup();
            let both = || step.reads.iter().chain(&step.writes);
            WrittenStep {
                time: step.time,
                act: step.act,
                operator: Cow::Borrowed(op.map_or("", |op| &op.name)),
                kind: Cow::Borrowed(op.map_or("", |op| &op.kind)),
                chunk: Some(step.chunk).filter(|&(_, chunks)| chunks > 1),
                reads: step.reads.iter().map(name).collect(),
                writes: step.writes.iter().map(name).collect(),
                overwrites,
                view_of: step.reads.first().filter(|_| step.share == Share::View).map(name),
                streamed: both().filter(|o| streamed.contains(&o.tensor)).map(name).collect(),
            }
        };
        Written { buffers: buffers.collect(), steps: self.lowered.steps.iter().map(step).collect() }
    }
}
