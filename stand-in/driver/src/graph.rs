//! Capture of streams into graphs, which are work in a fixed order.

use crate::abi::{Code, Handle, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::capture::{Capture, Executable, Graph, Point};
use crate::state::stream::Stream;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread;

/// Capture modes: calls that cannot be captured are forbidden to all threads, to the capturing thread, to none.
const GLOBAL: u32 = 0;
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
    if mode > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    let thread = thread::current().id();
    let capture =
        Capture { origin: stream, thread, mode, invalid: false, work: Vec::new(), joined: BTreeMap::new() };
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

/// Makes a capture fail at its end.
pub fn invalidate(driver: &mut Driver, capture: Handle) {
    if let Some(capture) = driver.captures.get_mut(capture) {
        capture.invalid = true;
    }
}

/// Adds a stream to a capture, because it waits for an event of that capture.
///
/// Programming guide: "It is invalid to merge two separate capture graphs by waiting on a captured event from a stream which
/// is being captured and is associated with a different capture graph than the event."
pub fn join(driver: &mut Driver, stream: Handle, point: Point) -> Outcome {
    let Point { capture, stream: from, position } = point;
    let Some(found) = driver.captures.get_mut(capture) else { return Err(Code::CAPTURED_EVENT) };
    let joins_work = from != found.origin && from != stream;
    let own = driver.streams.find(stream, &mut driver.misuse)?;
    if let Some(other) = own.capture.filter(|&other| other != capture) {
        invalidate(driver, capture);
        invalidate(driver, other);
        driver.forbidden("two captures were merged".into());
        return Err(Code::CAPTURE_MERGE);
    }
    own.capture = Some(capture);
    own.captured_work += u64::from(joins_work);
    if joins_work {
        let joined = found.joined.entry(from).or_default();
        *joined = position.max(*joined);
    }
    Ok(())
}

pub fn end(driver: &mut Driver, stream: Handle, graph: Out<Handle>) -> Outcome {
    let stream = driver.stream(stream)?;
    let handle = driver.streams.find(stream, &mut driver.misuse)?.capture.ok_or(Code::INVALID_VALUE)?;
    if driver.captures.find(handle, &mut driver.misuse)?.origin != stream {
        return Err(Code::CAPTURE_UNMATCHED);
    }
    // Documentation of `cuStreamEndCapture`: "If the mode argument to cuStreamBeginCapture was not
    // CU_STREAM_CAPTURE_MODE_RELAXED, this call must be from the same thread as cuStreamBeginCapture."
    let capture = driver.captures.find(handle, &mut driver.misuse)?;
    if capture.mode != RELAXED && capture.thread != thread::current().id() {
        return Err(Code::CAPTURE_WRONG_THREAD);
    }
    let capture = driver.captures.remove(handle, &mut driver.misuse)?;
    let mut unjoined = false;
    for (other, found) in driver.streams.iter_mut().filter(|(_, found)| found.capture == Some(handle)) {
        unjoined |= other != stream && found.captured_work > capture.joined.get(&other).copied().unwrap_or(0);
        (found.capture, found.captured_work) = (None, 0);
    }
    if capture.invalid {
        graph.set(0)?;
        return Err(Code::CAPTURE_INVALIDATED);
    }
    // Error 904: "The capture sequence contains a fork that was not joined to the primary stream."
    if unjoined {
        graph.set(0)?;
        return Err(Code::CAPTURE_UNJOINED);
    }
    let handle = driver.graphs.insert(Graph { work: capture.work });
    graph.set(handle)
}

impl Driver {
    /// Refuses a potentially unsafe call, and invalidates the captures that forbid it.
    ///
    /// Documentation of `cuThreadExchangeStreamCaptureMode`: "`GLOBAL`: If the local thread has an ongoing capture
    /// sequence that was not initiated with `RELAXED` at `cuStreamBeginCapture`, or if any other thread has a
    /// concurrent capture sequence initiated with `GLOBAL`, this thread is prohibited from potentially unsafe API
    /// calls. `THREAD_LOCAL`: If the local thread has an ongoing capture sequence not initiated with `RELAXED`, it
    /// is prohibited from potentially unsafe API calls. Concurrent capture sequences in other threads are ignored.
    /// `RELAXED`: The local thread is not prohibited from potentially unsafe API calls."
    pub fn refuse_in_capture(&mut self, call: &str) -> Outcome {
        let (mode, thread) = (MODE.get(), thread::current().id());
        let mut refused = false;
        for (_, capture) in self.captures.iter_mut() {
            let own = capture.thread == thread && capture.mode != RELAXED;
            let other = capture.thread != thread && capture.mode == GLOBAL && mode == GLOBAL;
            if mode != RELAXED && (own || other) {
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

    /// Refuses potentially unsafe calls that need a context.
    pub fn outside_capture(&mut self, call: &str) -> Outcome<Handle> {
        let context = self.current()?;
        self.refuse_in_capture(call)?;
        Ok(context)
    }

    /// Refuses an allocation or a free in stream order while another stream captures. One of a stream that captures is a part of its
    /// graph.
    pub fn refuse_outside_graph(&mut self, call: &str, stream: Handle) -> Outcome {
        let stream = self.stream(stream)?;
        if self.streams.get(stream).is_some_and(|stream| stream.capture.is_some()) {
            return Ok(());
        }
        self.refuse_in_capture(call)
    }

    /// Refuses a call on streams whose work is being captured, in every mode, and invalidates the capture.
    ///
    /// Documentation of `cuThreadExchangeStreamCaptureMode`, on `RELAXED`: "Note that the thread is still prohibited
    /// from API calls which necessarily conflict with stream capture".
    pub fn refuse_of_captured(&mut self, streams: &[Handle], call: &str) -> Outcome {
        let captured: Vec<Handle> =
            streams.iter().filter_map(|&stream| self.streams.get(stream)?.capture).collect();
        for &capture in &captured {
            if let Some(capture) = self.captures.get_mut(capture) {
                capture.invalid = true;
            }
        }
        if captured.is_empty() {
            return Ok(());
        }
        self.forbidden(format!("{call} was called for a stream that captures"));
        Err(Code::CAPTURE_UNSUPPORTED)
    }

    /// Refuses work of the legacy stream while a blocking stream of its context captures, and invalidates that capture.
    ///
    /// Programming guide: "When any stream in the same context is being captured, and it was not created with
    /// cudaStreamNonBlocking, any attempted use of the legacy stream is invalid. ... When an invalid operation is attempted
    /// during stream capture, any associated capture graphs are invalidated."
    pub fn refuse_work_of_legacy(&mut self, stream: Handle) -> Outcome {
        let refused = self.refuse_legacy(stream);
        if refused.is_err() {
            let captures: Vec<Handle> = self
                .streams
                .iter()
                .filter(|(_, other)| other.blocking)
                .filter_map(|(_, other)| other.capture)
                .collect();
            captures.into_iter().for_each(|capture| invalidate(self, capture));
            self.forbidden("the legacy stream was used while a blocking stream captures".into());
        }
        refused
    }

    /// Refuses the legacy stream while a blocking stream of its context captures; the capture stays valid.
    ///
    /// Documentation of `cuStreamIsCapturing`: "Note that, if this is called on `CU_STREAM_LEGACY` (the \"null
    /// stream\") while a blocking stream in the same context is capturing, it will return
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` and `*captureStatus` is unspecified after the call. The blocking stream
    /// capture is not invalidated."
    pub fn refuse_legacy(&mut self, stream: Handle) -> Outcome {
        let Some(context) = self.streams.get(stream).map(|stream| stream.context) else { return Ok(()) };
        let is_legacy = self.contexts.get(context).is_some_and(|found| found.default_stream == stream);
        let mut all = self.streams.iter().map(|(_, stream)| stream);
        let captures = |other: &Stream| other.context == context && other.blocking && other.capture.is_some();
        if is_legacy && all.any(captures) { Err(Code::CAPTURE_IMPLICIT) } else { Ok(()) }
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
