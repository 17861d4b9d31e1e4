//! A CUDA driver over host memory, for tests on machines without a GPU.
//!
//! A test loads it by its path, before anything else asks for `libcuda.so`; since that is the name it goes by, every
//! later request for the driver finds it. The crate `allotment-stand-in` does so, and calls what `control` exports.
//!
//! ```text
//!  abi       types and numbers of the C interface
//!  call      the way of every call: count it, fail it if a test asked, do it, run what is ready, wait
//!  driver    all state, behind one lock; handles that notice use after destruction
//!  device  context  module  kernel  graph     what their names say
//!  memory/   address space, and the kinds of memory: device, pools, host, managed, virtual, between processes
//!  stream    queues of work, and in which order it may run;  event  marks in them;  work  what a piece does
//!  copy      copies and fills, which are pieces of work
//!  control   what tests call: hold and step streams, inject errors, read the accounts of leaks and misuse
//! ```
//!
//! Device memory has addresses that no process can have, so that reading it by mistake ends the process. Physical
//! memory is only counted against a device's capacity: there is no fragmentation below the page, as on a real device.
//!
//! What differs from a real driver: a stream that is not held runs its work when it is given; the default stream per
//! thread is the legacy default stream; a memory pool keeps bytes, not blocks; kernels are those of `kernel`.

mod abi;
mod call;
mod context;
mod control;
mod copy;
mod device;
mod driver;
mod event;
mod graph;
mod kernel;
mod memory;
mod misuse;
mod module;
mod stream;
mod work;
