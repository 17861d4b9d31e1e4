//! Cache lines: buffers of a cached memory that share no line, so that each can be passed to DMA separately.

use std::collections::BTreeMap;

use crate::model::{Buffer, Gap, Instance, InstanceError};

/// Bytes of a cache line, a power of two, for each tier that lies behind a data cache.
pub type CacheLines = BTreeMap<u32, u64>;

/// Aligns the buffers of cached tiers to the tier's line, and rounds their sizes and windows outwards to whole lines.
///
/// In a plan of the result no two buffers share a cache line. A program can therefore clean or invalidate the lines of one
/// buffer, before and after a DMA transfer, without losing bytes of its neighbours. O(n log n).
///
/// # Errors
/// [`InstanceError::Misaligned`] if a fixed offset is not a multiple of the line, [`InstanceError::TooLarge`] if the buffers together no
/// longer fit in 63 bits.
///
/// # Panics
/// If a line is not a power of two.
pub fn cache_lines(instance: &Instance, lines: &CacheLines) -> Result<Instance, InstanceError> {
    let whole = |buffer: &Buffer| {
        let Some(&line) = lines.get(&buffer.tier) else {
            return Ok(buffer.clone());
        };
        assert!(line.is_power_of_two(), "a cache line of {line} bytes");
        let up = |bytes: u64| bytes.checked_next_multiple_of(line).ok_or(InstanceError::TooLarge);
        // For the least common multiple: the line's factors of two that the alignment lacks.
        let lacking = line >> buffer.align.trailing_zeros().min(line.trailing_zeros());
        let align = buffer.align.checked_mul(lacking).ok_or(InstanceError::TooLarge)?;
        let widened = |gap: &Gap| {
            let window = gap.window.map(|(from, to)| Ok((from / line * line, up(to)?))).transpose()?;
            Ok(Gap { window, ..*gap })
        };
        let gaps = buffer.gaps.iter().map(widened).collect::<Result<_, InstanceError>>()?;
        Ok(Buffer { size: up(buffer.size)?, align, gaps, ..buffer.clone() })
    };
    Instance::new(instance.buffers().iter().map(whole).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> CacheLines {
        CacheLines::from([(1, 32)])
    }

    #[test]
    fn buffers_of_cached_tiers_fill_whole_lines() {
        let tier = |buffer: Buffer| Buffer { tier: 1, ..buffer };
        let gap = Gap { start: 1, end: 2, window: Some((40, 70)) };
        let buffers = vec![
            Buffer::new("uncached", 33, 0, 4),
            tier(Buffer::new("small", 1, 0, 4)),
            tier(Buffer { align: 8, ..Buffer::new("whole", 64, 0, 4) }),
            tier(Buffer { align: 64, ..Buffer::new("stricter", 33, 0, 4) }),
            tier(Buffer { align: 12, ..Buffer::new("odd", 33, 0, 4) }),
            tier(Buffer { gaps: vec![gap], ..Buffer::new("gap", 100, 0, 4) }),
        ];
        let instance = cache_lines(&Instance::new(buffers).unwrap(), &lines()).unwrap();
        let found: Vec<(u64, u64)> = instance.buffers().iter().map(|b| (b.size, b.align)).collect();
        assert_eq!(found, [(33, 1), (32, 32), (64, 32), (64, 64), (64, 96), (128, 32)]);
        assert_eq!(instance.buffers()[5].gaps[0].window, Some((32, 96)));
    }

    #[test]
    fn what_cannot_keep_to_lines_is_an_error() {
        let fixed = Buffer { tier: 1, fixed: Some(40), ..Buffer::new("fixed", 8, 0, 1) };
        let instance = Instance::new(vec![fixed]).unwrap();
        let error = InstanceError::Misaligned { id: "fixed".into(), offset: 40, align: 32 };
        assert_eq!(cache_lines(&instance, &lines()), Err(error));
        let large = Buffer { tier: 1, ..Buffer::new("large", (1 << 63) - 1, 0, 1) };
        let instance = Instance::new(vec![large]);
        assert_eq!(
            instance.and_then(|instance| cache_lines(&instance, &lines())),
            Err(InstanceError::TooLarge)
        );
    }
}
