//! Every driver call that a source makes fails once: nothing is leaked, nothing panics, and the error names the
//! call.

use crate::support::{on_system, stand_in};
use allotment::gpu::manager::{ManagerOptions, MemoryManager};
use allotment::gpu::{
    AsyncMemory, Buffer, Context, DeviceMemory, Error, Managed, MemoryKind, Pinned, Registered, Staging,
    Stream, Virtual, pinned_bytes,
};
use allotment::pool::{Event as _, PoolError, Source, Stream as _};
use include_dir::{Dir, File, include_dir};
use std::collections::BTreeSet;
use std::sync::Arc;

// Embedded in the program, which also runs on machines without the sources.
const SOURCES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/gpu");

/// Functions whose failure leaks what they would have freed; `cuStreamSynchronize` because memory that may be
/// in use is leaked rather than freed.
const GIVING_BACK: [&str; 12] = [
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuMemPoolDestroy",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuEventDestroy_v2",
    "cuDevicePrimaryCtxRelease_v2",
];

/// Uses a source like a pool does.
fn use_it<S: Source<Stream = Stream> + Send + Sync>(source: &S, context: &Context) -> Result<(), Error> {
    let (stream, other) = (Stream::new(context)?, Stream::default_of(context));
    source.capacity()?;
    let unit = source.granularity();
    let mut segment = source.reserve(unit, &stream)?;
    // A later failure must not lose the segment.
    let used = (|| {
        let event = stream.record()?;
        other.wait(&event)?;
        event.is_done()?;
        event.synchronize()?;
        other.is_capturing()?;
        if source.room(&segment) > segment.bytes {
            // SAFETY: the source has reserved the segment, in its current state.
            segment = unsafe { source.grow(segment, unit, &stream) }?;
        }
        let half = unit / 2;
        // SAFETY: both ranges are in the segment.
        unsafe { source.copy(segment.address.get(), segment.address.get() + half, half, &stream) }
    })();
    // SAFETY: reserved above and not used any more.
    let released = unsafe { source.release(segment, &stream) };
    used?;
    Ok(released?)
}

/// Makes the first, second, ... call of each function fail, until there are no more calls. `keeps` are further
/// functions whose failure may leak memory.
fn fails_cleanly(keeps: &[&str], scenario: impl Fn() -> Result<(), Error>) {
    fails_cleanly_but(&[], keeps, scenario);
}

/// The failure of the functions that are `replaced` changes nothing: others do what they should have.
fn fails_cleanly_but(replaced: &[&str], keeps: &[&str], scenario: impl Fn() -> Result<(), Error>) {
    if on_system() {
        return;
    }
    let functions = {
        let driver = stand_in().unwrap();
        scenario().unwrap();
        driver.assert_clean();
        functions().into_iter().filter(|name| name != "cuInit" && driver.calls(name) > 0).collect::<Vec<_>>()
    };
    assert!(functions.len() > 10, "{functions:?}");
    for name in functions.iter().map(String::as_str) {
        for nth in 1.. {
            let driver = stand_in().unwrap();
            let pinned = pinned_bytes();
            driver.fail(name, nth, 1, 999);
            let result = scenario();
            if driver.calls(name) < nth {
                result.unwrap();
                break;
            }
            let is_last = GIVING_BACK.contains(&name) || keeps.contains(&name);
            match result {
                // A drop cannot report an error.
                Ok(()) => {
                    let restores = [
                        "cuCtxGetCurrent",
                        "cuCtxSetCurrent",
                        "cuDevicePrimaryCtxGetState",
                        "cuThreadExchangeStreamCaptureMode",
                    ];
                    let is_replaced = restores.contains(&name) || replaced.contains(&name);
                    assert!(is_last || is_replaced, "{name} {nth}")
                }
                Err(Error::Call(error)) => {
                    assert_eq!(error.code, 999, "{name}");
                    assert!(name.starts_with(error.call), "{name}: {error}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
            driver.clear_failures();
            if !is_last && !name.starts_with("cuCtx") {
                driver.assert_clean();
                assert_eq!(pinned_bytes(), pinned, "{name}");
            }
        }
    }
}

/// Returns the functions that the library looks up before it calls any.
fn functions() -> BTreeSet<String> {
    let library = SOURCES.get_file("library.rs").and_then(File::contents_utf8).unwrap();
    let names = library.lines().filter_map(|line| line.strip_prefix("    fn cu")?.split_once('('));
    names.map(|(name, _)| format!("cu{name}")).collect()
}

#[test]
fn of_device_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        use_it(&DeviceMemory::new(&context), &context)
    });
}

#[test]
fn of_async_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        use_it(&AsyncMemory::new(&context)?, &context)
    });
}

#[test]
fn of_pinned_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        use_it(&Pinned::new(&context), &context)
    });
}

#[test]
fn of_managed_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        use_it(&Managed::new(&context)?, &context)
    });
}

#[test]
fn of_virtual_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        use_it(&Virtual::new(&context)?, &context)
    });
}

#[test]
fn of_registered_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        let registered = Registered::new(&context, vec![0; 4096])?;
        use_it(&registered, &context)
    });
}

#[test]
fn of_buffers() {
    // Without an event to order it, a segment is leaked rather than freed.
    let keeps = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize"];
    // The drop of a buffer asks whether the work of other streams is done, and waits for it without an answer.
    fails_cleanly_but(&["cuEventQuery"], &keeps, || {
        let context = Context::new(0)?;
        let memory = Arc::new(AsyncMemory::new(&context)?);
        let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
        let mut from = Buffer::from_slice(&memory, &[1u32, 2, 3], &stream)?;
        let mut to = Buffer::<u32>::zeros(&memory, 3, &other)?;
        to.as_view_mut().copy_from_view(&from.as_view())?;
        from.as_view_mut().copy_from_async(vec![4, 5, 6])?.wait()?;
        to.switch_to(&stream)?;
        assert_eq!(to.to_vec()?, [1, 2, 3]);
        Ok(())
    });
}

/// Extracts the error of a driver call, wherever it is reported.
fn call_of(error: Error) -> Error {
    match error {
        Error::Call(_) => error,
        Error::Pool(PoolError::Source(error)) => error.into(),
        Error::Pool(PoolError::OutOfMemory(full)) => full.source.expect("nothing is limited").into(),
        error => panic!("{error}"),
    }
}

#[test]
fn of_managers_and_batches() {
    // Pools give everything back, but without an event they cannot know when, so they query repeatedly.
    let keeps = [
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventSynchronize",
        "cuEventQuery",
        "cuStreamIsCapturing",
    ];
    fails_cleanly(&keeps, || {
        let context = Context::new(0)?;
        let made = MemoryManager::new(std::slice::from_ref(&context), ManagerOptions::default());
        let manager = made.map_err(call_of)?;
        let stream = manager.streams().next().unwrap();
        let mut staging = Staging::with_chunks(&context, 64 << 10, 2)?;
        let mut buffers = Vec::new();
        for placement in [MemoryKind::Device, MemoryKind::ReadMostly, MemoryKind::Pinned, MemoryKind::Host] {
            let request = manager.request().memory(placement);
            buffers.push(Buffer::from_slice(&request, &[1u8; 100], stream).map_err(call_of)?);
        }
        let mut batch = staging.batch(stream);
        for buffer in &mut buffers {
            batch.upload(buffer.slice_mut(..50).unwrap(), &[2; 50])?;
        }
        batch.finish()?;
        let mut back = [[0; 100]; 4];
        let mut batch = staging.batch(stream);
        for (buffer, back) in buffers.iter().zip(&mut back) {
            batch.download(buffer.as_view(), back)?;
        }
        batch.finish()?;
        assert!(back.iter().all(|back| back[..50] == [2; 50] && back[50..] == [1; 50]));
        drop(buffers);
        manager.cleanup();
        Ok(())
    });
}

#[test]
fn of_shared_memory() {
    fails_cleanly(&[], || {
        let context = Context::new(0)?;
        let stream = Stream::new(&context)?;
        let source = Arc::new(Virtual::shareable(&context)?);
        let made = Buffer::from_slice(&source, &[1u32, 2, 3], &stream);
        let buffer = made?;
        // SAFETY: the memory holds these values, and the stream is the same.
        let mut mapped = unsafe { Buffer::<u32>::map(&buffer.share()?, &stream) }?;
        mapped.slice_mut(..1).unwrap().copy_from(&[4])?;
        assert_eq!(buffer.to_vec()?, [4, 2, 3]);
        Ok(())
    });
}

/// cudarc panics if a function is missing, and its results are of a type that lacks the codes of newer drivers, so every
/// function is looked up here and called by what was found.
#[test]
fn every_function_that_is_called_is_looked_up() {
    let (mut called, mut by_cudarc) = (BTreeSet::new(), Vec::new());
    let mut folders = vec![&SOURCES];
    while let Some(folder) = folders.pop() {
        folders.extend(folder.dirs());
        for text in folder.files().filter_map(File::contents_utf8) {
            let name = |part: &str| -> String {
                part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
            };
            let names = |before: &str| text.split(before).skip(1).map(name).collect::<Vec<_>>();
            let calls = names("call!(").into_iter().chain(names("code_of!("));
            called.extend(calls.filter(|name| name.starts_with("cu")));
            by_cudarc.extend(names("sys::").into_iter().filter(|name| name.starts_with("cu")));
        }
    }
    assert_eq!(called, functions());
    assert_eq!(by_cudarc, Vec::<String>::new());
}
