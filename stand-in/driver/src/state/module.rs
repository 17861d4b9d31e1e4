//! Modules and functions.

use super::kernel::Kernel;
use crate::abi::Handle;

pub struct Module {
    pub context: Handle,
    /// Names of the entry points.
    pub entries: Vec<String>,
}

pub struct Function {
    pub module: Handle,
    pub kernel: &'static Kernel,
}
