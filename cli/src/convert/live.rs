//! The live blocks of a trace, for charts. Tolerates invalid events.

use std::collections::HashMap;
use std::sync::Arc;

use allotment_trace::{Action, Event};

/// The live blocks of a trace, their bytes, and the bytes of each tag.
#[derive(Default)]
pub struct Live {
    blocks: HashMap<u64, (u64, Option<Arc<str>>)>,
    /// Live requested bytes.
    pub bytes: u64,
    /// Live requested bytes of each tag, if not 0; `None` stands for blocks without a tag.
    pub tags: HashMap<Option<Arc<str>>, u64>,
}

impl Live {
    /// Follows an event.
    pub fn follow(&mut self, event: &Event) {
        let old = match event.action {
            Action::Allocate { size, .. } => self.blocks.insert(event.id, (size, event.tag.clone())),
            Action::Reallocate { size } => match self.blocks.get_mut(&event.id) {
                Some(block) => Some(std::mem::replace(block, (size, block.1.clone()))),
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
