//! Measures how much memory a program takes before it runs.

use std::path::Path;

use anyhow::{Context, Result};
use object::{Object, ObjectSection, SectionFlags, SectionKind, elf};

/// Bytes that a program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Machine code.
    pub code: u64,
    /// What is only read; for WebAssembly, what variables start with as well.
    pub constants: u64,
    /// Tables for unwinding, of no use to a program that aborts; whether they are linked in is up to its linker script.
    pub unwinding: u64,
    /// Variables that start as something else than zero, and those that start as zero. The arena of a static heap is among them; the
    /// stack is not. `None` where the file does not tell.
    pub variables: Option<[u64; 2]>,
}

impl Size {
    /// Code and constants.
    pub fn text(&self) -> u64 {
        self.code + self.constants + self.unwinding
    }

    /// All variables.
    pub fn static_ram(&self) -> Option<u64> {
        self.variables.map(|variables| variables.iter().sum())
    }

    /// Code, constants, and what variables start with.
    pub fn flash(&self) -> u64 {
        self.text() + self.variables.map_or(0, |[started, _]| started)
    }

    /// The size of the ELF or WebAssembly program in `file`.
    pub fn of(file: &Path) -> Result<Self> {
        let of = || Self::of_bytes(&std::fs::read(file)?);
        of().with_context(|| format!("{}", file.display()))
    }

    fn of_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.starts_with(WASM_MAGIC) {
            let of = |section| wasm_section(bytes, section).context("the WebAssembly module is cut off");
            return Ok(Self { code: of(WASM_CODE)?, constants: of(WASM_DATA)?, ..Self::default() });
        }
        let mut size = Self::default();
        let mut variables = [0; 2];
        for section in object::File::parse(bytes)?.sections() {
            let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
            let has = |flag: u32| sh_flags & u64::from(flag) != 0;
            // Log strings and debug information are not loaded, and some linker scripts make sections of unused memory.
            let part = match section.name() {
                _ if !has(elf::SHF_ALLOC) => continue,
                Ok(".stack" | ".heap") => continue,
                _ if has(elf::SHF_WRITE) => {
                    &mut variables[usize::from(section.kind() == SectionKind::UninitializedData)]
                }
                _ if has(elf::SHF_EXECINSTR) => &mut size.code,
                Ok(".eh_frame") => &mut size.unwinding,
                _ => &mut size.constants,
            };
            *part += section.size();
        }
        Ok(Self { variables: Some(variables), ..size })
    }
}

const WASM_MAGIC: &[u8] = b"\0asm\x01\0\0\0";
/// The section with a module's code.
const WASM_CODE: u8 = 10;
/// The section with what a module's variables start with, constants among them.
const WASM_DATA: u8 = 11;

/// Bytes in the sections with this number, or `None` if the module is cut off.
fn wasm_section(bytes: &[u8], section: u8) -> Option<u64> {
    let mut rest = bytes.get(WASM_MAGIC.len()..)?;
    let mut total = 0;
    while let Some((&id, after)) = rest.split_first() {
        let (length, body) = leb128(after)?;
        if id == section {
            total += length;
        }
        rest = body.get(usize::try_from(length).ok()?..)?;
    }
    Some(total)
}

/// An unsigned 32-bit LEB128 number, and what follows it.
fn leb128(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (n, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[n + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use object::write::{Object, StandardSection};
    use object::{Architecture, BinaryFormat, Endianness};

    use super::*;

    #[test]
    fn sections_are_counted_by_where_they_live() {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::Arm, Endianness::Little);
        let mut add = |section, bytes: &[u8]| {
            let id = file.section_id(section);
            file.append_section_data(id, bytes, 4);
        };
        add(StandardSection::Text, &[0; 100]);
        add(StandardSection::ReadOnlyData, &[0; 20]);
        add(StandardSection::Data, &[1; 8]);
        let zeroed = file.section_id(StandardSection::UninitializedData);
        file.append_section_bss(zeroed, 4096, 8);
        let debug = file.add_section(Vec::new(), b".debug_str".to_vec(), SectionKind::Debug);
        file.append_section_data(debug, &[0; 999], 1);

        let stack = file.add_section(Vec::new(), b".stack".to_vec(), SectionKind::UninitializedData);
        file.append_section_bss(stack, 1 << 16, 8);

        let size = Size::of_bytes(&file.write().unwrap()).unwrap();
        assert_eq!(size, Size { code: 100, constants: 20, unwinding: 0, variables: Some([8, 4096]) });
        assert_eq!((size.text(), size.static_ram(), size.flash()), (120, Some(4104), 128));
    }

    #[test]
    fn code_and_data_of_a_module_are_counted() {
        let mut module = WASM_MAGIC.to_vec();
        module.extend([0, 3, 1, b'x', 9]); // a custom section
        module.extend([WASM_CODE, 0x80 | 2, 1]); // 130 bytes, in two digits
        module.extend([0; 130]);
        module.extend([WASM_DATA, 5, 0, 0, 0, 0, 0]);
        let size = Size::of_bytes(&module).unwrap();
        assert_eq!(size, Size { code: 130, constants: 5, ..Size::default() });
        assert_eq!((size.text(), size.static_ram(), size.flash()), (135, None, 135));
        module.pop();
        assert!(Size::of_bytes(&module).is_err());
    }
}
