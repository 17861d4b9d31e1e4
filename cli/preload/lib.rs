//! The preload library of `allotment record`.
//!
//! Loaded into a program by `LD_PRELOAD`, or later by the tool (`allotment_attach` in `hooks`), it stands between the
//! program and its allocator: it passes on every call, and writes it down in a file that `allotment record` reads when the
//! program has ended. The environment says where: `ALLOTMENT_RECORD` is the beginning of the files' names; a process adds its
//! number and counts its program images, so that neither children nor `exec` write over each other
//! (`<beginning>.<pid>.<n>`). Without it, nothing is recorded.
//!
//! A file starts with a page of `head::Head`, then comes a trace in the binary form of
//! `allotment_event`, whose length the head says. It is mapped, not written, so that nothing is lost when
//! the program ends without a word, by `_exit`, a signal or `exec`.
//!
//! The file `<beginning>.control`, if there is one, is shared with the tool: it pauses the recording and limits the number of events.
//!
//! What makes this delicate, and where it is dealt with:
//!
//! * finding the real functions may allocate: `real` allocates for such calls from memory of its own;
//! * what the library itself does must not be recorded: a flag per thread, in `recorder`;
//! * events must be in an order that makes sense: a free is written down before it happens, an allocation after it, a
//!   reallocation under the lock;
//! * a walk through the frames of the caller (`stacks`) reads the program's memory by its own tables, without a lock and without memory;
//! * a sample costs nothing but a few instructions for each block that is not in it: `sample`;
//! * a fork must not copy a lock that another thread holds, and parent and child must not share a file: `recorder`.

#![cfg(target_os = "linux")]
// The tool's build aborts on a panic. Without the standard library, other C libraries than the compiler's load this one as well.
#![cfg_attr(panic = "abort", no_std)]

#[cfg(target_arch = "x86_64")]
mod cfi;
mod early;
mod head;
mod hooks;
mod jemalloc;
#[cfg(target_arch = "x86_64")]
mod lists;
mod modules;
mod real;
mod recorder;
#[cfg(target_arch = "x86_64")]
mod sample;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_sample.rs"]
mod sample;
#[cfg(target_arch = "x86_64")]
mod stacks;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_stacks.rs"]
mod stacks;
mod starts;
mod sys;
mod table;
mod tree;

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { sys::abort() }
}
