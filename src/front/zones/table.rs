//! A table that finds the zone of an address.

#![forbid(unsafe_code)]

use super::Zone;
use crate::region::Region;
use core::ptr::NonNull;
use heapless::Vec;

/// A region and the index of its zone.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    zone: usize,
}

/// The regions of all zones by address, up to `SPANS` of them.
pub(super) struct Table<const SPANS: usize>(Vec<Span, SPANS>);

impl<const SPANS: usize> Table<SPANS> {
    pub(super) const EMPTY: Self = Self(Vec::new());

    /// Returns the zone whose region contains `address`, as far as the table knows. O(log regions).
    pub(super) fn find(&self, address: NonNull<u8>) -> Option<usize> {
        let address = address.addr().get();
        let after = self.0.partition_point(|span| span.start <= address);
        let span = self.0.get(after.checked_sub(1)?)?;
        (address < span.end).then_some(span.zone)
    }

    /// Creates the table of the zones' current regions, without those for which it has no room. O(regions²).
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
        let start = region.start.addr().get();
        let at = self.0.partition_point(|span| span.start < start);
        // Ignore the error if there is no room.
        let _ = self.0.insert(at, Span { start, end: region.end(), zone });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::without_provenance_mut;

    fn at(address: usize) -> NonNull<u8> {
        NonNull::new(without_provenance_mut(address)).unwrap()
    }

    /// Regions in any order, with adjacent borders and with gaps.
    #[test]
    fn every_address_is_found_where_it_is() {
        let regions =
            [(0x5000, 0x100, 2), (0x1000, 0x10, 0), (0x1010, 0x20, 1), (0x9000, 1, 0), (0x3000, 0x800, 3)];
        let mut table = Table::<5>::EMPTY;
        assert_eq!(table.find(at(0x1000)), None);
        for (start, size, zone) in regions {
            table.enter(Region::new(at(start), size), zone);
        }
        for address in 0xff0..0x9010 {
            let holds =
                |&&(start, size, _): &&(usize, usize, usize)| (start..start + size).contains(&address);
            let expected = regions.iter().find(holds).map(|region| region.2);
            assert_eq!(table.find(at(address)), expected, "{address:#x}");
        }
        // Regions that exceed the table are left out, and the others stay.
        table.enter(Region::new(at(0x100), 0x100), 4);
        assert_eq!((table.find(at(0x100)), table.find(at(0x5000))), (None, Some(2)));
    }
}
