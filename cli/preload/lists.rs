//! The functions that start a program with its arguments as their own: `execl("/bin/ls", "ls", "-l", NULL)`.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use crate::hooks::{List, Path, execv, execve, execvp};
use crate::sys;

/// Arguments behind the path that are in registers.
const REGISTERS: usize = 5;

/// The most arguments, with the null behind them, that stay on the stack.
const FEW: usize = 256;

/// The arguments behind the path: those in registers, and those on the stack.
#[derive(Clone, Copy)]
#[repr(C)]
struct Arguments {
    registers: *const *const c_char,
    stack: *const *const c_char,
}

impl Arguments {
    /// # Safety
    ///
    /// The caller passed more than `n`.
    unsafe fn get(self, n: usize) -> *const c_char {
        // SAFETY: as the caller guarantees.
        unsafe {
            match n.checked_sub(REGISTERS) {
                None => *self.registers.add(n),
                Some(n) => *self.stack.add(n),
            }
        }
    }

    /// Calls `start` with the list of the arguments, and with what is behind the null that ends it.
    ///
    /// # Safety
    ///
    /// One of the arguments is null, and one more is there if `start` reads it.
    unsafe fn start(self, start: impl FnOnce(List, Self, usize) -> c_int) -> c_int {
        let mut count = 0;
        // SAFETY: as the caller guarantees, and the places are those of the list.
        unsafe {
            while !self.get(count).is_null() {
                count += 1;
            }
            let mut few = [ptr::null::<c_char>(); FEW];
            let (mut list, mut more) = (few.as_mut_ptr(), 0);
            if count >= FEW {
                more = (count + 1) * size_of::<Path>();
                let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
                let place = sys::mmap(ptr::null_mut(), more, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0);
                if place == sys::MAP_FAILED {
                    return -1;
                }
                list = place.cast();
            }
            for n in 0..=count {
                *list.add(n) = self.get(n);
            }
            let result = start(list, self, count + 1);
            if more > 0 {
                sys::munmap(list.cast::<c_void>(), more);
            }
            result
        }
    }
}

/// # Safety
///
/// The arguments are those of `execl`.
unsafe extern "C" fn with_list(path: Path, arguments: Arguments) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { arguments.start(|list, _, _| execv(path, list)) }
}

/// # Safety
///
/// The arguments are those of `execlp`.
unsafe extern "C" fn with_list_found(path: Path, arguments: Arguments) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { arguments.start(|list, _, _| execvp(path, list)) }
}

/// # Safety
///
/// The arguments are those of `execle`.
unsafe extern "C" fn with_list_and_environment(path: Path, arguments: Arguments) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, whose last argument is an environment.
    unsafe { arguments.start(|list, all, last| execve(path, list, all.get(last).cast())) }
}

/// Defines functions that put their arguments behind the path into a list: five are in registers, the others above the address to
/// which they return.
macro_rules! listed {
    ($($name:ident: $with:path;)*) => {$(
        /// # Safety
        ///
        /// The arguments are those of the C function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "sub rsp, 40",
                "mov [rsp], rsi",
                "mov [rsp + 8], rdx",
                "mov [rsp + 16], rcx",
                "mov [rsp + 24], r8",
                "mov [rsp + 32], r9",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {with}",
                "add rsp, 40",
                "ret",
                with = sym $with,
            )
        }
    )*};
}

listed! {
    execl: with_list;
    execlp: with_list_found;
    execle: with_list_and_environment;
}
