//! The sizes of a program's parts.

use std::path::Path;

use anyhow::{Context, Result};
use object::{Object, ObjectSymbol, SymbolKind};

use crate::size::Size;

/// Bytes of the arena that the program has among its variables.
const ARENA: u64 = 64 * 1024;

/// Bytes that a program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Machine code.
    pub code: u64,
    /// Constants, and what variables start with: both take room in flash.
    pub constants: u64,
    /// Variables without the arena; unknown for WebAssembly.
    pub ram: Option<u64>,
}

impl Footprint {
    /// The footprint of a program; it has no use for tables for unwinding.
    ///
    /// # Errors
    /// The program has no arena.
    pub fn of(size: &Size) -> Result<Self> {
        let started = size.variables.map_or(0, |[started, _]| started);
        let ram = size.static_ram().map(|ram| ram.checked_sub(ARENA).context("the program has no arena"));
        Ok(Self { code: size.code, constants: size.constants + started, ram: ram.transpose()? })
    }
}

/// Functions and their sizes, the largest first.
pub fn functions(file: &Path) -> Result<Vec<(String, u64)>> {
    let bytes = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
    let file = object::File::parse(&*bytes)?;
    let mut functions: Vec<(String, u64)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| {
            // Without the hash at the end, which differs from build to build.
            Some((format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?)), symbol.size()))
        })
        .collect();
    functions.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    functions.dedup();
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_is_left_out() {
        let size = Size { code: 100, constants: 20, unwinding: 9, variables: Some([8, ARENA + 12]) };
        assert_eq!(Footprint::of(&size).unwrap(), Footprint { code: 100, constants: 28, ram: Some(20) });
        assert!(Footprint::of(&Size { variables: Some([0, 4]), ..size }).is_err());
        assert_eq!(Footprint::of(&Size { variables: None, ..size }).unwrap().ram, None);
    }
}
