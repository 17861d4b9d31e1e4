//! Text built in a `const`, for compiler errors.

#![forbid(unsafe_code)]

use super::{Buffer, PlanError, load};
use crate::units::each;

/// A buffer for up to `N` bytes of text.
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Appends all of `text`, or nothing if it does not fit. Returns whether it fits.
    const fn push(&mut self, text: &str) -> bool {
        let text = text.as_bytes();
        if text.len() > N - self.len {
            return false;
        }
        each!(i, 0..text.len(), {
            self.bytes[self.len] = text[i];
            self.len += 1;
        });
        true
    }

    const fn number(&mut self, mut value: u64) -> bool {
        let mut digits = [b'0'; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        let (_, digits) = digits.split_at(first);
        match core::str::from_utf8(digits) {
            Ok(digits) => self.push(digits),
            Err(_) => false,
        }
    }

    const fn as_str(&self) -> &str {
        let (text, _) = self.bytes.split_at(self.len);
        match core::str::from_utf8(text) {
            Ok(text) => text,
            Err(_) => "",
        }
    }

    /// Appends `name (size B)`, or nothing if that does not fit; a buffer without a name appears by its index. Returns whether it fits.
    const fn buffer(&mut self, buffers: &[Buffer<'_>], i: usize) -> bool {
        let before = self.len;
        let named = if buffers[i].name.is_empty() {
            self.push("#") && self.number(i as u64)
        } else {
            self.push(buffers[i].name)
        };
        if named && self.push(" (") && self.number(buffers[i].size) && self.push(" B)") {
            return true;
        }
        self.len = before;
        false
    }
}

/// Panics with the size that a plan needs and the buffers that are live at the worst step.
pub(super) const fn too_large(buffers: &[Buffer<'_>], peak: u64, capacity: u64) -> ! {
    let worst = load(buffers);
    let mut text = Text::<1000>::new();
    text.push("the plan needs ");
    text.number(peak);
    text.push(" B but the arena has ");
    text.number(capacity);
    text.push(" B; the worst moment is step ");
    text.number(worst.step);
    text.push(" with ");
    text.number(worst.bytes);
    text.push(" B live:");
    // Leave room for the count of omitted buffers.
    const LAST: usize = 32;
    let mut left_out = 0;
    each!(i, 0..buffers.len(), {
        if buffers[i].is_live(worst.step) {
            let before = text.len;
            let fits = text.push(if left_out == 0 { " " } else { "" }) && text.buffer(buffers, i);
            if !fits || text.len + LAST > 1000 {
                text.len = before;
                left_out += 1;
            } else {
                text.push(",");
            }
        }
    });
    if left_out > 0 {
        text.push(" and ");
        text.number(left_out);
        text.push(" more");
    } else if text.len > 0 && text.bytes[text.len - 1] == b',' {
        text.len -= 1;
    }
    panic!("{}", text.as_str())
}

/// Panics with the reason why an instance cannot be planned, and the buffers at fault.
pub(super) const fn refuse(buffers: &[Buffer<'_>], error: PlanError) -> ! {
    let (reason, Some(first), second) = error.parts() else { panic!("{}", error.reason()) };
    let mut text = Text::<300>::new();
    text.push(reason);
    text.push(": ");
    text.buffer(buffers, first);
    if let Some(second) = second {
        text.push(" and ");
        text.buffer(buffers, second);
    }
    panic!("{}", text.as_str())
}
