//! Numbers of bytes, as they are given and shown.

/// Reads a number of bytes: `4096`, `64K`, `64KiB`, `1.5M`; K, M and G are powers of 1024.
///
/// # Errors
/// Why it is none.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size::Config::new().with_binary().parse_size(text).map_err(|error| error.to_string())
}

/// As [`parse_bytes`], for memory of this machine.
///
/// # Errors
/// Why it is none.
pub fn parse_memory(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    usize::try_from(bytes).map_err(|_| format!("{bytes} bytes are more than this machine can address"))
}
