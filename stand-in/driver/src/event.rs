//! Events: marks in streams.

use crate::abi::{Code, Handle, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::capture::Point;
use crate::state::event::Event;
use crate::state::work::Work;

const DISABLE_TIMING: u32 = 2;

exports! {
    fn cuEventCreate(driver, event: Out<Handle>, flags: u32) {
        let context = driver.current()?;
        let timed = flags & DISABLE_TIMING == 0;
        let new = Event { context, timed, recorded: None, captured: None, time: None };
        event.set(driver.events.insert(new))
    }

    fn cuEventDestroy_v2(driver, event: Handle) {
        driver.events.remove(event, &mut driver.misuse).map(drop)
    }

    fn cuEventRecord(driver, event: Handle, stream: Handle) {
        record(driver, event, stream)
    }

    fn cuEventRecordWithFlags(driver, event: Handle, stream: Handle, _flags: u32) {
        record(driver, event, stream)
    }

    // Documentation: "Note that this function may also return error codes from previous, asynchronous launches", and an
    // error such as 700 "leaves the process in an inconsistent state and any further CUDA work will return the same error".
    fn cuEventQuery(driver, event: Handle) {
        let context = driver.events.find(event, &mut driver.misuse)?.context;
        if let Some(fault) = driver.contexts.get(context).and_then(|context| context.fault) {
            return Err(fault);
        }
        let event = driver.events.find(event, &mut driver.misuse)?;
        if event.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        let recorded = event.recorded;
        driver.refuse_in_capture("cuEventQuery")?;
        let is_done = recorded.is_none_or(|(stream, sequence)| driver.is_done(stream, sequence));
        if is_done { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(driver, event: Handle) {
        let event = driver.events.find(event, &mut driver.misuse)?;
        if event.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        let recorded = event.recorded;
        driver.refuse_in_capture("cuEventSynchronize")?;
        if let Some((stream, sequence)) = recorded {
            driver.wait_for(stream, sequence);
        }
        driver.trims = true;
        Ok(())
    }

    fn cuEventElapsedTime(driver, milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(driver, milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(driver, milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(driver, milliseconds, start, end)
    }
}

fn record(driver: &mut Driver, event: Handle, stream: Handle) -> Outcome {
    driver.events.find(event, &mut driver.misuse)?;
    let stream = driver.stream(stream)?;
    let found = driver.streams.find(stream, &mut driver.misuse)?;
    let (capture, position) = (found.capture, found.captured_work);
    let captured = capture.map(|capture| Point { capture, stream, position });
    let position = match capture {
        Some(_) => None,
        None => driver.submit(stream, Work::Mark { event }, Vec::new())?,
    };
    let event = driver.events.find(event, &mut driver.misuse)?;
    event.captured = captured;
    event.recorded = position.map(|sequence| (stream, sequence));
    event.time = None;
    Ok(())
}

fn elapsed(driver: &mut Driver, place: Out<f32>, start: Handle, end: Handle) -> Outcome {
    let mut times = [None; 2];
    for (time, event) in times.iter_mut().zip([start, end]) {
        let event = driver.events.find(event, &mut driver.misuse)?;
        if !event.timed || event.recorded.is_none() {
            return Err(Code::INVALID_HANDLE);
        }
        *time = event.time;
    }
    match times {
        [Some(start), Some(end)] => place.set(end.saturating_duration_since(start).as_secs_f32() * 1e3),
        _ => Err(Code::NOT_READY),
    }
}
