//! Tells AddressSanitizer and valgrind which memory a program may use (feature `sanitize`).
//!
//! Both treat a region as one block, unless the heap says which parts of it the program may use. The linker finds AddressSanitizer's
//! functions; without them, no calls are made. valgrind recognises its requests in instructions that do nothing elsewhere.

#[cfg(all(feature = "sanitize", target_arch = "x86_64", target_os = "linux"))]
mod imp {
    use core::arch::asm;
    use core::mem;

    /// Returns the address of a function of AddressSanitizer as a number, or 0 if the program has none.
    macro_rules! weak {
        ($name:literal) => {{
            let address: usize;
            // SAFETY: the instruction reads an address that the linker has written; an undefined weak name has the address 0.
            unsafe {
                asm!(
                    concat!(".weak ", $name),
                    concat!("mov {address}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                    address = out(reg) address,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            address
        }};
    }

    /// Calls a function of AddressSanitizer, if there is one at this address.
    fn asan(function: usize, start: *const u8, bytes: usize) {
        if function != 0 {
            // SAFETY: the sanitizer's functions have this type. They change the sanitizer's marks for the memory, and not the memory.
            unsafe {
                let function: extern "C" fn(*const u8, usize) = mem::transmute(function);
                function(start, bytes);
            }
        }
    }

    // Requests to valgrind's core, and to its tool memcheck.
    const CHANGE_REPORTING: usize = 0x1801;
    const NO_ACCESS: usize = 0x4d43_0000;
    const UNDEFINED: usize = NO_ACCESS + 1;
    const DEFINED: usize = NO_ACCESS + 2;

    /// Sends a request to valgrind. Does nothing without it.
    fn valgrind(request: usize, first: usize, second: usize) {
        let arguments = [request, first, second, 0, 0, 0];
        // SAFETY: the number in `rdi` is rotated by 128 bits in all, and a register is exchanged with itself.
        unsafe {
            asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") &raw const arguments,
                inout("rdx") 0_usize => _,
                options(nostack),
            );
        }
    }

    /// Marks the memory as unusable, so that each access by the program is an error.
    pub(in crate::harden) fn close(start: *const u8, bytes: usize) {
        asan(weak!("__asan_poison_memory_region"), start, bytes);
        valgrind(NO_ACCESS, start.addr(), bytes);
    }

    /// Marks the memory as usable.
    pub(in crate::harden) fn open(start: *const u8, bytes: usize) {
        asan(weak!("__asan_unpoison_memory_region"), start, bytes);
        valgrind(DEFINED, start.addr(), bytes);
    }

    /// Marks the memory as usable, with undefined contents.
    pub(in crate::harden) fn open_new(start: *const u8, bytes: usize) {
        open(start, bytes);
        valgrind(UNDEFINED, start.addr(), bytes);
    }

    /// Reads a word that may be marked as unusable.
    ///
    /// # Safety
    ///
    /// The memory must belong to a region.
    pub(in crate::harden) unsafe fn peek(place: *const u64) -> u64 {
        let value;
        valgrind(CHANGE_REPORTING, 1, 0);
        // SAFETY: the caller guarantees the memory. The compiler adds no check to this instruction.
        unsafe {
            asm!("mov {0}, qword ptr [{1}]", out(reg) value, in(reg) place, options(readonly, nostack, preserves_flags));
        }
        valgrind(CHANGE_REPORTING, usize::MAX, 0);
        value
    }
}

#[cfg(not(all(feature = "sanitize", target_arch = "x86_64", target_os = "linux")))]
mod imp {
    /// Does nothing without a tool.
    #[inline(always)]
    pub(in crate::harden) fn close(_: *const u8, _: usize) {}

    /// Does nothing without a tool.
    #[inline(always)]
    pub(in crate::harden) fn open(_: *const u8, _: usize) {}

    /// Does nothing without a tool.
    #[inline(always)]
    pub(in crate::harden) fn open_new(_: *const u8, _: usize) {}

    /// Reads a word that need not be aligned.
    ///
    /// # Safety
    ///
    /// The memory must belong to a region.
    #[inline(always)]
    pub(in crate::harden) unsafe fn peek(place: *const u64) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { place.read_unaligned() }
    }
}

pub(super) use imp::{close, open, open_new, peek};
