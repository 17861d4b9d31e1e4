//! Where a thread finds its lists: one pointer in thread-local storage.
//!
//! The storage is static (the initial-exec model of ELF) where this file can say so: the access then takes one instruction more
//! than a static and never calls the dynamic linker, which may allocate.

use super::local::Local;

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod place {
    use super::Local;
    use core::arch::{asm, global_asm};

    /// The variable's name: another one in every version of this crate, and in its unit tests.
    #[cfg(not(test))]
    macro_rules! name {
        () => {
            concat!("allotment_lists_", env!("CARGO_PKG_VERSION"))
        };
    }
    #[cfg(test)]
    macro_rules! name {
        () => {
            "allotment_lists_of_tests"
        };
    }

    global_asm!(
        concat!(".pushsection .tbss.", name!(), ",\"awT\",@nobits"),
        ".p2align 3",
        concat!(".hidden ", name!()),
        concat!(".globl ", name!()),
        concat!(".type ", name!(), ",@object"),
        concat!(".size ", name!(), ",8"),
        concat!(name!(), ":"),
        ".zero 8",
        ".popsection",
    );

    /// Returns the thread's pointer, null at first.
    #[inline(always)]
    pub(crate) fn get() -> *mut Local {
        let local;
        // SAFETY: it reads the thread's own copy of the variable that is declared above.
        unsafe {
            asm!(
                concat!("mov {local}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov {local}, qword ptr fs:[{local}]",
                local = out(reg) local,
                options(nostack, preserves_flags, readonly, pure),
            );
        }
        local
    }

    /// Sets the thread's pointer.
    pub(crate) fn set(local: *mut Local) {
        // SAFETY: it writes the thread's own copy of the variable that is declared above.
        unsafe {
            asm!(
                concat!("mov {place}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov qword ptr fs:[{place}], {local}",
                place = out(reg) _,
                local = in(reg) local,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri))))]
mod place {
    use super::Local;
    use core::cell::Cell;
    use core::ptr;
    use std::thread_local;

    thread_local! {
        static LISTS: Cell<*mut Local> = const { Cell::new(ptr::null_mut()) };
    }

    /// Returns the thread's pointer, null at first.
    #[inline(always)]
    pub(crate) fn get() -> *mut Local {
        LISTS.with(Cell::get)
    }

    /// Sets the thread's pointer.
    pub(crate) fn set(local: *mut Local) {
        LISTS.with(|lists| lists.set(local));
    }
}

pub(crate) use place::{get, set};
