//! Reserved addresses, and the memory mapped there.

use crate::support::{Test, call, download, get, ok, upload};
use allotment_stand_in::Misuse;
use cudarc::driver::sys::{self, CUresult as Code};
use std::mem::zeroed;
use std::ptr;

/// Properties of physical memory on device 0.
fn prop() -> sys::CUmemAllocationProp {
    // SAFETY: a structure of numbers and pointers, all of which may be zero.
    let mut prop: sys::CUmemAllocationProp = unsafe { zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop
}

fn access() -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: prop().location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// `cuMemRelease`: "The memory allocation will be freed when all outstanding mappings to the memory are unmapped and when all
/// outstanding references to the handle (including its shareable counterparts) are also released."
#[test]
fn virtual_memory_is_mapped_in_pieces() {
    let test = Test::new();
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let piece: usize = get!(cuMemGetAllocationGranularity(&prop(), minimum));
    let mut place = 0;
    assert_eq!(call!(cuMemAddressReserve(&mut place, piece + 1, 0, 0, 0)), Code::CUDA_ERROR_INVALID_VALUE);
    let start: u64 = get!(cuMemAddressReserve(4 * piece, 0, 0, 0));
    let hint = start + 100 * piece as u64;
    assert_eq!(get!(cuMemAddressReserve(piece, 0, hint, 0)), hint, "a hint is taken");
    ok!(cuMemAddressFree(hint, piece));
    assert_eq!(test.0.live().bytes, 0);
    let handles = [(); 2].map(|()| {
        let handle: u64 = get!(cuMemCreate(piece, &prop(), 0));
        handle
    });
    assert_eq!(test.0.live().bytes, 2 * piece as u64);
    for (n, &handle) in handles.iter().enumerate() {
        ok!(cuMemMap(start + (n * piece) as u64, piece, 0, handle, 0));
    }
    assert_eq!(call!(cuMemMap(start, piece, 0, handles[0], 0)), Code::CUDA_ERROR_ALREADY_MAPPED);
    ok!(cuMemSetAccess(start, 2 * piece, &access(), 1));
    // Copy across the border of two pieces.
    let border = start + piece as u64 - 2;
    upload(border, b"abcd");
    assert_eq!(download(border, 4), b"abcd");
    ok!(cuMemRelease(handles[0]));
    assert_eq!(download(border, 4), b"abcd", "mapped memory stays");
    assert_eq!(call!(cuMemAddressFree(start, 4 * piece)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!(cuMemUnmap(start, 3 * piece)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(start, 2 * piece));
    assert_eq!(test.0.live().bytes, piece as u64);
    ok!(cuMemMap(start, piece, 0, handles[1], 0));
    assert_eq!(call!(cuMemsetD8_v2(start, 1, 1)), Code::CUDA_ERROR_ILLEGAL_ADDRESS, "access was not set");
    assert_eq!(test.0.misuse(Misuse::NoAccess), 1);
    assert_eq!(test.0.misuse(Misuse::StillMapped), 1);
}

#[test]
fn physical_memory_is_exported_as_a_file() {
    let test = Test::new();
    let mut prop = prop();
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.requestedHandleTypes = kind;
    let piece = 2 << 20;
    let start: u64 = get!(cuMemAddressReserve(2 * piece, 0, 0, 0));
    let ours: u64 = get!(cuMemCreate(piece, &prop, 0));
    let mut file = -1i32;
    ok!(cuMemExportToShareableHandle((&raw mut file).cast(), ours, kind, 0));
    let file_pointer = ptr::without_provenance_mut(file as usize);
    let theirs: u64 = get!(cuMemImportFromShareableHandle(file_pointer, kind));
    ok!(cuMemMap(start, piece, 0, ours, 0));
    ok!(cuMemMap(start + piece as u64, piece, 0, theirs, 0));
    ok!(cuMemSetAccess(start, 2 * piece, &access(), 1));
    upload(start + 5, b"shared");
    assert_eq!(download(start + piece as u64 + 5, 6), b"shared");
    // Mapped memory has handles as long as it is mapped.
    let at = |address: u64| ptr::without_provenance_mut(address as usize);
    let again: u64 = get!(cuMemRetainAllocationHandle(at(start + 5)));
    ok!(cuMemRelease(again));
    let mut place = 0;
    let beyond = start + 2 * piece as u64;
    assert_eq!(call!(cuMemRetainAllocationHandle(&mut place, at(beyond))), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(start, 2 * piece));
    ok!(cuMemRelease(ours));
    ok!(cuMemRelease(theirs));
    ok!(cuMemAddressFree(start, 2 * piece));
    // SAFETY: the export made this file, and nothing else has its number.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(file) });
    test.finish(&[]);
}
