//! The program and its libraries, as the dynamic linker lists them.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;

use crate::sys;

/// The longest path in bytes; longer ones are cut.
const PATH: usize = 1024;

/// A program or a library.
pub struct Module {
    /// The addresses that it takes.
    pub start: usize,
    pub end: usize,
    /// The difference between its addresses and those in its file.
    pub bias: usize,
    /// Its `.eh_frame_hdr`, or null.
    pub header: *const u8,
    path: [u8; PATH],
    length: usize,
}

/// The search for one.
struct Search {
    address: usize,
    found: Option<Module>,
}

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_E550;

impl Module {
    /// Returns the module that has an address. Takes the dynamic linker's lock.
    pub fn of(address: usize) -> Option<Self> {
        let mut search = Search { address, found: None };
        // SAFETY: the function gets the search, which lives until then.
        unsafe { sys::dl_iterate_phdr(look, (&raw mut search).cast()) };
        search.found
    }

    /// Returns the path; empty for the program itself.
    pub fn path(&self) -> &str {
        core::str::from_utf8(&self.path[..self.length]).unwrap_or("?")
    }
}

/// Looks at one module; 1 ends the search.
///
/// # Safety
///
/// The information must be the dynamic linker's, and `search` a [`Search`].
unsafe extern "C" fn look(info: *const sys::PhdrInfo, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees both; the program headers are loaded.
    unsafe {
        let search = &mut *search.cast::<Search>();
        let info = &*info;
        let (mut start, mut end, mut header, mut has) = (usize::MAX, 0, ptr::null(), false);
        for number in 0..usize::from(info.count) {
            let part = &*info.parts.add(number);
            let from = info.bias.wrapping_add(part.address as usize);
            let to = from.wrapping_add(part.size_in_memory as usize);
            match part.kind {
                PT_LOAD => {
                    (start, end) = (start.min(from), end.max(to));
                    has |= (from..to).contains(&search.address);
                }
                PT_GNU_EH_FRAME => header = ptr::with_exposed_provenance(from),
                _ => {}
            }
        }
        if !has {
            return 0;
        }
        let name = if info.name.is_null() { c"" } else { CStr::from_ptr(info.name) };
        let mut module = Module { start, end, bias: info.bias, header, path: [0; PATH], length: 0 };
        module.length = name.to_bytes().len().min(PATH);
        module.path[..module.length].copy_from_slice(&name.to_bytes()[..module.length]);
        search.found = Some(module);
        1
    }
}
