//! Which zone an address belongs to.

use super::Zone;
use crate::region::Region;
use core::ptr::NonNull;

/// A region and the number of its zone.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    zone: usize,
}

/// The regions of all zones in the order of their addresses, up to `SPANS` of them.
pub(super) struct Table<const SPANS: usize> {
    spans: [Span; SPANS],
    count: usize,
}

impl<const SPANS: usize> Table<SPANS> {
    pub(super) const EMPTY: Self = Self { spans: [Span { start: 0, end: 0, zone: 0 }; SPANS], count: 0 };

    /// The zone whose region holds `address`, as far as the table knows. O(log regions).
    pub(super) fn find(&self, address: NonNull<u8>) -> Option<usize> {
        let address = address.addr().get();
        let spans = &self.spans[..self.count];
        let after = spans.partition_point(|span| span.start <= address);
        let span = spans.get(after.checked_sub(1)?)?;
        (address < span.end).then_some(span.zone)
    }

    /// The table of what the zones have now; what exceeds it is left out. O(regions²).
    pub(super) fn of(zones: &[Zone<'_>]) -> Self {
        let mut table = Self::EMPTY;
        for (number, zone) in zones.iter().enumerate() {
            for region in (0..).map_while(|n| zone.region(n)) {
                table.enter(region, number);
            }
        }
        table
    }

    fn enter(&mut self, region: Region, zone: usize) {
        if self.count == SPANS {
            return;
        }
        let start = region.start.addr().get();
        let at = self.spans[..self.count].partition_point(|span| span.start < start);
        self.spans.copy_within(at..self.count, at + 1);
        self.spans[at] = Span { start, end: start + region.size, zone };
        self.count += 1;
    }
}
