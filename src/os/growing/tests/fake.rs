//! A fake system in this process's memory that checks every call. It can behave like Linux, macOS or Windows, on any host.

use super::super::system::{Shift, System};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::vec;
use std::vec::Vec;

/// State of one unit of reserved addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Reserved,
    Committed,
}

/// A reserved range.
pub(super) struct Range {
    start: *mut u8,
    bytes: usize,
    states: Vec<State>,
}

/// State of the fake system.
#[derive(Default)]
pub(super) struct World {
    pub(super) ranges: Vec<Range>,
    pub(super) committed: usize,
    /// Maximum number of committed bytes; 0 means no limit.
    pub(super) limit: usize,
    /// The largest reservation attempted so far, in bytes.
    pub(super) asked: usize,
    /// Bytes of the machine's memory; 0 if unknown.
    pub(super) memory: u64,
    /// Limit of the process's address space in bytes; 0 means no limit.
    pub(super) space: usize,
    /// Whether the address space is used up.
    pub(super) full: bool,
    /// Whether purges fail.
    pub(super) broken: bool,
    /// Number of failed purges.
    pub(super) refusals: usize,
    pub(super) purged: usize,
    pub(super) shifts: usize,
    /// Whether moves without copying lose their target.
    pub(super) loses: bool,
    pub(super) clock: u64,
}

std::thread_local! {
    pub(super) static WORLD: RefCell<World> = RefCell::default();
}

/// Granularity of commits, in bytes.
const UNIT: usize = 64 * 1024;

/// Contents of reserved bytes, so that a commit detects earlier writes.
const UNTOUCHED: u8 = 0xa5;

impl World {
    /// Returns the range that holds all these bytes, and the offset of the first byte.
    fn range(&mut self, start: *mut u8, bytes: usize) -> (&mut Range, usize) {
        let holds = |range: &&mut Range| {
            let offset = start.addr().wrapping_sub(range.start.addr());
            offset < range.bytes && bytes <= range.bytes - offset
        };
        let range = self.ranges.iter_mut().find(holds).expect("the bytes are reserved");
        let offset = start.addr() - range.start.addr();
        (range, offset)
    }

    fn expect_committed(&mut self, start: *mut u8, bytes: usize) {
        let (range, offset) = self.range(start, bytes);
        let units = offset / UNIT..(offset + bytes).div_ceil(UNIT);
        assert!(range.states[units].iter().all(|&state| state == State::Committed));
    }
}

/// The fake system, with pages of `PAGE` bytes. `SHIFTS`: whether it can move memory without copying.
pub(super) struct Fake<const PAGE: usize, const SHIFTS: bool>;

// SAFETY: ranges come from the global allocator, and each commit and each purge zeroes them.
unsafe impl<const PAGE: usize, const SHIFTS: bool> System for Fake<PAGE, SHIFTS> {
    fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        assert_eq!(bytes % PAGE, 0);
        WORLD.with_borrow_mut(|world| world.asked = world.asked.max(bytes));
        if bytes > 64 << 20 || WORLD.with_borrow(|world| world.full) {
            return None;
        }
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { alloc(Layout::from_size_align(bytes, UNIT).unwrap()) })?;
        let start = block.as_ptr();
        // SAFETY: the block has that many bytes.
        unsafe { start.write_bytes(UNTOUCHED, bytes) };
        let states = vec![State::Reserved; bytes.div_ceil(UNIT)];
        WORLD.with_borrow_mut(|world| world.ranges.push(Range { start, bytes, states }));
        Some(block)
    }

    unsafe fn release(start: NonNull<u8>, bytes: usize) {
        WORLD.with_borrow_mut(|world| {
            let whole = |range: &Range| range.start == start.as_ptr() && range.bytes == bytes;
            let n = world.ranges.iter().position(whole).expect("a whole range is given back");
            let range = world.ranges.swap_remove(n);
            // SAFETY: the range was allocated with this layout.
            unsafe { dealloc(range.start, Layout::from_size_align(range.bytes, UNIT).unwrap()) };
        });
    }

    unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
        assert!(bytes > 0 && bytes % UNIT == 0);
        WORLD.with_borrow_mut(|world| {
            if world.limit > 0 && world.committed + bytes > world.limit {
                return false;
            }
            let (range, offset) = world.range(start, bytes);
            assert_eq!(offset % UNIT, 0);
            for state in &mut range.states[offset / UNIT..(offset + bytes) / UNIT] {
                assert_eq!(*state, State::Reserved, "memory is committed once");
                *state = State::Committed;
            }
            // SAFETY: the range has these bytes.
            unsafe {
                let untouched = core::slice::from_raw_parts(start, bytes);
                assert!(
                    untouched.iter().all(|&byte| byte == UNTOUCHED),
                    "written to before it was committed"
                );
                start.write_bytes(0, bytes);
            }
            world.committed += bytes;
            true
        })
    }

    unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
        assert!(bytes > 0 && bytes % PAGE == 0 && start.addr() % PAGE == 0);
        WORLD.with_borrow_mut(|world| {
            world.expect_committed(start, bytes);
            if world.broken {
                world.refusals += 1;
                return false;
            }
            world.purged += bytes;
            // SAFETY: the bytes are committed, and their contents are not needed.
            unsafe { start.write_bytes(0, bytes) };
            true
        })
    }

    unsafe fn shift(from: *mut u8, to: *mut u8, bytes: usize) -> Shift {
        assert!(bytes % PAGE == 0 && from.addr() % PAGE == 0 && to.addr() % PAGE == 0);
        if !SHIFTS {
            return Shift::Refused;
        }
        if WORLD.with_borrow(|world| world.loses) {
            return Shift::Lost;
        }
        WORLD.with_borrow_mut(|world| {
            world.expect_committed(from, bytes);
            world.expect_committed(to, bytes);
            world.shifts += 1;
        });
        assert!(from.addr().abs_diff(to.addr()) >= bytes, "the ranges overlap");
        // SAFETY: both ranges are committed and disjoint.
        unsafe {
            to.copy_from_nonoverlapping(from, bytes);
            from.write_bytes(0, bytes);
        }
        Shift::Moved
    }

    fn page() -> usize {
        PAGE
    }

    fn memory() -> u64 {
        WORLD.with_borrow(|world| world.memory)
    }

    fn address_space() -> usize {
        WORLD.with_borrow(|world| if world.space == 0 { usize::MAX } else { world.space })
    }

    fn now() -> u64 {
        WORLD.with_borrow_mut(|world| {
            world.clock += 100;
            world.clock
        })
    }
}

pub(super) type Linux = Fake<4096, true>;
pub(super) type MacOs = Fake<{ 16 * 1024 }, false>;
pub(super) type Windows = Fake<4096, false>;
