"""Makes PyTorch allocate device memory from allotment's pools.

    import allotment_torch
    allotment_torch.install("target/release/liballotment.so")

The library is `allotment-capi`, built with the feature `gpu`. PyTorch takes another allocator only before its first use of a device.
"""

import ctypes

# PyTorch's hooks, and the functions of the library that have the types which it declares for them.
HOOKS = {
    "set_record_stream_fn": "allotment_torch_record_stream",  # Tensor.record_stream
    "set_reset_fn": "allotment_torch_reset",  # torch.cuda.empty_cache
    "set_memory_fraction_fn": "allotment_torch_memory_fraction",  # torch.cuda.set_per_process_memory_fraction
    "set_base_alloc_fn": "allotment_torch_base",  # tensors that are sent to other processes
    "set_begin_allocate_to_pool": "allotment_torch_begin_allocate_to_pool",  # torch.cuda.graph
    "set_end_allocate_to_pool_fn": "allotment_torch_end_allocate_to_pool",
    "set_release_pool": "allotment_torch_release_pool",
}

# Without it a freed block is allocated again while another stream still uses it.
REQUIRED = "set_record_stream_fn"


def allocator(library):
    """Returns a `CUDAPluggableAllocator` over the library at this path, with all hooks that this version of PyTorch has."""
    from torch.cuda.memory import CUDAPluggableAllocator

    functions = ctypes.CDLL(str(library))
    allocator = CUDAPluggableAllocator(str(library), "allotment_torch_malloc", "allotment_torch_free")
    hooks = allocator.allocator()
    for hook, function in HOOKS.items():
        set_hook = getattr(hooks, hook, None)
        if set_hook is not None:
            set_hook(ctypes.cast(getattr(functions, function), ctypes.c_void_p).value)
        elif hook == REQUIRED:
            raise RuntimeError(f"this version of PyTorch has no {hook}: its streams would not be safe with a pool")
    return allocator


def install(library):
    """Makes the library at this path the allocator of device memory, and returns it."""
    from torch.cuda.memory import change_current_allocator

    installed = allocator(library)
    change_current_allocator(installed)
    return installed
