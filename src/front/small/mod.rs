//! Small blocks in the lists of threads and cores: their size classes, and the links of free ones.

#[cfg_attr(not(all(feature = "std", any(unix, windows))), allow(dead_code))]
// Only the growing heap uses all of it.
mod block;
#[cfg_attr(not(all(feature = "std", any(unix, windows))), allow(dead_code))] // As above.
mod classes;

pub(crate) use block::{Block, Chain};
#[cfg(all(feature = "std", test))]
pub(crate) use classes::LARGEST_ALIGN;
#[cfg(feature = "std")]
pub(crate) use classes::{CLASSES, TABLED_CLASSES};
#[cfg(all(feature = "std", any(unix, windows)))]
pub(crate) use classes::{LARGEST, SMALLEST, class_of, class_of_layout};
pub(crate) use classes::{SIZES, layout_of, longest_within, tabled_class_of};
