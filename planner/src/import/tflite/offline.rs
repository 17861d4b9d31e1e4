//! The offline plan of TensorFlow Lite Micro: metadata named `OfflineMemoryAllocation` whose buffer holds 32-bit little-endian integers:
//! the version 1, the subgraph, the number of tensors, and the offset of each (-1 if left to the interpreter).
//!
//! A flatbuffer's offsets point forwards, so a new root, new lists of buffers and metadata, and the plan are put before the old file,
//! which follows unchanged.

use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

use super::schema::{Model, slot};
use super::{Result, TfliteError, model};
use crate::graph::Graph;

/// The metadata's name.
pub const OFFLINE_NAME: &str = "OfflineMemoryAllocation";

/// The old file moves by a multiple of this many bytes, so that its contents stay aligned.
const ALIGN: usize = 64;

/// Numbers of the root table's fields `buffers` and `metadata`, which are made anew.
const BUFFERS: u16 = 4;
const METADATA: u16 = 6;

/// Returns the model with a plan in its metadata: one offset in bytes for each tensor, -1 for tensors left to the interpreter. It
/// replaces any plan already in the model. The interpreter places the kernels' scratch buffers, so their offsets are omitted.
///
/// # Errors
/// [`TfliteError`] if the model is damaged, keeps its data elsewhere, or has another number of tensors.
pub fn write_offline_plan(bytes: &[u8], offsets: &[i32]) -> Result<Vec<u8>, TfliteError> {
    let root = model(bytes)?;
    // The interpreter would apply the offsets of the first subgraph's tensors to every other subgraph.
    let subgraphs = root.subgraphs().map_or(0, |list| list.len());
    if subgraphs != 1 {
        return Err(TfliteError::Subgraphs(subgraphs));
    }
    let count = planned(root).unwrap_or(0);
    let Some(offsets) = offsets.get(..count) else {
        return Err(TfliteError::Plan(format!("number {count}")));
    };
    if root.buffers().iter().flatten().any(|buffer| buffer.offset() > 1 || buffer.size() > 0) {
        return Err(TfliteError::External);
    }
    let outside = |place: usize| {
        let what = "a field of the model that is not known".into();
        TfliteError::Index { what, index: place as i64, count: bytes.len() }
    };
    // A table cannot have more fields.
    if root.fields() > 4096 {
        return Err(outside(root.fields().into()));
    }
    // Build it from its end: the old file, then the tables that point into it.
    let mut made = FlatBufferBuilder::new();
    let end = bytes.len().next_multiple_of(4);
    let old: Vec<u8> = bytes.iter().copied().chain([0; 4]).take(end).collect();
    made.create_vector(&old);
    let at = |place: usize| WIPOffset::<UnionWIPOffset>::new((end - place) as u32);
    let mut buffers: Vec<_> = root.buffers().iter().flatten().map(|buffer| at(buffer.place())).collect();
    let others = root.metadata();
    let others = others.iter().flatten().filter(|entry| entry.name() != Some(OFFLINE_NAME));
    let mut metadata: Vec<_> = others.map(|entry| at(entry.place())).collect();
    // The data start on a multiple of 16, as the schema demands.
    let words = [1, 0, offsets.len() as i32].into_iter().chain(offsets.iter().copied());
    let data: Vec<u8> = words.flat_map(i32::to_le_bytes).collect();
    fill(&mut made, end, data.len(), 16);
    let data = made.create_vector(&data);
    let name = made.create_string(OFFLINE_NAME);
    let entry = made.start_table();
    made.push_slot_always(slot(0), name);
    made.push_slot_always(slot(1), buffers.len() as u32);
    metadata.push(made.end_table(entry).as_union_value());
    let buffer = made.start_table();
    made.push_slot_always(slot(0), data);
    buffers.push(made.end_table(buffer).as_union_value());
    let (buffers, metadata) = (made.create_vector(&buffers), made.create_vector(&metadata));
    let table = made.start_table();
    for id in 0..root.fields().max(METADATA + 1) {
        match (id, root.field(id)) {
            (BUFFERS, _) => made.push_slot_always(slot(id), buffers),
            (METADATA, _) => made.push_slot_always(slot(id), metadata),
            (_, None) => {}
            // The version is the root's only number; all other fields are offsets.
            (0, Some(old)) => made.push_slot_always(slot(id), word_at(bytes, old)),
            (_, Some(old)) => {
                let place = Some(old + word_at(bytes, old) as usize).filter(|&place| place < bytes.len());
                made.push_slot_always(slot(id), at(place.ok_or_else(|| outside(old))?));
            }
        }
    }
    let table = made.end_table(table);
    // The table's offset and the mark come first.
    fill(&mut made, end, 8, ALIGN);
    made.finish(table, Some("TFL3"));
    // The result must still be a model.
    model(made.finished_data())?;
    Ok(made.finished_data().to_vec())
}

/// Returns the number of tensors with offsets in a plan.
fn planned(root: Model) -> Option<usize> {
    let main = root.subgraphs().filter(|list| !list.is_empty())?.get(0);
    Some(main.tensors().map_or(0, |tensors| tensors.len()))
}

/// Adds zeros so that, after `next` more bytes, a multiple of `align` bytes precedes the last `end` bytes.
fn fill(made: &mut FlatBufferBuilder, end: usize, next: usize, align: usize) {
    while !(made.unfinished_data().len() + next - end).is_multiple_of(align) {
        made.push(0_u8);
    }
}

fn word_at(bytes: &[u8], place: usize) -> u32 {
    let word = bytes.get(place..place + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// Returns the plan in a model's metadata, if there is one: an offset for each tensor, or -1 if the interpreter decides. Checks lengths
/// against the model and the data, and offsets against the tensors' sizes.
///
/// # Errors
/// [`TfliteError`] if the plan does not fit the model or the data.
pub fn read_offline_plan(bytes: &[u8], graph: &Graph) -> Result<Option<Vec<i32>>, TfliteError> {
    let root = model(bytes)?;
    let entries = root.metadata();
    let Some(entry) = entries.iter().flatten().find(|entry| entry.name() == Some(OFFLINE_NAME)) else {
        return Ok(None);
    };
    let count = root.buffers().map_or(0, |buffers| buffers.len());
    let number = entry.buffer() as usize;
    let Some(buffer) = root.buffers().filter(|_| number < count).map(|buffers| buffers.get(number)) else {
        return Err(TfliteError::Index { what: "the plan's buffer".into(), index: number as i64, count });
    };
    let data = buffer.data().map_or(&[][..], |data| data.bytes());
    let words: Vec<i32> =
        data.chunks_exact(4).map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    match words.split_first_chunk::<3>() {
        Some((&[1, 0, tensors], offsets))
            if usize::try_from(tensors) == Ok(offsets.len()) && Some(offsets.len()) == planned(root) =>
        {
            for (tensor, &offset) in graph.tensors.iter().zip(offsets) {
                let end = i64::from(offset).checked_add_unsigned(tensor.bytes);
                if offset < -1 || end.is_none_or(|end| end > i64::from(i32::MAX)) {
                    return Err(TfliteError::Plan(tensor.name.clone()));
                }
            }
            Ok(Some(offsets.to_vec()))
        }
        _ => Err(TfliteError::Plan(OFFLINE_NAME.into())),
    }
}
