//! The requirements of a program on the machine that it runs on.

use anyhow::{Result, bail};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};

/// The newest version of glibc that a bundle may need: that of Debian 12.
const NEWEST: (u32, u32) = (2, 36);

/// Libraries that every system with that glibc has.
const EVERYWHERE: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux"];

/// A version of a library that a program asks for.
#[derive(Debug, PartialEq, Eq)]
struct Needed {
    library: String,
    version: String,
}

/// Returns whether a program or library starts wherever glibc 2.36 or newer is.
pub fn check(bytes: &[u8]) -> Result<()> {
    judge(&needed(bytes)?, NEWEST)
}

fn judge(needed: &[Needed], newest: (u32, u32)) -> Result<()> {
    for Needed { library, version } in needed {
        if !EVERYWHERE.iter().any(|known| library.starts_with(known)) {
            bail!("it needs {library}, which not every system has");
        }
        if glibc(version).is_some_and(|version| version > newest) {
            bail!(
                "it needs {version}, newer than glibc {}.{}: build the bundle where that or an older one is, on Debian 12 \
                 or in a container of it",
                newest.0,
                newest.1
            );
        }
    }
    Ok(())
}

/// `GLIBC_2.36` as numbers; `None` for other versions.
fn glibc(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The versions that the file's dynamic symbols ask for.
fn needed(bytes: &[u8]) -> Result<Vec<Needed>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut found = Vec::new();
    for section in sections.iter() {
        let Some((mut libraries, strings)) = section.gnu_verneed(endian, bytes)? else { continue };
        let strings = sections.strings(endian, bytes, strings)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        while let Some((library, mut versions)) = libraries.next()? {
            let library = text(library.file(endian, strings)?);
            while let Some(version) = versions.next()? {
                let version = text(version.name(endian, strings)?);
                found.push(Needed { library: library.clone(), version });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(library: &str, version: &str) -> Needed {
        Needed { library: library.into(), version: version.into() }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.36", "GLIBC_PRIVATE", "GCC_3.0"] {
            judge(&[need("libc.so.6", version)], NEWEST).unwrap();
        }
        for version in ["GLIBC_2.37", "GLIBC_2.100", "GLIBC_3.0"] {
            let error = judge(&[need("libc.so.6", version)], NEWEST).unwrap_err().to_string();
            assert!(error.contains(version) && error.contains("2.36"), "{error}");
        }
        let error = judge(&[need("libstdc++.so.6", "GLIBCXX_3.4")], NEWEST).unwrap_err();
        assert!(error.to_string().contains("libstdc++"), "{error}");
    }

    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    #[test]
    fn this_program_needs_glibc() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = needed(&program).unwrap();
        assert!(found.iter().any(|need| need.library == "libc.so.6"), "{found:?}");
        let error = judge(&found, (2, 0)).unwrap_err().to_string();
        assert!(error.contains("newer than glibc 2.0"), "{error}");
        assert!(needed(b"#!/bin/sh").is_err());
    }
}
