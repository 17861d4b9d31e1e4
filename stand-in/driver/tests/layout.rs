//! Checks that the stand-in's numbers and layouts are those of cudarc, which are NVIDIA's.

#[allow(dead_code)]
#[path = "../src/abi.rs"]
mod abi;

use abi::Code;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};
use std::mem::{align_of, offset_of, size_of};

macro_rules! same {
    ($ours:ty, $theirs:ty $(, $our_field:ident = $their_field:ident)*) => {
        assert_eq!((size_of::<$ours>(), align_of::<$ours>()), (size_of::<$theirs>(), align_of::<$theirs>()));
        $(assert_eq!(offset_of!($ours, $our_field), offset_of!($theirs, $their_field));)*
    };
}

#[test]
fn structures_are_laid_out_alike() {
    same!(abi::Location, sys::CUmemLocation, kind = type_, id = id);
    same!(
        abi::AllocationProp,
        sys::CUmemAllocationProp,
        kind = type_,
        handle_types = requestedHandleTypes,
        location = location,
        windows = win32HandleMetaData,
        compression = allocFlags
    );
    same!(abi::AccessDesc, sys::CUmemAccessDesc, location = location, flags = flags);
    same!(
        abi::PoolProps,
        sys::CUmemPoolProps,
        kind = allocType,
        handle_types = handleTypes,
        location = location,
        max = maxSize,
        usage = usage,
        reserved = reserved
    );
    same!(abi::IpcHandle, sys::CUipcMemHandle);
    same!(abi::CopyAttributes, sys::CUmemcpyAttributes);
    same!(
        abi::Copy2d,
        sys::CUDA_MEMCPY2D,
        from_x = srcXInBytes,
        from_y = srcY,
        from_kind = srcMemoryType,
        from_host = srcHost,
        from_device = srcDevice,
        from_pitch = srcPitch,
        to_x = dstXInBytes,
        to_y = dstY,
        to_kind = dstMemoryType,
        to_host = dstHost,
        to_device = dstDevice,
        to_pitch = dstPitch,
        width = WidthInBytes,
        height = Height
    );
    assert_eq!(size_of::<sys::CUstream>(), size_of::<abi::Handle>());
    assert_eq!(size_of::<sys::CUmemGenericAllocationHandle>(), size_of::<abi::Handle>());
}

#[test]
fn attributes_have_the_right_numbers() {
    let names = [
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
        Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
        Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
        Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT,
        Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
        Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    ];
    assert_eq!(names.map(|name| name as u32), abi::ATTRIBUTES.map(|(number, _)| number));
}

#[test]
fn codes_have_the_right_numbers() {
    let codes = [
        (Code::INVALID_VALUE, CUresult::CUDA_ERROR_INVALID_VALUE),
        (Code::OUT_OF_MEMORY, CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        (Code::NOT_INITIALIZED, CUresult::CUDA_ERROR_NOT_INITIALIZED),
        (Code::NO_DEVICE, CUresult::CUDA_ERROR_NO_DEVICE),
        (Code::INVALID_DEVICE, CUresult::CUDA_ERROR_INVALID_DEVICE),
        (Code::INVALID_IMAGE, CUresult::CUDA_ERROR_INVALID_IMAGE),
        (Code::INVALID_CONTEXT, CUresult::CUDA_ERROR_INVALID_CONTEXT),
        (Code::ALREADY_MAPPED, CUresult::CUDA_ERROR_ALREADY_MAPPED),
        (Code::FILE_NOT_FOUND, CUresult::CUDA_ERROR_FILE_NOT_FOUND),
        (Code::OPERATING_SYSTEM, CUresult::CUDA_ERROR_OPERATING_SYSTEM),
        (Code::INVALID_HANDLE, CUresult::CUDA_ERROR_INVALID_HANDLE),
        (Code::NOT_FOUND, CUresult::CUDA_ERROR_NOT_FOUND),
        (Code::NOT_READY, CUresult::CUDA_ERROR_NOT_READY),
        (Code::ILLEGAL_ADDRESS, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        (Code::PEER_ACCESS_ALREADY_ENABLED, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
        (Code::PEER_ACCESS_NOT_ENABLED, CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
        (Code::ALREADY_REGISTERED, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
        (Code::NOT_REGISTERED, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        (Code::NOT_SUPPORTED, CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (Code::CAPTURE_UNSUPPORTED, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (Code::CAPTURE_INVALIDATED, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (Code::CAPTURE_UNMATCHED, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
        (Code::CAPTURED_EVENT, CUresult::CUDA_ERROR_CAPTURED_EVENT),
    ];
    for (ours, theirs) in codes {
        assert_eq!(ours.0, theirs as u32, "{theirs:?}");
    }
}
