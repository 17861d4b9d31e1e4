//! Devices, and the physical memory in use.

use crate::abi::{ATTRIBUTES, Code, Handle, Outcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Device {
    pub bytes: u64,
    /// Bytes of physical memory in use.
    pub used: Arc<AtomicU64>,
    pub default_pool: Handle,
    pub pool: Handle,
    /// The primary context, 0 if it was reset, and its number of retains.
    pub primary: Option<(Handle, u32)>,
    pub attributes: BTreeMap<u32, i32>,
}

impl Device {
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            used: Arc::default(),
            default_pool: 0,
            pool: 0,
            primary: None,
            attributes: ATTRIBUTES.into(),
        }
    }

    /// Whether it and the host may use managed memory at the same time (`CONCURRENT_MANAGED_ACCESS`).
    pub fn is_concurrent(&self) -> bool {
        self.attributes.get(&89) != Some(&0)
    }

    pub fn free(&self) -> u64 {
        self.bytes.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Takes physical memory, which is returned when the account is dropped.
    pub fn take(&self, bytes: u64) -> Outcome<Account> {
        if bytes > self.free() {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(Account { used: self.used.clone(), bytes })
    }
}

/// Physical memory in use.
pub struct Account {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
