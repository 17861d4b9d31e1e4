//! The calls of streams.

use crate::abi::{Code, Handle, Out, Outcome};
use crate::call::exports;
use crate::graph;
use crate::late;
use crate::state::Driver;
use crate::state::space::Kind;
use crate::state::stream::{Item, Stream};
use crate::state::work::Work;
use std::thread;

impl Driver {
    /// The stream that a handle refers to: 0 and 1 are the context's default stream, 2 is one of the calling thread.
    ///
    /// API reference, "Stream synchronization behavior": "The per-thread default stream is an implicit stream local to both
    /// the thread and the CUcontext, and which does not synchronize with other streams ... The per-thread default stream is
    /// not a non-blocking stream and will synchronize with the legacy default stream if both are used in a program."
    pub fn stream(&mut self, handle: Handle) -> Outcome<Handle> {
        const PER_THREAD: Handle = 2;
        if handle == PER_THREAD {
            let key = (self.current()?, thread::current().id());
            if let Some(&stream) = self.per_thread.get(&key) {
                return Ok(stream);
            }
            let stream = self.streams.insert(Stream::new(key.0, true, 0, self.hold_new));
            self.per_thread.insert(key, stream);
            return Ok(stream);
        }
        if handle < PER_THREAD {
            let context = self.current()?;
            return Ok(self.contexts.find(context, &mut self.misuse)?.default_stream);
        }
        let stream = self.streams.find(handle, &mut self.misuse)?;
        let (context, destroyed) = (stream.context, stream.destroyed);
        if destroyed {
            self.misuse.note(crate::misuse::Kind::Destroyed, format!("stream {handle:#x} is destroyed"));
            return Err(Code::INVALID_HANDLE);
        }
        let fault = self.contexts.get(context).and_then(|context| context.fault);
        fault.map_or(Ok(handle), Err)
    }

    pub fn device_of(&self, stream: Handle) -> Outcome<usize> {
        let stream = self.streams.get(stream).ok_or(Code::INVALID_HANDLE)?;
        Ok(self.contexts.get(stream.context).ok_or(Code::INVALID_CONTEXT)?.device)
    }

    /// Adds work to a stream, or to its capture. Returns the number of the work, or `None` in a capture.
    pub fn submit(&mut self, handle: Handle, work: Work, waits: Vec<(Handle, u64)>) -> Outcome<Option<u64>> {
        let stream = self.streams.find(handle, &mut self.misuse)?;
        if let Some(capture) = stream.capture {
            stream.captured_work += 1;
            self.captures.find(capture, &mut self.misuse)?.work.push(work);
            return Ok(None);
        }
        let (context, blocking) = (stream.context, stream.blocking);
        let default = self.contexts.get(context).ok_or(Code::INVALID_CONTEXT)?.default_stream;
        self.refuse_work_of_legacy(handle)?;
        let mut waits = waits;
        if handle == default {
            let others = self
                .streams
                .iter()
                .filter(|(other, stream)| *other != default && stream.context == context && stream.blocking);
            waits.extend(others.map(|(other, stream)| (other, stream.submitted)));
        } else if blocking {
            waits.extend(self.streams.get(default).map(|stream| (default, stream.submitted)));
        }
        waits.retain(|&(other, sequence)| !self.is_done(other, sequence));
        let stream = self.streams.find(handle, &mut self.misuse)?;
        stream.submitted += 1;
        stream.queue.push_back(Item { sequence: stream.submitted, waits, work });
        if self.late.is_some() {
            late::continue_alone();
        }
        Ok(Some(stream.submitted))
    }

    /// Makes the host wait for a position of a stream.
    pub fn wait_for(&mut self, stream: Handle, sequence: u64) {
        self.waits.push((stream, sequence));
    }
}

exports! {
    fn cuStreamCreate(driver, stream: Out<Handle>, flags: u32) {
        let context = driver.current()?;
        let new = Stream::new(context, flags & 1 == 0, 0, driver.hold_new);
        stream.set(driver.streams.insert(new))
    }

    fn cuStreamCreateWithPriority(driver, stream: Out<Handle>, flags: u32, priority: i32) {
        let context = driver.current()?;
        let new = Stream::new(context, flags & 1 == 0, priority.clamp(-5, 0), driver.hold_new);
        stream.set(driver.streams.insert(new))
    }

    fn cuStreamDestroy_v2(driver, stream: Handle) {
        if stream <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        let handle = driver.stream(stream)?;
        let stream = driver.streams.find(handle, &mut driver.misuse)?;
        stream.destroyed = true;
        // The remaining work runs without being asked for.
        stream.held = false;
        if stream.queue.is_empty() && !stream.running {
            driver.streams.take(handle);
        }
        Ok(())
    }

    fn cuStreamSynchronize(driver, stream: Handle) {
        let stream = driver.stream(stream)?;
        let found = driver.streams.find(stream, &mut driver.misuse)?;
        let submitted = found.submitted;
        driver.refuse_of_captured(&[stream], "cuStreamSynchronize")?;
        driver.refuse_in_capture("cuStreamSynchronize")?;
        driver.wait_for(stream, submitted);
        driver.trims = true;
        Ok(())
    }

    fn cuStreamQuery(driver, stream: Handle) {
        let stream = driver.stream(stream)?;
        let found = driver.streams.find(stream, &mut driver.misuse)?;
        let submitted = found.submitted;
        driver.refuse_of_captured(&[stream], "cuStreamQuery")?;
        driver.refuse_in_capture("cuStreamQuery")?;
        if driver.is_done(stream, submitted) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamWaitEvent(driver, stream: Handle, event: Handle, _flags: u32) {
        let stream = driver.stream(stream)?;
        let event = driver.events.find(event, &mut driver.misuse)?;
        if let Some(point) = event.captured {
            return graph::join(driver, stream, point);
        }
        let recorded = event.recorded;
        // Programming guide, "Prohibited and Unhandled Operations": "It is invalid to ... wait on an event that was
        // recorded outside of the capture".
        if let Some(capture) = driver.streams.find(stream, &mut driver.misuse)?.capture {
            graph::invalidate(driver, capture);
            driver.forbidden(String::from("a stream that captures waited for an event from outside"));
            return Err(Code::CAPTURE_ISOLATION);
        }
        let waits = Vec::from_iter(recorded);
        driver.submit(stream, Work::Nothing, waits).map(drop)
    }

    fn cuStreamGetFlags(driver, stream: Handle, flags: Out<u32>) {
        let stream = driver.stream(stream)?;
        driver.refuse_of_captured(&[stream], "cuStreamGetFlags")?;
        flags.set(u32::from(!driver.streams.find(stream, &mut driver.misuse)?.blocking))
    }

    fn cuStreamGetPriority(driver, stream: Handle, priority: Out<i32>) {
        let stream = driver.stream(stream)?;
        priority.set(driver.streams.find(stream, &mut driver.misuse)?.priority)
    }

    fn cuStreamGetCtx(driver, stream: Handle, context: Out<Handle>) {
        let stream = driver.stream(stream)?;
        context.set(driver.streams.find(stream, &mut driver.misuse)?.context)
    }

    // The documentation does not say so, but 580.159 refuses this for a stream that captures, on relaxed threads too, and the flags.
    fn cuStreamGetId(driver, stream: Handle, id: Out<u64>) {
        let stream = driver.stream(stream)?;
        driver.refuse_of_captured(&[stream], "cuStreamGetId")?;
        let number = driver.streams.find(stream, &mut driver.misuse)?.id;
        id.set(if number == 0 { stream } else { number })
    }

    fn cuStreamAttachMemAsync(driver, stream: Handle, address: u64, bytes: usize, flags: u32) {
        let stream = driver.stream(stream)?;
        // Programming guide: "A small number of APIs that enqueue asynchronous operations into streams are not currently
        // supported in graphs and will return an error if called with a stream which is being captured, such as
        // cudaStreamAttachMemAsync()."
        driver.refuse_of_captured(&[stream], "cuStreamAttachMemAsync")?;
        // Documentation: "length must be either zero or the entire allocation's size".
        let id = driver.check(address, 1)?;
        match driver.space.allocations.get(&address) {
            Some(found) if matches!(found.kind, Kind::Managed(_)) && (bytes == 0 || bytes == found.bytes) => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        let on_host = match flags {
            1 | 2 => flags == 2,
            4 => return Err(Code::NOT_SUPPORTED), // to a single stream
            _ => return Err(Code::INVALID_VALUE),
        };
        driver.submit(stream, Work::Attach { address, id, on_host }, Vec::new()).map(drop)
    }

    fn cuLaunchHostFunc(driver, stream: Handle, function: Option<extern "C" fn(usize)>, argument: usize) {
        let stream = driver.stream(stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        driver.submit(stream, Work::Host { function, argument }, Vec::new()).map(drop)
    }

    // Documentation: "callbacks ... receive the current device status"; unlike a host function, one is called after a
    // fault as well. "This function ... may not be used during stream capture."
    fn cuStreamAddCallback(
        driver,
        stream: Handle,
        function: Option<extern "C" fn(Handle, u32, usize)>,
        argument: usize,
        _flags: u32,
    ) {
        let handle = driver.stream(stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        driver.refuse_of_captured(&[handle], "cuStreamAddCallback")?;
        driver.submit(handle, Work::Callback { function, stream, argument }, Vec::new()).map(drop)
    }

    fn cuStreamBeginCapture_v2(driver, stream: Handle, mode: u32) {
        graph::begin(driver, stream, mode)
    }

    fn cuStreamIsCapturing(driver, stream: Handle, status: Out<u32>) {
        let stream = driver.stream(stream)?;
        driver.refuse_legacy(stream)?;
        status.set(graph::status(driver, stream).0)
    }

    fn cuStreamGetCaptureInfo_v2(
        driver,
        stream: Handle,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<Handle>,
        dependencies: Out<usize>,
        count: Out<usize>,
    ) {
        let stream = driver.stream(stream)?;
        driver.refuse_legacy(stream)?;
        let (found, capture) = graph::status(driver, stream);
        status.set(found)?;
        id.set_if(capture);
        graph.set_if(0);
        dependencies.set_if(0);
        count.set_if(0);
        Ok(())
    }

    fn cuStreamEndCapture(driver, stream: Handle, graph: Out<Handle>) {
        graph::end(driver, stream, graph)
    }

    fn cuThreadExchangeStreamCaptureMode(_driver, mode: Out<u32>) {
        graph::exchange_mode(mode)
    }
}
