//! Measures how much memory a program takes before it runs.

use anyhow::{Context, Result};
use object::{Object, ObjectSection, SectionFlags, SectionKind, elf};

/// Bytes that a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Code and constants.
    pub text: u64,
    /// Variables, zeroed or not. The arena of a static heap is among them; the stack is not. `None` where the
    /// file does not tell.
    pub static_ram: Option<u64>,
}

/// The size of the ELF or WebAssembly file in `bytes`.
pub fn of(bytes: &[u8]) -> Result<Size> {
    if is_wasm(bytes) {
        let text = wasm_sections(bytes, &[WASM_CODE, WASM_DATA]);
        let text = text.context("the WebAssembly module is cut off")?;
        return Ok(Size { text, static_ram: None });
    }
    let file = object::File::parse(bytes)?;
    let (mut text, mut static_ram) = (0, 0);
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else {
            continue;
        };
        // Log strings and debug information are not loaded.
        if sh_flags & u64::from(elf::SHF_ALLOC) == 0 || is_reserved(&section) {
            continue;
        }
        if sh_flags & u64::from(elf::SHF_WRITE) == 0 {
            text += section.size();
        } else {
            static_ram += section.size();
        }
    }
    Ok(Size { text, static_ram: Some(static_ram) })
}

/// The bytes of flash that the ELF file in `bytes` takes: code, constants, and what variables start with.
pub fn flash(bytes: &[u8]) -> Result<u64> {
    let file = object::File::parse(bytes)?;
    let loaded = |section: &object::Section<'_, '_>| {
        matches!(section.flags(), SectionFlags::Elf { sh_flags } if sh_flags & u64::from(elf::SHF_ALLOC) != 0)
            && section.kind() != SectionKind::UninitializedData
            && !is_reserved(section)
    };
    Ok(file.sections().filter(loaded).map(|section| section.size()).sum())
}

/// Returns whether a section is not part of the program: some linker scripts make sections of unused memory.
pub fn is_reserved<'data>(section: &impl ObjectSection<'data>) -> bool {
    matches!(section.name(), Ok(".stack" | ".heap"))
}

const WASM_MAGIC: &[u8] = b"\0asm\x01\0\0\0";
/// The section with a module's code.
pub const WASM_CODE: u8 = 10;
/// The section with what a module's variables start with, constants among them.
pub const WASM_DATA: u8 = 11;

/// Returns whether these are the bytes of a WebAssembly module.
pub fn is_wasm(bytes: &[u8]) -> bool {
    bytes.starts_with(WASM_MAGIC)
}

/// Bytes in the sections with these numbers, or `None` if the module is cut off.
pub fn wasm_sections(bytes: &[u8], sections: &[u8]) -> Option<u64> {
    let mut rest = bytes.get(WASM_MAGIC.len()..)?;
    let mut total = 0;
    while let Some((&id, after)) = rest.split_first() {
        let (length, body) = leb128(after)?;
        if sections.contains(&id) {
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
pub(crate) mod tests {
    use object::write::{Object, StandardSection};
    use object::{Architecture, BinaryFormat, Endianness};

    use super::*;

    /// A firmware with 100 bytes of code, 20 of constants, 8 of variables, and `bss` that start as zero.
    pub(crate) fn firmware(bss: u64) -> Object<'static> {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::Arm, Endianness::Little);
        let mut add = |section, bytes: &[u8]| {
            let id = file.section_id(section);
            file.append_section_data(id, bytes, 4);
        };
        add(StandardSection::Text, &[0; 100]);
        add(StandardSection::ReadOnlyData, &[0; 20]);
        add(StandardSection::Data, &[1; 8]);
        let section = file.section_id(StandardSection::UninitializedData);
        file.append_section_bss(section, bss, 8);
        file
    }

    #[test]
    fn sections_are_counted_by_where_they_live() {
        let mut file = firmware(4096);
        let debug = file.add_section(Vec::new(), b".debug_str".to_vec(), SectionKind::Debug);
        file.append_section_data(debug, &[0; 999], 1);

        let stack = file.add_section(Vec::new(), b".stack".to_vec(), SectionKind::UninitializedData);
        file.append_section_bss(stack, 1 << 16, 8);

        let size = of(&file.write().unwrap()).unwrap();
        assert_eq!(size, Size { text: 120, static_ram: Some(4104) });
        assert_eq!(flash(&file.write().unwrap()).unwrap(), 128);
    }

    #[test]
    fn code_and_data_of_a_module_are_counted() {
        let mut module = WASM_MAGIC.to_vec();
        module.extend([0, 3, 1, b'x', 9]); // a custom section
        module.extend([WASM_CODE, 0x80 | 2, 1]); // 130 bytes, in two digits
        module.extend([0; 130]);
        module.extend([WASM_DATA, 5, 0, 0, 0, 0, 0]);
        assert_eq!(of(&module).unwrap(), Size { text: 135, static_ram: None });
        module.pop();
        assert!(of(&module).is_err());
    }
}
