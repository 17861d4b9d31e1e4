//! The racks of a depot of the library.

#[path = "../../../src/os/rack.rs"]
mod rack;

pub use open::Open;

/// What the models may see of a rack.
mod open {
    use super::rack::Rack;

    /// A rack whose lists stand for numbers.
    pub struct Open(Rack<u64>);

    impl Open {
        /// Makes an empty rack.
        pub const fn new() -> Self {
            Self(Rack::new())
        }

        /// Puts the list in that stands for a number.
        pub fn put(&self, number: usize) -> bool {
            self.0.put(std::ptr::without_provenance_mut(8 * (number + 1)))
        }

        /// Takes a list out, and returns its number.
        pub fn take(&self) -> Option<usize> {
            self.0.take().map(|list| list.addr() / 8 - 1)
        }
    }
}
