//! The address space over time, as a grid of cells.

use serde::Serialize;

use super::place::Piece;

/// Cells of the grid, at most.
const COLUMNS: usize = 2048;
const ROWS: usize = 256;

/// The letters for 0 to 63, in the order of Base64 (RFC 4648).
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// How full each cell is: `cells` has one letter per cell, `A` for empty to `/` for full, rows of addresses from the
/// lowest on, each from the first event on.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Cells in the direction of time.
    pub columns: usize,
    /// Cells in the direction of addresses.
    pub rows: usize,
    /// The arena that they cover, in bytes.
    pub bytes: u64,
    /// One letter per cell.
    pub cells: String,
}

/// Sums up pieces. O(rows that they touch) each, and O(cells) at the end.
pub struct Grid {
    columns: usize,
    rows: usize,
    events: f64,
    bytes: f64,
    /// Byte-events in each cell.
    cells: Vec<f64>,
    /// The same for whole columns, as differences: a value counts from its column on, until a later one cancels it.
    whole: Vec<f64>,
}

impl Grid {
    /// Creates a grid for a trace of `events` events in an arena of `bytes` bytes with granules of `granule` bytes.
    pub fn new(events: usize, bytes: u64, granule: u64) -> Self {
        let columns = events.clamp(1, COLUMNS);
        let rows = usize::try_from(bytes / granule.max(1)).unwrap_or(ROWS).clamp(1, ROWS);
        let empty = vec![0.0; columns * rows];
        Self {
            columns,
            rows,
            events: events.max(1) as f64,
            bytes: bytes.max(1) as f64,
            cells: empty.clone(),
            whole: empty,
        }
    }

    /// Adds a piece.
    pub fn add(&mut self, piece: &Piece) {
        let time = |event: u32| f64::from(event) * self.columns as f64 / self.events;
        let (from, to) = (time(piece.from), time(piece.to).min(self.columns as f64));
        let place = |bytes: u64| (bytes as f64 * self.rows as f64 / self.bytes).min(self.rows as f64);
        let (low, high) = (place(piece.at), place(piece.at + piece.len));
        let (first, last) = (from as usize, (to.ceil() as usize).max(1) - 1);
        for row in low as usize..(high.ceil() as usize).min(self.rows) {
            let height = high.min(row as f64 + 1.0) - low.max(row as f64);
            let line = row * self.columns;
            if first >= last {
                if let Some(cell) = self.cells.get_mut(line + first.min(self.columns - 1)) {
                    *cell += height * (to - from);
                }
                continue;
            }
            self.cells[line + first] += height * (first as f64 + 1.0 - from);
            self.cells[line + last] += height * (to - last as f64);
            self.whole[line + first + 1] += height;
            self.whole[line + last] -= height;
        }
    }

    /// Returns the grid in letters.
    pub fn finish(self) -> Map {
        let mut cells = String::with_capacity(self.cells.len());
        for (parts, whole) in self.cells.chunks(self.columns).zip(self.whole.chunks(self.columns)) {
            let mut sum = 0.0;
            for (part, change) in parts.iter().zip(whole) {
                sum += change;
                let full = part + sum;
                // Cells that are nearly empty or nearly full stay distinguishable from empty and full ones.
                let level = match full {
                    full if full < 1e-9 => 0,
                    full if full > 1.0 - 1e-9 => 63,
                    full => 1 + (full * 62.0) as usize,
                };
                cells.push(char::from(LETTERS[level.min(63)]));
            }
        }
        Map { columns: self.columns, rows: self.rows, bytes: self.bytes as u64, cells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_as_full_as_their_memory() {
        let mut grid = Grid::new(4, 32, 8);
        let piece = |at, len, from, to| Piece { block: 0, at, len, from, to };
        // A whole row; a block for two events across two rows; a row for the last event.
        for piece in [piece(0, 8, 0, 4), piece(8, 16, 1, 3), piece(24, 8, 3, 4)] {
            grid.add(&piece);
        }
        let map = grid.finish();
        assert_eq!((map.columns, map.rows), (4, 4));
        assert_eq!(map.cells, "////A//AA//AAAA/");
    }

    #[test]
    fn parts_of_cells_add_up() {
        let mut grid = Grid::new(2 * COLUMNS, 16 * ROWS as u64, 8);
        grid.add(&Piece { block: 0, at: 8, len: 8, from: 1, to: 4 });
        let map = grid.finish();
        // Half of the row's bytes, for half of the first column's time and all of the second's.
        assert_eq!(&map.cells[..3], "QgA");
    }
}
