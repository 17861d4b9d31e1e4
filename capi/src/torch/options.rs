//! The options of PyTorch's pools, with the names of `PYTORCH_CUDA_ALLOC_CONF`.

use heap::pool::PoolOptions;

/// The options, with PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Options {
    /// The size in MiB above which requests get separate segments, which smaller requests do not split.
    max_split_size_mb: Option<usize>,
    /// The part of the device's memory above which the pool releases unused memory before a request.
    pub(super) garbage_collection_threshold: Option<f64>,
    /// Sizes round up to a multiple of the next lower power of two divided by this; 0 for no rounding.
    roundup_power2_divisions: usize,
    /// Whether segments grow in place.
    pub(super) expandable_segments: bool,
}

impl Options {
    pub(super) const DEFAULT: Self = Self {
        max_split_size_mb: None,
        garbage_collection_threshold: None,
        roundup_power2_divisions: 0,
        expandable_segments: true,
    };

    /// Reads options; the error is the first option that is unknown or has a wrong value.
    pub(super) fn read(text: &str) -> Result<Self, &str> {
        let mut options = Self::DEFAULT;
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once(':').ok_or(word)?;
            match name.trim() {
                "max_split_size_mb" => {
                    options.max_split_size_mb = Some(value.trim().parse().map_err(|_| word)?);
                }
                "garbage_collection_threshold" => {
                    let part: f64 = value.trim().parse().map_err(|_| word)?;
                    options.garbage_collection_threshold =
                        Some(part).filter(|part| (0.0..1.0).contains(part)).map(Some).ok_or(word)?;
                }
                "roundup_power2_divisions" => {
                    let divisions: usize = value.trim().parse().map_err(|_| word)?;
                    let is_valid = divisions == 0 || divisions.is_power_of_two();
                    options.roundup_power2_divisions = is_valid.then_some(divisions).ok_or(word)?;
                }
                "expandable_segments" => {
                    options.expandable_segments = match value.trim() {
                        "True" | "true" => true,
                        "False" | "false" => false,
                        _ => return Err(word),
                    };
                }
                _ => return Err(word),
            }
        }
        Ok(options)
    }

    pub(super) fn of_pool(self) -> PoolOptions {
        let options = PoolOptions::new();
        match self.max_split_size_mb {
            Some(limit) => options.exact_above(limit.saturating_mul(1 << 20), 2 << 20).lean(true),
            None => options,
        }
    }

    pub(super) fn round(self, bytes: usize) -> usize {
        let divisions = self.roundup_power2_divisions;
        if divisions <= 1 || bytes < divisions {
            return bytes;
        }
        let step = (1usize << bytes.ilog2()) / divisions;
        bytes.checked_next_multiple_of(step.max(1)).unwrap_or(bytes)
    }
}
