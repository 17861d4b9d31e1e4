//! The options in `ALLOTMENT_OPTIONS`.

/// What the environment asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Print figures at the end.
    pub stats: bool,
    /// Have a thread give free memory back when the program is at rest.
    pub background: bool,
    /// Bytes of addresses to reserve.
    pub limit: Option<usize>,
}

impl Options {
    /// Reads options from a text.
    ///
    /// # Errors
    ///
    /// The first word that is no option, with the options before it.
    pub fn read(text: &str) -> Result<Self, (Self, &str)> {
        let mut options = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match (word, word.strip_prefix("limit=").map(bytes)) {
                ("stats", _) => options.stats = true,
                ("background", _) => options.background = true,
                (_, Some(Some(limit))) => options.limit = Some(limit),
                _ => return Err((options, word)),
            }
        }
        Ok(options)
    }
}

/// Reads a number of bytes with an optional unit.
fn bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|&bytes| bytes > 0)
}
