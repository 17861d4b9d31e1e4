//! Keeps a shared library loaded once something that outlives it may call it.
//!
//! Every ending thread calls the destructor of a pthread key, even after `dlclose`. The same applies to the callbacks of a driver and the
//! deleter of a tensor. musl unloads nothing, and statically linked code cannot be unloaded.

use core::ffi::c_void;
use core::ptr;

/// Keeps the shared library that contains this code loaded forever, and returns whether it will stay. The system may allocate meanwhile.
pub(crate) fn stay_loaded() -> bool {
    cfg!(any(target_env = "musl", target_feature = "crt-static", miri))
        || imp::keep(stay_loaded as *const c_void)
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod imp {
    use super::{c_void, ptr};
    use core::ffi::{c_char, c_int};
    use core::slice;

    /// Type of the segment with an object's tags.
    const DYNAMIC: u32 = 2;
    /// The tag for flags, and the flag of a library that is never unloaded.
    const FLAGS: usize = 0x6fff_fffb;
    const NO_DELETE: usize = 8;

    struct Search {
        here: usize,
        /// Name of the library with that address; null if it stays in any case.
        name: *const c_char,
    }

    /// Returns 1 if the address is in the object, after storing the object's name.
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: `keep` passes its search. The loader describes a loaded object, and tags end with a zero.
        unsafe {
            let (object, search) = (&*object, &mut *search.cast::<Search>());
            let parts = slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
            let start = |part: usize| (object.dlpi_addr as usize).wrapping_add(part);
            let is_here = parts.iter().any(|part| {
                part.p_type == libc::PT_LOAD
                    && search.here.wrapping_sub(start(part.p_vaddr as usize)) < part.p_memsz as usize
            });
            if !is_here {
                return 0;
            }
            // The program itself has no name.
            let mut stays = object.dlpi_name.is_null() || *object.dlpi_name == 0;
            if let Some(part) = parts.iter().find(|part| part.p_type == DYNAMIC) {
                let mut tag: *const [usize; 2] = ptr::with_exposed_provenance(start(part.p_vaddr as usize));
                while (*tag)[0] != 0 {
                    stays |= (*tag)[0] == FLAGS && (*tag)[1] & NO_DELETE != 0;
                    tag = tag.add(1);
                }
            }
            search.name = if stays { ptr::null() } else { object.dlpi_name };
            1
        }
    }

    pub(super) fn keep(here: *const c_void) -> bool {
        let mut search = Search { here: here.addr(), name: ptr::null() };
        // SAFETY: `look` gets the search. The name is valid as long as the library, which is in use.
        unsafe {
            libc::dl_iterate_phdr(Some(look), (&raw mut search).cast());
            // A library that is the C program's heap has the flag, so it never calls `dlopen` here, where the loader itself may be
            // allocating.
            search.name.is_null()
                || !libc::dlopen(search.name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE)
                    .is_null()
        }
    }
}

#[cfg(target_vendor = "apple")]
mod imp {
    use super::c_void;
    use core::mem::MaybeUninit;

    pub(super) fn keep(here: *const c_void) -> bool {
        let mut object = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: the loader fills the description of the object with the address, which is in use.
        unsafe {
            libc::dladdr(here, object.as_mut_ptr()) != 0
                && !libc::dlopen(
                    object.assume_init().dli_fname,
                    libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
                )
                .is_null()
        }
    }
}

#[cfg(windows)]
mod imp {
    use super::{c_void, ptr};

    /// Flags: never unload the module, which an address in it identifies.
    const PIN_FROM_ADDRESS: u32 = 1 | 4;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetModuleHandleExW(flags: u32, name: *const c_void, module: *mut *mut c_void) -> i32;
    }

    pub(super) fn keep(here: *const c_void) -> bool {
        let mut module = ptr::null_mut();
        // SAFETY: the address is in a module, and the place is valid for a write.
        unsafe { GetModuleHandleExW(PIN_FROM_ADDRESS, here, &mut module) != 0 }
    }
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple",
    windows
)))]
mod imp {
    pub(super) fn keep(_: *const super::c_void) -> bool {
        true
    }
}
