//! Sizes and errors as people read them.

#![forbid(unsafe_code)]

use core::fmt;
use std::format;

/// A number of bytes, which is shown as such below 1 KiB, in KiB below 1 MiB, and in MiB beyond.
#[derive(Clone, Copy)]
pub(super) struct Size(pub u64);

impl Size {
    pub(super) const fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.0 {
            bytes @ ..1024 => format!("{bytes} B"),
            bytes @ 1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
            bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        })
    }
}

/// Lets errors show their sentence in `Debug` as well, which is what a `main` prints that returns one.
macro_rules! debug_as_display {
    ($($error:ty),+) => {$(
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    )+};
}
pub(crate) use debug_as_display;
