//! The live blocks of a trace, for charts. Tolerates invalid events.

use std::collections::HashMap;
use std::sync::Arc;

use allotment_trace::{Action, Event, Header};

use crate::profile::Weights;

/// The live blocks of a trace, their bytes, and the bytes of each tag. A block of a sample counts for those that it stands for.
pub struct Live {
    weights: Weights,
    blocks: HashMap<u64, (u64, Option<Arc<str>>)>,
    /// Live requested bytes.
    pub bytes: u64,
    /// Live requested bytes of each tag, if not 0; `None` stands for blocks without a tag.
    pub tags: HashMap<Option<Arc<str>>, u64>,
}

impl Live {
    /// Begins with a trace's header.
    pub fn new(header: &Header) -> Self {
        Self { weights: Weights::new(header), blocks: HashMap::new(), bytes: 0, tags: HashMap::new() }
    }

    /// Follows an event.
    pub fn follow(&mut self, event: &Event) {
        let weights = &mut self.weights;
        let old = match event.action {
            Action::Allocate { size, .. } => {
                self.blocks.insert(event.id, (weights.of(size).bytes, event.tag.clone()))
            }
            Action::Reallocate { size } => match self.blocks.get_mut(&event.id) {
                Some(block) => {
                    // A resize without a tag leaves the block to whom it belongs.
                    let tag = event.tag.clone().or_else(|| block.1.clone());
                    Some(std::mem::replace(block, (weights.of(size).bytes, tag)))
                }
                None => return,
            },
            Action::Free => self.blocks.remove(&event.id),
        };
        if let Some((size, tag)) = old {
            self.bytes -= size;
            if let Some(bytes) = self.tags.get_mut(&tag) {
                *bytes -= size;
                if *bytes == 0 {
                    self.tags.remove(&tag);
                }
            }
        }
        if let Some((size, tag)) = self.blocks.get(&event.id).filter(|_| event.action != Action::Free) {
            // Saturate for hostile traces, so that a later subtraction cannot underflow.
            let size = (*size).min(u64::MAX - self.bytes);
            self.bytes += size;
            *self.tags.entry(tag.clone()).or_default() += size;
            if let Some(block) = self.blocks.get_mut(&event.id) {
                block.0 = size;
            }
        }
    }
}
