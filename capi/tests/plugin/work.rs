/// Uses the heap. Returns an address, or null if something is wrong.
#[unsafe(no_mangle)]
pub extern "C" fn work(count: usize) -> *mut core::ffi::c_void {
    let boxes: Vec<Box<usize>> = (0..count).map(Box::new).collect();
    let sum: usize = boxes.iter().map(|value| **value).sum();
    if 2 * sum == count * (count - 1) { (&raw const HEAP).cast_mut().cast() } else { core::ptr::null_mut() }
}
