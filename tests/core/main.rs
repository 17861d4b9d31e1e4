//! The library's tests that need no process of their own, in one program.
//!
//! Apart from it are those with a global allocator of their own (`global`, `cached_global`, `observed_global`), those of
//! plans and pools, which share nothing with these, and `gpu`, which loads a driver.

#[macro_use]
mod shadow;
mod slabs;

#[path = "../again/mod.rs"]
mod again;
mod arena;
mod blocks;
#[cfg(feature = "spin")]
mod bounded;
mod bounds;
mod buddies;
#[cfg(all(feature = "std", unix, panic = "unwind"))]
#[path = "../child/mod.rs"]
mod child;
#[cfg(feature = "spin")]
mod compositions;
#[cfg(feature = "spin")]
mod cores;
mod edges;
mod fits;
#[cfg(all(feature = "std", target_os = "linux"))]
#[path = "../forked/mod.rs"]
mod forked;
#[cfg(any(feature = "critical-section", feature = "spin"))]
mod heap;
mod kept;
#[cfg(any(feature = "critical-section", feature = "spin", feature = "lock_api"))]
mod locks;
mod misuse;
#[cfg(feature = "std")]
mod numa;
#[cfg(feature = "spin")]
mod observe;
#[cfg(feature = "std")]
mod os_pressure;
#[cfg(feature = "spin")]
mod pressure;
mod random;
mod regions;
mod sampled;
#[cfg(feature = "spin")]
mod seal;
#[cfg(all(feature = "spin", target_os = "linux"))]
mod statics;
mod texts;
#[cfg(feature = "std")]
mod threads;
mod tiered;
#[cfg(all(feature = "allocator-api2", feature = "spin"))]
mod tiny;
mod traces;
mod zeroed;
#[cfg(feature = "spin")]
mod zones;
