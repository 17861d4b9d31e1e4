//! The flag of an arena of the library.

#[path = "../../../src/plan/arena/busy.rs"]
mod busy;

pub use open::Open;

/// What the models may see of the flag.
mod open {
    use super::busy::Busy;

    /// The flag.
    pub struct Open(Busy);

    impl Open {
        /// Makes a flag that is free.
        pub const fn new() -> Self {
            Self(Busy::new())
        }

        /// Takes the flag, if it is free.
        pub fn enter(&self) -> bool {
            self.0.enter()
        }

        /// Releases the flag.
        pub fn leave(&self) {
            self.0.leave()
        }
    }
}
