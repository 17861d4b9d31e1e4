//! Capture of streams into graphs, which are work in a fixed order.

use crate::abi::{Code, Handle, Out, Outcome};
use crate::call::exports;
use crate::driver::Driver;
use crate::work::Work;
use std::cell::Cell;

/// A capture in progress.
pub struct Capture {
    /// The stream that began it.
    origin: Handle,
    context: Handle,
    mode: u32,
    /// Whether a forbidden call was made during the capture.
    invalid: bool,
    pub work: Vec<Work>,
}

pub struct Graph {
    work: Vec<Work>,
}

pub struct Executable {
    work: Vec<Work>,
}

/// The capture mode in which calls that cannot be captured are allowed.
const RELAXED: u32 = 2;

thread_local! {
    /// The capture mode of this thread, initially global.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// Sets the calling thread's capture mode, and returns the old one through the same pointer.
pub fn exchange_mode(mode: Out<u32>) -> Outcome {
    let new = mode.replace(MODE.get())?;
    if new > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    MODE.set(new);
    Ok(())
}

pub fn begin(driver: &mut Driver, stream: Handle, mode: u32) -> Outcome {
    let stream = driver.stream(stream)?;
    let found = driver.streams.find(stream, &mut driver.misuse)?;
    let context = found.context;
    let is_default = driver.contexts.get(context).is_some_and(|context| context.default_stream == stream);
    if is_default {
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    if found.capture.is_some() {
        return Err(Code::INVALID_VALUE);
    }
    let capture = Capture { origin: stream, context, mode, invalid: false, work: Vec::new() };
    let capture = driver.captures.insert(capture);
    driver.streams.find(stream, &mut driver.misuse)?.capture = Some(capture);
    Ok(())
}

/// The capture status of a stream, and its capture.
pub fn status(driver: &Driver, stream: Handle) -> (u32, Handle) {
    let capture = driver.streams.get(stream).and_then(|stream| stream.capture);
    let found = capture.and_then(|handle| Some((handle, driver.captures.get(handle)?)));
    found.map_or((0, 0), |(handle, capture)| (if capture.invalid { 2 } else { 1 }, handle))
}

/// Adds a stream to a capture, because it waits for an event of that capture.
pub fn join(driver: &mut Driver, stream: Handle, capture: Handle) -> Outcome {
    if driver.captures.get(capture).is_none() {
        return Err(Code::CAPTURED_EVENT);
    }
    driver.streams.find(stream, &mut driver.misuse)?.capture = Some(capture);
    Ok(())
}

pub fn end(driver: &mut Driver, stream: Handle, graph: Out<Handle>) -> Outcome {
    let stream = driver.stream(stream)?;
    let handle = driver.streams.find(stream, &mut driver.misuse)?.capture.ok_or(Code::INVALID_VALUE)?;
    if driver.captures.find(handle, &mut driver.misuse)?.origin != stream {
        return Err(Code::CAPTURE_UNMATCHED);
    }
    for (_, stream) in driver.streams.iter_mut() {
        stream.capture = stream.capture.filter(|&capture| capture != handle);
    }
    let capture = driver.captures.remove(handle, &mut driver.misuse)?;
    if capture.invalid {
        graph.set(0)?;
        return Err(Code::CAPTURE_INVALIDATED);
    }
    let handle = driver.graphs.insert(Graph { work: capture.work });
    graph.set(handle)
}

impl Driver {
    /// Refuses a call that cannot be captured, and invalidates the capture, as the real driver does.
    pub fn refuse_in_capture(&mut self, context: Handle, call: &str) -> Outcome {
        let mut refused = false;
        for (_, capture) in self.captures.iter_mut() {
            if capture.context == context && capture.mode != RELAXED && MODE.get() != RELAXED {
                capture.invalid = true;
                refused = true;
            }
        }
        if refused {
            self.forbidden(format!("{call} was called while a stream captures"));
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// Refuses calls of the thread's context that cannot be captured.
    pub fn outside_capture(&mut self, call: &str) -> Outcome<Handle> {
        let context = self.current()?;
        self.refuse_in_capture(context, call)?;
        Ok(context)
    }
}

exports! {
    fn cuGraphInstantiateWithFlags(driver, executable: Out<Handle>, graph: Handle, _flags: u64) {
        let work = driver.graphs.find(graph, &mut driver.misuse)?.work.clone();
        executable.set(driver.executables.insert(Executable { work }))
    }

    fn cuGraphLaunch(driver, executable: Handle, stream: Handle) {
        let stream = driver.stream(stream)?;
        let work = driver.executables.find(executable, &mut driver.misuse)?.work.clone();
        for piece in work {
            driver.submit(stream, piece, Vec::new())?;
        }
        Ok(())
    }

    fn cuGraphUpload(driver, executable: Handle, stream: Handle) {
        driver.stream(stream)?;
        driver.executables.find(executable, &mut driver.misuse).map(drop)
    }

    fn cuGraphDestroy(driver, graph: Handle) {
        driver.graphs.remove(graph, &mut driver.misuse).map(drop)
    }

    fn cuGraphExecDestroy(driver, executable: Handle) {
        driver.executables.remove(executable, &mut driver.misuse).map(drop)
    }
}
