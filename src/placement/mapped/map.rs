//! [`RegionMap`]: a record, in words beside one region, of its free granules.

use crate::error::FreeError;

/// Records which granules of one region are free, in words of 32 bits beside them, and chooses the granules for each request.
///
/// A map never touches the memory that it divides, so it also works for memory that the CPU cannot access, and a stray write into free
/// memory cannot damage it. Indices count granules from the start of the region.
///
/// # Safety
///
/// Live blocks must not overlap, must lie in the region, and must have [`RegionMap::granted`] granules. A block's index plus
/// the region's place must be a multiple of the requested alignment.
pub unsafe trait RegionMap: Copy {
    /// A request, in the form that the map needs.
    type Shape: Copy;

    /// A map without a region: every request fails.
    const EMPTY: Self;

    /// The longest region in granules.
    const MAX_LEN: usize;

    /// Whether a region without live blocks may be allocated whole, with the memory of its map, to a request too large for any block.
    const WHOLE: bool;

    /// Whether [`RegionMap::granted`] returns the requested length for every alignment, and blocks may be cut and freed in parts.
    const EXACT: bool;

    /// Whether a block that shrinks may move to a shorter free block: see [`RegionMap::has_shorter`].
    const MOVES_TO_SHRINK: bool;

    /// Returns the number of granules of the region, or 0 if there is none.
    fn granules(&self) -> usize;

    /// Returns how many words a map of `len` granules takes. `place` is the first granule's address divided by the granule.
    fn words(place: usize, len: usize) -> usize;

    /// Opens a map of `len` free granules in `words`. O(words).
    ///
    /// # Safety
    ///
    /// There must be [`RegionMap::words`] words, which nothing else uses as long as the map does. `len` must be from 1 to
    /// [`RegionMap::MAX_LEN`].
    unsafe fn open(&mut self, words: *mut u32, place: usize, len: usize);

    /// Closes the map, which then equals [`RegionMap::EMPTY`]. O(1).
    fn close(&mut self) {
        *self = Self::EMPTY;
    }

    /// Lengthens the region to `len` granules, the new ones free, and moves the map to `words`. They may overlap the old words if they
    /// start after them. O(words).
    ///
    /// # Safety
    ///
    /// The contract of [`RegionMap::open`]; the map must be open, with the same place and fewer granules.
    unsafe fn extend(&mut self, words: *mut u32, len: usize);

    /// Returns the shape of a request for `len` granules, at least one, at a multiple of `align` granules, which is a power of two. O(1).
    fn shape(len: usize, align: usize) -> Self::Shape;

    /// Returns how many granules a request gets. O(1).
    fn granted(shape: Self::Shape) -> usize;

    /// Allocates a block, and returns its index.
    fn allocate(&mut self, shape: Self::Shape) -> Option<usize>;

    /// Checks whether a live block of this shape starts at `index`. Any index and shape are valid.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if there is no such block.
    fn check(&self, index: usize, shape: Self::Shape) -> Result<(), FreeError>;

    /// Frees the block of this shape at `index`, and returns the granules that become available.
    ///
    /// # Errors
    ///
    /// Any [`FreeError`], with nothing changed, if [`RegionMap::check`] fails.
    fn free(&mut self, index: usize, shape: Self::Shape) -> Result<usize, FreeError>;

    /// Changes the shape of the live block at `index`, and returns the granules that it then counts for. Returns `None`, with nothing
    /// changed, if that is impossible or there is no such block.
    fn resize(&mut self, index: usize, old: Self::Shape, new: Self::Shape) -> Option<usize>;

    /// Returns whether [`RegionMap::allocate`] finds a block of shape `new`, to which one of shape `old` is to shrink, in free memory
    /// shorter than the old block. Called only with [`RegionMap::MOVES_TO_SHRINK`].
    fn has_shorter(&self, old: Self::Shape, new: Self::Shape) -> bool;

    /// Returns whether all granules are free. O(log n).
    fn is_free(&self) -> bool;

    /// Returns the most granules that a request with natural alignment can get now, short of a whole region. O(1).
    fn largest(&self) -> usize;

    /// Passes the free and used runs to `visit`, in address order and without gaps, as first granule, length and whether the run is free,
    /// until `visit` returns false. O(words).
    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool);
}
