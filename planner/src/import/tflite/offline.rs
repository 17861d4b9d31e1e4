//! The offline plan of TensorFlow Lite Micro: metadata named `OfflineMemoryAllocation` whose buffer holds 32-bit
//! little-endian integers: the version 1, the subgraph, the number of tensors, and the offset of each (-1: left to
//! the interpreter).
//!
//! A flatbuffer's offsets point forwards, so a new root, new lists of buffers and metadata and the plan are put in
//! front, and the old file follows as it is, unread and unchanged.

use super::{TfliteError, model};
use crate::graph::Graph;

/// The metadata's name.
pub const OFFLINE_NAME: &str = "OfflineMemoryAllocation";

/// The old file is moved by a multiple of this many bytes, so that what was aligned stays aligned.
const ALIGN: usize = 64;

/// Fields of the root table, by number; `buffers` and `metadata` are made anew.
const BUFFERS: u16 = 4;
const METADATA: u16 = 6;

/// Returns the model with a plan in its metadata: one offset in bytes for each tensor, -1 for those that are left to the
/// interpreter. It replaces a plan that the model already has.
///
/// # Errors
/// [`TfliteError`] if the model is damaged, keeps its data elsewhere, or has another number of tensors.
pub fn write_offline_plan(bytes: &[u8], offsets: &[i32]) -> Result<Vec<u8>, TfliteError> {
    let root = model(bytes)?;
    // The interpreter takes the offsets of the first subgraph's tensors for those of every other one.
    let subgraphs = root.subgraphs().map_or(0, |list| list.len());
    if subgraphs != 1 {
        return Err(TfliteError::Subgraphs(subgraphs));
    }
    let tensors = root.subgraphs().and_then(|list| list.get(0).tensors());
    let count = tensors.map_or(0, |tensors| tensors.len());
    if count != offsets.len() {
        return Err(TfliteError::Plan(format!("number {count}")));
    }
    if root.buffers().iter().flatten().any(|buffer| buffer.offset() > 1 || buffer.size() > 0) {
        return Err(TfliteError::External);
    }
    let old_buffers: Vec<usize> = root.buffers().iter().flatten().map(|buffer| buffer.place()).collect();
    let entries = root.metadata();
    let old_metadata: Vec<usize> = entries
        .iter()
        .flatten()
        .filter(|entry| entry.name() != Some(OFFLINE_NAME))
        .map(|entry| entry.place())
        .collect();
    // The places of the parts in the new head.
    let fields = usize::from(root.fields()).max(usize::from(METADATA) + 1);
    let mut head = Head { bytes: Vec::new() };
    head.word(0); // the root's place
    head.bytes.extend(b"TFL3");
    let vtable = head.bytes.len();
    head.half(4 + 2 * fields as u16);
    head.half(4 + 4 * fields as u16);
    (0..fields).for_each(|_| head.half(0));
    head.align(4);
    let table = head.bytes.len();
    head.put(0, (table as u32).to_le_bytes());
    head.word((table - vtable) as u32);
    (0..fields).for_each(|_| head.word(0));
    let buffers = head.bytes.len();
    head.word(old_buffers.len() as u32 + 1);
    (0..=old_buffers.len()).for_each(|_| head.word(0));
    let metadata = head.bytes.len();
    head.word(old_metadata.len() as u32 + 1);
    (0..=old_metadata.len()).for_each(|_| head.word(0));
    // The new buffer: a table whose only field is its data.
    let small = |head: &mut Head, second: bool| {
        let vtable = head.bytes.len();
        head.half(if second { 8 } else { 6 });
        head.half(if second { 12 } else { 8 });
        head.half(4);
        head.half(if second { 8 } else { 0 });
        let table = head.bytes.len();
        head.word((table - vtable) as u32);
        head.word(0);
        if second {
            head.word(old_buffers.len() as u32);
        }
        table
    };
    let entry = small(&mut head, true);
    let name = head.bytes.len();
    head.word(OFFLINE_NAME.len() as u32);
    head.bytes.extend(OFFLINE_NAME.as_bytes());
    head.bytes.push(0);
    head.align(4);
    let buffer = small(&mut head, false);
    // The data start on a multiple of 16, as the schema demands; their length stands before them.
    while !(head.bytes.len() + 4).is_multiple_of(16) {
        head.bytes.push(0);
    }
    let data = head.bytes.len();
    head.word(4 * (3 + offsets.len() as u32));
    head.word(1);
    head.word(0);
    head.word(offsets.len() as u32);
    offsets.iter().for_each(|&offset| head.word(offset as u32));
    head.align(ALIGN);
    let shift = head.bytes.len();
    // Now that all places are known: the offsets, each relative to where it stands.
    head.point(entry + 4, name);
    head.point(buffer + 4, data);
    for (n, &place) in old_buffers.iter().enumerate() {
        head.point(buffers + 4 + 4 * n, shift + place);
    }
    head.point(buffers + 4 + 4 * old_buffers.len(), buffer);
    for (n, &place) in old_metadata.iter().enumerate() {
        head.point(metadata + 4 + 4 * n, shift + place);
    }
    head.point(metadata + 4 + 4 * old_metadata.len(), entry);
    for id in 0..fields as u16 {
        let place = table + 4 + 4 * usize::from(id);
        let field = vtable + 4 + 2 * usize::from(id);
        let offset = ((place - table) as u16).to_le_bytes();
        match id {
            BUFFERS => head.point(place, buffers),
            METADATA => head.point(place, metadata),
            id => match root.field(id) {
                None => continue,
                // The version is the root's only number; all else are offsets.
                Some(old) if id == 0 => head.put(place, word_at(bytes, old).to_le_bytes()),
                Some(old) => head.point(place, shift + old + word_at(bytes, old) as usize),
            },
        }
        head.put(field, offset);
    }
    head.bytes.extend_from_slice(bytes);
    // What was written must be a model still.
    model(&head.bytes)?;
    Ok(head.bytes)
}

fn word_at(bytes: &[u8], place: usize) -> u32 {
    let word = bytes.get(place..place + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

struct Head {
    bytes: Vec<u8>,
}

impl Head {
    fn half(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn word(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn align(&mut self, align: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
    }

    fn put<const N: usize>(&mut self, place: usize, value: [u8; N]) {
        self.bytes[place..place + N].copy_from_slice(&value);
    }

    /// Makes the word at `place` point to `to`.
    fn point(&mut self, place: usize, to: usize) {
        self.put(place, ((to - place) as u32).to_le_bytes());
    }
}

/// Returns the plan in a model's metadata, if there is one: an offset for each tensor, -1 where the interpreter decides.
/// Lengths are checked against the model and the data, and offsets against the tensors' sizes.
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
            if usize::try_from(tensors) == Ok(offsets.len()) && offsets.len() == graph.tensors.len() =>
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
