//! Sleeping in loom's models, in place of the system's futex: as `rustix::thread`.

/// As in the real crate.
pub mod futex {
    use crate::sync::atomic::{AtomicU32, Ordering};

    /// As in the real crate.
    pub struct Flags;

    impl Flags {
        /// As in the real crate.
        pub const PRIVATE: Self = Self;
    }

    /// As in the real crate.
    pub struct Timespec {
        /// Seconds.
        pub tv_sec: i64,
        /// Nanoseconds.
        pub tv_nsec: i64,
    }

    /// Sleeps if the state is the expected one. Any sleep may end early, because it has a time limit: so it is one in which the other
    /// threads run.
    pub fn wait(state: &AtomicU32, _: Flags, expected: u32, limit: Option<&Timespec>) {
        assert!(limit.is_some(), "without a limit, a wake-up that comes too early would be lost");
        if state.load(Ordering::Relaxed) == expected {
            loom::thread::yield_now();
        }
    }

    /// Wakes a thread: all wake by themselves.
    pub fn wake(_: &AtomicU32, _: Flags, _: u32) {}
}
