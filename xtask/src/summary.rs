//! The last line of a good run, which holds its measurements.

/// The figures that a program measured, in the units of its line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// High-water mark of the heap, or size of the planned arena, in bytes.
    pub peak: u64,
    /// Largest free block when all is dropped, in bytes.
    pub largest_free: Option<u64>,
    /// Worst external fragmentation, in thousandths.
    pub worst_fragmentation: Option<u64>,
    /// Bytes of variables, from programs whose file does not tell.
    pub static_ram: Option<u64>,
}

impl Summary {
    /// Reads `summary name=number name=number ...`; other lines, and lines without a peak, are `None`.
    pub fn parse(line: &str) -> Option<Self> {
        let fields = line.strip_prefix("summary ")?;
        let field = |name: &str| {
            let mut values = fields.split(' ').filter_map(|word| word.strip_prefix(name));
            values.find_map(|value| value.strip_prefix('=')?.parse().ok())
        };
        Some(Self {
            peak: field("peak")?,
            largest_free: field("largest_free"),
            worst_fragmentation: field("worst_fragmentation"),
            static_ram: field("static_ram"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn the_line_is_read() {
        let line = "summary rounds=100 peak=31 largest_free=48 free=49 worst_fragmentation=7";
        let read =
            Summary { peak: 31, largest_free: Some(48), worst_fragmentation: Some(7), static_ram: None };
        assert_eq!(Summary::parse(line), Some(read.clone()));
        let with_ram = Summary { static_ram: Some(5), ..read };
        assert_eq!(Summary::parse(&format!("{line} static_ram=5")), Some(with_ram));
        let planned = Summary { peak: 31, ..Summary::default() };
        assert_eq!(Summary::parse("summary rounds=10 peak=31 naive=99"), Some(planned));
        for other in ["", "rounds peak=31", "summary rounds=100", "summary peak=x largest_free=1"] {
            assert_eq!(Summary::parse(other), None, "{other:?}");
        }
    }
}
