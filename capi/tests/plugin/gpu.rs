//! A library that leaves something to a driver or to another library, which a program loads and closes.

use core::ffi::c_void;
use core::mem;
use core::pin::Pin;
use core::task::{Context as Task, Waker};
use heap::gpu::share::DlTensor;
use heap::gpu::{Buffer, Context, DeviceMemory, Error, HostMemory, Pool, Stream};
use heap::pool::PoolOptions;

fn address(made: Result<*mut c_void, Error>) -> *mut c_void {
    made.inspect_err(|error| eprintln!("{error}")).unwrap_or_default()
}

/// Leaves nothing. Returns the address of this function.
#[unsafe(no_mangle)]
pub extern "C" fn nothing(_: usize) -> *mut c_void {
    (nothing as *const c_void).cast_mut()
}

/// Makes a tensor of so many bytes for another library. Returns it, or null after an error.
#[unsafe(no_mangle)]
pub extern "C" fn tensor(count: usize) -> *mut c_void {
    let make = || {
        let pool = Pool::new(HostMemory::new(1 << 20), PoolOptions::new())?;
        let buffer = Buffer::<u8>::zeros(&pool, count, &Stream::host())?;
        Ok(DlTensor::new(buffer, &[count])?.into_raw())
    };
    address(make())
}

/// Lets a task wait for a copy that is under way. Returns an address, or null after an error.
#[unsafe(no_mangle)]
pub extern "C" fn transfer(count: usize) -> *mut c_void {
    let make = || {
        let context = Context::new(0)?;
        let stream = Stream::new(&context)?;
        let pool = Pool::new(DeviceMemory::new(&context), PoolOptions::new())?;
        let mut buffer = Buffer::<u8>::zeros(&pool, count, &stream)?;
        let mut transfer = buffer.as_view_mut().copy_from_async(vec![0; count])?;
        let polled = Pin::new(&mut transfer).poll(&mut Task::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the copy is under way");
        // The driver has not come to the end of it when the library is closed.
        mem::forget((transfer, buffer));
        Ok((self::transfer as *const c_void).cast_mut())
    };
    address(make())
}
