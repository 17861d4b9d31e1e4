//! The options in `ALLOTMENT_OPTIONS`.

use core::num::{IntErrorKind, ParseIntError};

/// The options that the environment sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to print statistics when the program ends.
    pub stats: bool,
    /// Whether to start a thread that returns free memory while the program is idle.
    pub background: bool,
    /// Whether to request or avoid transparent huge pages.
    pub huge: Option<bool>,
    /// The most bytes that the heap may have; the largest number means no limit.
    pub limit: Option<usize>,
    /// One block in this many goes between guard pages.
    pub sample: Option<u32>,
}

impl Options {
    /// Reads options from a text, and calls `unknown` with each unknown word.
    pub fn read(text: &str, mut unknown: impl FnMut(&str)) -> Self {
        let mut options = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word
                .split_once('=')
                .map_or((word, ""), |(name, value)| (name.trim_end(), value.trim_start()));
            let limit = (name == "limit").then(|| bytes(value));
            let period = if name == "sample" { value.parse().ok() } else { None };
            match (word, limit) {
                _ if period.is_some() => options.sample = period,
                ("stats", _) => options.stats = true,
                ("background", _) => options.background = true,
                ("thp", _) => options.huge = Some(true),
                ("nothp", _) => options.huge = Some(false),
                (_, Some(Some(limit))) => options.limit = Some(usize::try_from(limit).unwrap_or(usize::MAX)),
                _ => unknown(word),
            }
        }
        options
    }
}

/// Reads a number of bytes like the `allotment` tool: `4096`, `0x1000`, `64K`, `64Mi`, `64MiB`, `1.5G`; all units are powers of 1024.
/// Numbers that are too large become the largest one.
fn bytes(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return or_most(u64::from_str_radix(digits, 16)).filter(|&bytes| bytes > 0);
    }
    // Data frames write whole numbers like this.
    let text = text.strip_suffix(".0").unwrap_or(text);
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = &text.as_bytes()[digits.len()..];
    let (letter, rest) = unit.split_first().unwrap_or((&b'B', &[]));
    if !["", "B", "I", "IB"].iter().any(|known| rest.eq_ignore_ascii_case(known.as_bytes())) {
        return None;
    }
    let shift = match letter.to_ascii_uppercase() {
        b'B' if rest.is_empty() => 0,
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return None,
    };
    let unit = 1_u64 << shift;
    let (whole, fraction) = match digits.trim_end().split_once('.') {
        // A fraction of a byte means that the unit is missing.
        Some(_) if shift == 0 => return None,
        Some(parts) => parts,
        None => (digits.trim_end(), "0"),
    };
    let part = fraction.bytes().rev().try_fold(0, |part, digit| {
        digit.is_ascii_digit().then(|| (part + u64::from(digit - b'0') * unit) / 10)
    });
    let bytes = or_most(whole.parse())?.saturating_mul(unit).saturating_add(part?);
    (bytes > 0 && !fraction.is_empty()).then_some(bytes)
}

/// Returns the number, or the largest possible one on overflow.
fn or_most(number: Result<u64, ParseIntError>) -> Option<u64> {
    match number {
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Some(u64::MAX),
        number => number.ok(),
    }
}
