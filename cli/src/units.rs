//! Parses numbers, alignments and numbers of bytes.

pub use allotment_planner::read::{parse_bytes, parse_limit};

/// Reads a number of bytes like [`parse_bytes`], at most as many as this machine can address.
///
/// # Errors
/// A message that says why it is invalid.
pub fn parse_memory(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    usize::try_from(bytes).map_err(|_| format!("{bytes} bytes are more than this machine can address"))
}

/// Reads a number that is at least 1.
///
/// # Errors
/// A message that says why it is invalid.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// Reads an alignment in bytes: a power of two.
///
/// # Errors
/// A message that says why it is invalid.
pub fn parse_alignment(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes.is_power_of_two() {
        Ok(bytes)
    } else {
        Err(format!("{bytes} is no power of two: write 1, 2, 4, 8 and so on"))
    }
}
