//! Counts the instructions of a single call exactly, by single-stepping the processor.
//!
//! With the trap flag set, x86-64 raises a signal after every instruction, and the handler counts. That takes about
//! a microsecond per instruction and needs no other process.

/// Whether calls can be counted here.
pub const AVAILABLE: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod trap {
    use std::arch::asm;
    use std::cell::Cell;
    use std::ffi::c_int;
    use std::sync::Once;

    thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    extern "C" fn on_trap(_: c_int) {
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: the handler touches only a counter of its own thread that needs no initialisation.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_trap as *const () as usize;
                let status = libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
                assert_eq!(status, 0, "SIGTRAP can be handled");
            }
        });
    }

    /// Runs `f`, and returns the number of instructions that it took, plus a small constant.
    #[inline(always)]
    pub fn count<T>(f: impl FnOnce() -> T) -> (T, u64) {
        install();
        STEPS.with(|steps| steps.set(0));
        // SAFETY: the trap flag only causes signals, which are handled.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        let value = f();
        // SAFETY: as above.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        (value, STEPS.with(Cell::get))
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use trap::count;

/// Runs `f` without counting.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn count<T>(f: impl FnOnce() -> T) -> (T, u64) {
    (f(), 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_repeat_and_grow_with_the_work() {
        if !super::AVAILABLE {
            return;
        }
        #[inline(never)]
        fn work(times: u64) -> u64 {
            (0..times).fold(1, |a, b| std::hint::black_box(a ^ b))
        }
        let count = |times| super::count(|| work(times)).1;
        let (ten, again, twenty) = (count(10), count(10), count(20));
        assert_eq!(ten, again);
        assert!(twenty >= ten + 10, "{ten} {twenty}");
    }
}
