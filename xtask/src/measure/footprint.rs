//! The sizes of a program's parts.

use std::path::Path;

use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SectionKind, SymbolKind, elf};

use crate::size;

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

/// The sizes of the program in `file`.
pub fn of(file: &Path) -> Result<Footprint> {
    let bytes = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
    measure(&bytes).with_context(|| format!("{}", file.display()))
}

fn measure(bytes: &[u8]) -> Result<Footprint> {
    if size::is_wasm(bytes) {
        let of = |section| size::wasm_sections(bytes, &[section]).context("the module is cut off");
        return Ok(Footprint { code: of(size::WASM_CODE)?, constants: of(size::WASM_DATA)?, ram: None });
    }
    let file = object::File::parse(bytes)?;
    let (mut footprint, mut ram) = (Footprint::default(), 0);
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
        let has = |flag: u32| sh_flags & u64::from(flag) != 0;
        // Tables for unwinding are of no use to a program that aborts; whether they are linked in is up to its
        // linker script.
        let unwinding = section.name() == Ok(".eh_frame");
        if !has(elf::SHF_ALLOC) || size::is_reserved(&section) || unwinding {
            continue;
        }
        if has(elf::SHF_EXECINSTR) {
            footprint.code += section.size();
        } else if !has(elf::SHF_WRITE) {
            footprint.constants += section.size();
        } else {
            ram += section.size();
            if section.kind() != SectionKind::UninitializedData {
                footprint.constants += section.size();
            }
        }
    }
    footprint.ram = Some(ram.checked_sub(ARENA).context("the program has no arena")?);
    Ok(footprint)
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
    use object::write::Object;
    use object::{Architecture, BinaryFormat, Endianness};

    use super::*;

    #[test]
    fn code_constants_and_variables_are_told_apart() {
        let file = crate::size::tests::firmware(ARENA + 12);
        let footprint = measure(&file.write().unwrap()).unwrap();
        assert_eq!(footprint, Footprint { code: 100, constants: 28, ram: Some(20) });
    }

    #[test]
    fn a_program_without_the_arena_is_refused() {
        let file = Object::new(BinaryFormat::Elf, Architecture::Arm, Endianness::Little);
        assert!(measure(&file.write().unwrap()).is_err());
    }
}
