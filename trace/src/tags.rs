//! Stores each tag once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Problem;

/// The distinct tags of a trace.
pub(crate) struct Tags {
    known: HashSet<Arc<str>>,
    most: usize,
}

impl Tags {
    pub(crate) fn new(most: usize) -> Self {
        Self { known: HashSet::new(), most }
    }

    pub(crate) fn intern(&mut self, tag: &str) -> Result<Arc<str>, Problem> {
        if let Some(known) = self.known.get(tag) {
            return Ok(known.clone());
        }
        if self.known.len() == self.most {
            return Err(Problem::Tags(self.most));
        }
        let tag: Arc<str> = tag.into();
        self.known.insert(tag.clone());
        Ok(tag)
    }
}
