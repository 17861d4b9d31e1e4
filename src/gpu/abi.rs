//! Structures of the driver's interface whose field names, but not layouts, differ between versions of cudarc.

#![forbid(unsafe_code)]

use core::ptr;
use cudarc::driver::sys;
use std::ffi::c_void;

/// A memory location: a device or the host.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Place {
    kind: u32,
    id: i32,
}

impl Place {
    pub(super) const fn device(ordinal: i32) -> Self {
        Self { kind: 1, id: ordinal }
    }

    const NOWHERE: Self = Self { kind: 0, id: 0 };

    pub(super) const HOST: Self = Self { kind: 2, id: 0 };
}

/// `CUmemcpyAttributes`: how the driver performs the copies of a batch.
#[repr(C)]
pub(super) struct CopyAttributes {
    /// When the source is read; 1 means in stream order.
    order: u32,
    /// Location hints; only managed memory needs them.
    from: Place,
    to: Place,
    flags: u32,
}

impl CopyAttributes {
    pub(super) const IN_ORDER: Self = Self { order: 1, from: Place::NOWHERE, to: Place::NOWHERE, flags: 0 };
}

/// `CUmemAllocationProp`: physical memory of a device.
#[repr(C)]
pub(super) struct AllocationProp {
    kind: u32,
    handle_types: u32,
    place: Place,
    windows: *mut c_void,
    flags: u64,
}

/// Ordinary ("pinned") device memory, the only kind that every driver version knows.
const PINNED: u32 = 1;

impl AllocationProp {
    /// Makes the properties of memory on a device; `shareable` allows its export as file descriptors.
    pub(super) const fn on(ordinal: i32, shareable: bool) -> Self {
        let place = Place::device(ordinal);
        // A handle type of 1 stands for POSIX file descriptors.
        Self { kind: PINNED, handle_types: shareable as u32, place, windows: ptr::null_mut(), flags: 0 }
    }
}

/// `CUmemAccessDesc`: the access rights of a device.
#[repr(C)]
pub(super) struct AccessDesc {
    place: Place,
    flags: u32,
}

impl AccessDesc {
    /// Lets a device read and write.
    pub(super) const fn full(ordinal: i32) -> Self {
        Self { place: Place::device(ordinal), flags: 3 }
    }
}

/// `CUmemPoolProps`: a memory pool of a device.
#[repr(C)]
pub(super) struct PoolProps {
    kind: u32,
    handle_types: u32,
    place: Place,
    windows: *mut c_void,
    reserved: [u64; 8],
}

impl PoolProps {
    pub(super) const fn on(ordinal: i32) -> Self {
        let place = Place::device(ordinal);
        Self { kind: PINNED, handle_types: 0, place, windows: ptr::null_mut(), reserved: [0; 8] }
    }
}

const _: () = {
    assert!(size_of::<AllocationProp>() == size_of::<sys::CUmemAllocationProp>());
    assert!(size_of::<AccessDesc>() == size_of::<sys::CUmemAccessDesc>());
    assert!(size_of::<PoolProps>() == size_of::<sys::CUmemPoolProps>());
    assert!(size_of::<Place>() == size_of::<sys::CUmemLocation>());
};
