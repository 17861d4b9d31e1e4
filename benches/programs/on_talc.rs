//! The programs on talc 5 behind the lock that its documentation recommends.

use allotment_benches::programs::MEMORY_BYTES;
use spinning_top::RawSpinlock;
use talc::TalcLock;
use talc::source::Claim;

static mut MEMORY: [u8; MEMORY_BYTES] = [0; MEMORY_BYTES];

// SAFETY: the memory is used by this allocator alone.
#[global_allocator]
static TALC: TalcLock<RawSpinlock, Claim> = TalcLock::new(unsafe { Claim::array(&raw mut MEMORY) });

fn main() {
    allotment_benches::programs::main();
}
