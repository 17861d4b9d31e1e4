//! Converts the blocks of a host's recording to the sizes that a device with 32-bit pointers would request.

use super::thousands;

/// Bytes of the headers of `String` and `Vec` on a host.
const HEADER: usize = 24;
/// Longest block of words in bytes that is halved; longer blocks are taken for data, whose size does not depend on pointers.
const LONGEST: usize = 64;

/// The counts of requests halved by the assumption about pointers.
#[derive(Debug, Default)]
pub struct Halved {
    headers: [usize; 2],
    words: [usize; 2],
    other: usize,
}

impl Halved {
    /// Returns the size of a block on the device, and counts the request.
    pub fn size(&mut self, size: usize, align: usize) -> usize {
        let counted = match size {
            _ if align != 8 || !size.is_multiple_of(8) => None,
            _ if size.is_multiple_of(HEADER) => Some(&mut self.headers),
            _ if size <= LONGEST => Some(&mut self.words),
            _ => None,
        };
        let Some([requests, bytes]) = counted else {
            self.other += 1;
            return size;
        };
        *requests += 1;
        *bytes += size / 2;
        size / 2
    }

    /// Describes the assumption.
    pub fn say(&self) {
        let [headers, header_bytes] = self.headers.map(|number| thousands(number as u64));
        let [words, word_bytes] = self.words.map(|number| thousands(number as u64));
        say!(
            "allotment: pointers of 32 bits: of blocks aligned to 8, {headers} requests of multiples of {HEADER} B were taken for headers of \
             String and Vec and halved (by {header_bytes} B in all), {words} of other words of at most {LONGEST} B as well (by {word_bytes} \
             B); the other {} stay as they are",
            thousands(self.other as u64)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::Halved;

    #[test]
    fn headers_and_boxes_of_words_are_halved() {
        let mut halved = Halved::default();
        assert_eq!(halved.size(24, 8), 12);
        assert_eq!(halved.size(24 * 100, 8), 1200);
        assert_eq!(halved.size(16, 8), 8);
        for (size, align) in [(24, 1), (100, 8), (800, 8), (24, 16), (24, 4)] {
            assert_eq!(halved.size(size, align), size);
        }
        assert_eq!((halved.headers, halved.words, halved.other), ([2, 1212], [1, 8], 5));
    }
}
