//! The thread-local pointer to a thread's lists of the growing heap.
//!
//! Where possible, the storage is static (the initial-exec model of ELF): an access then takes only one instruction more than for a
//! static, and never calls the dynamic linker, which may allocate.

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod imp {
    use crate::os::cache::{Lists, NEVER};
    use core::arch::{asm, global_asm};

    /// The variable's name, which differs between versions of this crate, and in its unit tests.
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

    // The variable points to `NONE` at first.
    global_asm!(
        concat!(".pushsection .tdata.", name!(), ",\"awT\",@progbits"),
        ".p2align 3",
        concat!(".hidden ", name!()),
        concat!(".globl ", name!()),
        concat!(".type ", name!(), ",@object"),
        concat!(".size ", name!(), ",8"),
        concat!(name!(), ":"),
        ".quad {none}",
        ".popsection",
        none = sym NEVER,
    );

    /// Returns the thread's pointer.
    #[inline(always)]
    pub(in crate::os::growing) fn get() -> *mut Lists {
        let lists;
        // SAFETY: it reads the thread's copy of the variable declared above.
        unsafe {
            asm!(
                concat!("mov {lists}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov {lists}, qword ptr fs:[{lists}]",
                lists = out(reg) lists,
                options(nostack, preserves_flags, readonly, pure),
            );
        }
        lists
    }

    /// Sets the thread's pointer.
    pub(in crate::os::growing) fn set(lists: *mut Lists) {
        // SAFETY: it writes the thread's copy of the variable declared above.
        unsafe {
            asm!(
                concat!("mov {place}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov qword ptr fs:[{place}], {lists}",
                place = out(reg) _,
                lists = in(reg) lists,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri))))]
mod imp {
    use crate::os::cache::{Lists, NONE};
    use core::cell::Cell;
    use std::thread_local;

    thread_local! {
        static LISTS: Cell<*mut Lists> = const { Cell::new(NONE) };
    }

    /// Returns the thread's pointer.
    #[inline(always)]
    pub(in crate::os::growing) fn get() -> *mut Lists {
        LISTS.with(Cell::get)
    }

    /// Sets the thread's pointer.
    pub(in crate::os::growing) fn set(lists: *mut Lists) {
        LISTS.with(|all| all.set(lists));
    }
}

pub(super) use imp::{get, set};
