//! Physical memory apart from addresses.

use super::backing::Memory;
use std::sync::Arc;

/// Physical memory that can be mapped.
pub struct Physical {
    pub memory: Arc<Memory>,
    pub bytes: usize,
    pub device: usize,
}
