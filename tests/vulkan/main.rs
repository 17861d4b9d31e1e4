//! Pools in the memory of a Vulkan driver, with the validation layers on: `cargo xtask vulkan` sets both up.

#[path = "../any_pool/mod.rs"]
mod any_pool;
mod checks;
mod misuse;
mod pools;
mod resources;
mod share;
mod support;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
