//! The recorder's own reading of `.eh_frame` against that of `gimli`: every row of the system's libraries, and of this program.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../preload/cfi.rs"]
mod cfi;

use std::fs;
use std::path::PathBuf;

use cfi::{Base, Rule, Saved};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection};

const FRAME: Register = Register(6);
const STACK: Register = Register(7);
const RETURN: Register = Register(16);

/// A file as the system loads it.
fn loaded(file: &[u8]) -> (Vec<u8>, Option<usize>) {
    let header = object::elf::FileHeader64::<object::Endianness>::parse(file).unwrap();
    let endian = header.endian().unwrap();
    let parts = header.program_headers(endian, file).unwrap();
    let (mut image, mut tables) = (Vec::new(), None);
    for part in parts {
        let at = usize::try_from(part.p_vaddr(endian)).unwrap();
        if part.p_type(endian) == object::elf::PT_LOAD {
            let bytes = part.data(endian, file).unwrap();
            image.resize(image.len().max(at + bytes.len()), 0);
            image[at..at + bytes.len()].copy_from_slice(bytes);
        } else if part.p_type(endian) == object::elf::PT_GNU_EH_FRAME {
            tables = Some(at);
        }
    }
    (image, tables)
}

/// Reads `DW_OP_breg6` with an offset, and what follows.
fn by_frame(expression: &[u8]) -> Option<(i32, &[u8])> {
    let [0x76, rest @ ..] = expression else { return None };
    let mut reader = gimli::EndianSlice::new(rest, LittleEndian);
    let offset = gimli::Reader::read_sleb128(&mut reader).ok()?;
    Some((i32::try_from(offset).ok()?, reader.slice()))
}

/// The rule that a row of gimli's stands for.
fn expected(row: &UnwindTableRow<usize>, section: &EhFrame<gimli::EndianSlice<'_, LittleEndian>>) -> Rule {
    let bytes =
        |expression: &gimli::UnwindExpression<usize>| expression.get(section).unwrap().0.slice().to_vec();
    match row.register(RETURN) {
        RegisterRule::Undefined => return Rule::Outermost,
        RegisterRule::Offset(-8) => {}
        _ => return Rule::Unknown,
    }
    let (base, end) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: STACK, offset } => (Base::Stack, *offset),
        CfaRule::RegisterAndOffset { register: FRAME, offset } => (Base::Frame, *offset),
        CfaRule::RegisterAndOffset { .. } => return Rule::Unknown,
        CfaRule::Expression(expression) => match by_frame(&bytes(expression)) {
            Some((offset, [0x06])) => (Base::Stored, offset.into()),
            _ => return Rule::Unknown,
        },
    };
    let saved = match row.register(FRAME) {
        RegisterRule::Undefined | RegisterRule::SameValue => Saved::Kept,
        RegisterRule::Offset(offset) => Saved::FromEnd(i32::try_from(offset).unwrap()),
        RegisterRule::Expression(expression) => match by_frame(&bytes(&expression)) {
            Some((offset, [])) => Saved::FromFrame(offset),
            _ => return Rule::Unknown,
        },
        _ => return Rule::Unknown,
    };
    Rule::Frame(base, i32::try_from(end).unwrap(), saved)
}

/// Compares all rows of a file; how many there are, and how many are understood.
fn compare(path: &PathBuf) -> (usize, usize) {
    let file = fs::read(path).unwrap();
    let (image, Some(tables)) = loaded(&file) else { return (0, 0) };
    let object = object::File::parse(&*file).unwrap();
    let Some(section) = object.section_by_name(".eh_frame") else { return (0, 0) };
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let data = section.data().unwrap();
    let frames = EhFrame::new(data, LittleEndian);
    let (start, header) = (image.as_ptr().addr() as u64, image[tables..].as_ptr());
    let (mut rows, mut understood) = (0, 0);
    let mut entries = frames.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let function = partial.parse(EhFrame::cie_from_offset).unwrap();
        // What a linker has thrown away is left in place.
        if function.initial_address() == 0 || function.len() == 0 {
            continue;
        }
        let mut context = UnwindContext::new();
        let mut table = function.rows(&frames, &bases, &mut context).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            let (first, end) = (row.start_address(), row.end_address());
            if first >= end {
                continue;
            }
            let wanted = if function.is_signal_trampoline() { Rule::Signal } else { expected(row, &frames) };
            for address in [first, end - 1] {
                // SAFETY: the image has the tables that a linker wrote.
                let found = unsafe { cfi::rule(header, start + address) };
                assert_eq!(found, wanted, "{} at {address:#x}", path.display());
            }
            if let Some(packed) = wanted.packed() {
                assert_eq!(Rule::unpacked(packed), wanted);
                assert!(packed != 0 && packed >> Rule::BITS == 0);
                understood += usize::from(wanted != Rule::Unknown);
            }
            rows += 1;
        }
    }
    (rows, understood)
}

#[test]
fn every_row_is_read_as_gimli_reads_it() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    for folder in ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
        paths.extend(
            ["libstdc++.so.6", "libm.so.6", "libcrypto.so.3"].map(|name| PathBuf::from(folder).join(name)),
        );
    }
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.dedup();
    let (mut rows, mut understood) = (0, 0);
    for path in &paths {
        let (all, known) = compare(path);
        (rows, understood) = (rows + all, understood + known);
    }
    assert!(rows > 10_000, "{rows} rows of {paths:?}");
    // The rest is code that calls nothing, such as the stubs of the linker.
    assert!(understood * 100 >= rows * 95, "{understood} of {rows} rows are understood");
}
