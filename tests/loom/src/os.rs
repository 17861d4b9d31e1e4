//! The depot of the library.

#[path = "../../../src/os/classes.rs"]
mod classes;
#[path = "../../../src/os/depot.rs"]
mod depot;

pub use open::Open;

/// What the models may see of the depot.
mod open {
    use super::depot::Exchange;

    /// The exchange of a depot.
    pub struct Open(Exchange);

    impl Open {
        /// Makes an exchange for caches of 64 KiB.
        pub const fn new() -> Self {
            Self(Exchange::new(64 << 10))
        }

        /// Puts a magazine in that stands for a number.
        pub fn put(&self, class: usize, number: usize) -> bool {
            self.0.put_full(class, std::ptr::without_provenance_mut(8 * (number + 1)))
        }

        /// Takes a magazine out, and returns its number.
        pub fn take(&self, class: usize) -> Option<usize> {
            self.0.take_full(class).map(|magazine| magazine.addr() / 8 - 1)
        }
    }
}
