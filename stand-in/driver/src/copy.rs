//! Copies and fills.
//!
//! As on most real devices, a copy from ordinary host memory reads it before the call returns, and a copy into such memory
//! is done when the call returns. With pinned memory, both happen when the stream reaches the copy, and with ordinary
//! memory too if a test asks for it (`Driver::late_pageable`).
//!
//! API reference, "API synchronization behavior", asynchronous copies: "For transfers between device memory and pageable host
//! memory, the function might be synchronous with respect to host."

use crate::abi::{Address, Code, Copy2d, CopyAttributes, Handle, In, Out, Outcome, memory_type};
use crate::call::exports;
use crate::state::Driver;
use crate::state::copy::{Copy, Fill, Place, span};
use crate::state::space::{self, Kind};
use crate::state::work::Work;

/// What the caller declares an address to be.
#[derive(Clone, std::marker::Copy)]
enum Side {
    Device(Address),
    Host(usize),
    /// Either of the two.
    Any(u64),
}

impl Driver {
    fn place(&mut self, side: Side, rows: (usize, usize, usize)) -> Outcome<Place> {
        let (pitch, width, height) = rows;
        let bytes = span(pitch, width, height)?;
        let (Side::Device(address) | Side::Any(address)) = side else {
            let Side::Host(pointer) = side else { unreachable!("the other two are handled above") };
            if pointer == 0 {
                return Err(Code::INVALID_VALUE);
            }
            if self.space.containing(pointer as Address).is_some() {
                let id = self.check(pointer as Address, bytes)?;
                return Ok(Place::Known { address: pointer as Address, id });
            }
            return Ok(Place::Pageable(pointer));
        };
        if matches!(side, Side::Any(_)) && self.space.containing(address).is_none() && space::is_host(address)
        {
            return Ok(Place::Pageable(address as usize));
        }
        Ok(Place::Known { address, id: self.check(address, bytes)? })
    }

    /// Submits a copy to a stream. The host waits if requested, or if ordinary host memory requires it.
    fn copy(&mut self, to: Side, from: Side, shape: &Shape, stream: Handle, wait: bool) -> Outcome {
        let stream = self.stream(stream)?;
        if shape.width == 0 || shape.height == 0 {
            return Ok(());
        }
        let to_rows = (shape.to_pitch, shape.width, shape.height);
        let from_rows = (shape.from_pitch, shape.width, shape.height);
        let to = self.place(to, to_rows)?;
        let mut from = self.place(from, from_rows)?;
        if !shape.peer {
            let context = self.streams.get(stream).ok_or(Code::INVALID_HANDLE)?.context;
            for address in [&to, &from].into_iter().filter_map(Place::address) {
                self.check_peer(address, context, false)?;
            }
        }
        if let (Place::Pageable(pointer), false) = (&from, self.late_pageable) {
            let bytes = span(shape.from_pitch, shape.width, shape.height)?;
            // SAFETY: the caller of a copy passes memory that can be read for this length.
            let taken = unsafe { std::slice::from_raw_parts(*pointer as *const u8, bytes) };
            from = Place::Taken(taken.into());
        }
        let wait = wait || matches!(to, Place::Pageable(_)) && !self.late_pageable;
        let copy = Copy {
            to,
            to_pitch: shape.to_pitch,
            from,
            from_pitch: shape.from_pitch,
            width: shape.width,
            height: shape.height,
        };
        let position = self.submit(stream, Work::Copy(copy), Vec::new())?;
        if let (true, Some(sequence)) = (wait, position) {
            self.wait_for(stream, sequence);
        }
        Ok(())
    }

    fn fill(
        &mut self,
        address: Address,
        pitch: usize,
        element: &[u8],
        (width, height): (usize, usize),
        stream: Handle,
        wait: bool,
    ) -> Outcome {
        let stream = self.stream(stream)?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        if !address.is_multiple_of(element.len() as u64) {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.checked_mul(element.len()).ok_or(Code::INVALID_VALUE)?;
        let id = self.check(address, span(pitch, row, height)?)?;
        let fill = Fill { address, id, pitch, element: element.into(), width, height };
        let position = self.submit(stream, Work::Fill(fill), Vec::new())?;
        if let (true, Some(sequence)) = (wait, position) {
            self.wait_for(stream, sequence);
        }
        Ok(())
    }
}

/// Refuses memory of another device than the context's, which a copy between devices names for each side.
fn check_home(driver: &mut Driver, address: Address, context: Handle) -> Outcome {
    let device = driver.contexts.find(context, &mut driver.misuse)?.device;
    let is_of = |kind: &Kind| matches!(kind, Kind::Device | Kind::Ordered(_) | Kind::Reserved);
    let found = driver.space.containing(address);
    match found {
        Some((_, found)) if is_of(&found.kind) && found.device != device => Err(Code::INVALID_VALUE),
        _ => Ok(()),
    }
}

struct Shape {
    to_pitch: usize,
    from_pitch: usize,
    width: usize,
    height: usize,
    /// Whether the call names the contexts of both sides.
    peer: bool,
}

/// A single row.
const fn line(bytes: usize) -> Shape {
    Shape { to_pitch: bytes, from_pitch: bytes, width: bytes, height: 1, peer: false }
}

fn copy_2d(driver: &mut Driver, copy: &Copy2d, stream: Handle, wait: bool) -> Outcome {
    let start = |kind, host: usize, device, x: usize, y: usize, pitch: usize| {
        let offset = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x)).ok_or(Code::INVALID_VALUE)?;
        match kind {
            memory_type::HOST if host != 0 => Ok(Side::Host(host + offset)),
            memory_type::DEVICE => Ok(Side::Device(device + offset as u64)),
            memory_type::UNIFIED => Ok(Side::Any(device + offset as u64)),
            _ => Err(Code::INVALID_VALUE),
        }
    };
    // A pitch of zero means rows without gaps.
    let pitch = |pitch: usize| if pitch == 0 { copy.width } else { pitch };
    let (from_pitch, to_pitch) = (pitch(copy.from_pitch), pitch(copy.to_pitch));
    if from_pitch < copy.width || to_pitch < copy.width {
        return Err(Code::INVALID_VALUE);
    }
    let from = start(copy.from_kind, copy.from_host, copy.from_device, copy.from_x, copy.from_y, from_pitch)?;
    let to = start(copy.to_kind, copy.to_host, copy.to_device, copy.to_x, copy.to_y, to_pitch)?;
    let shape = Shape { to_pitch, from_pitch, width: copy.width, height: copy.height, peer: false };
    driver.copy(to, from, &shape, stream, wait)
}

/// Submits the copies of a batch. They may be done in any order, so they are done in reverse here.
fn copy_batch(
    driver: &mut Driver,
    (to, from, sizes): &(Vec<u64>, Vec<u64>, Vec<usize>),
    (attributes, starts, kinds): (In<CopyAttributes>, In<usize>, usize),
    stream: Handle,
) -> Outcome {
    // 1 and 2 are the default streams.
    if stream <= 2 || sizes.is_empty() || sizes.contains(&0) || kinds == 0 || kinds > sizes.len() {
        return Err(Code::INVALID_VALUE);
    }
    let orders = attributes.all(kinds)?;
    if starts.all(kinds)?[0] != 0
        || orders.iter().any(|kind| !(1..=3).contains(&kind.order) || kind.flags != 0)
    {
        return Err(Code::INVALID_VALUE);
    }
    let handle = driver.stream(stream)?;
    if driver.streams.find(handle, &mut driver.misuse)?.capture.is_some() {
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    for ((&to, &from), &bytes) in to.iter().zip(from).zip(sizes).rev() {
        driver.copy(Side::Any(to), Side::Any(from), &line(bytes), stream, false)?;
    }
    Ok(())
}

exports! {
    fn cuMemcpyHtoD_v2(driver, to: Address, from: usize, bytes: usize) {
        driver.outside_capture("cuMemcpyHtoD_v2")?;
        driver.copy(Side::Device(to), Side::Host(from), &line(bytes), 0, true)
    }

    fn cuMemcpyDtoH_v2(driver, to: usize, from: Address, bytes: usize) {
        driver.outside_capture("cuMemcpyDtoH_v2")?;
        driver.copy(Side::Host(to), Side::Device(from), &line(bytes), 0, true)
    }

    fn cuMemcpyDtoD_v2(driver, to: Address, from: Address, bytes: usize) {
        driver.outside_capture("cuMemcpyDtoD_v2")?;
        driver.copy(Side::Device(to), Side::Device(from), &line(bytes), 0, true)
    }

    fn cuMemcpy(driver, to: Address, from: Address, bytes: usize) {
        driver.outside_capture("cuMemcpy")?;
        driver.copy(Side::Any(to), Side::Any(from), &line(bytes), 0, true)
    }

    fn cuMemcpyHtoDAsync_v2(driver, to: Address, from: usize, bytes: usize, stream: Handle) {
        driver.copy(Side::Device(to), Side::Host(from), &line(bytes), stream, false)
    }

    fn cuMemcpyDtoHAsync_v2(driver, to: usize, from: Address, bytes: usize, stream: Handle) {
        driver.copy(Side::Host(to), Side::Device(from), &line(bytes), stream, false)
    }

    fn cuMemcpyDtoDAsync_v2(driver, to: Address, from: Address, bytes: usize, stream: Handle) {
        driver.copy(Side::Device(to), Side::Device(from), &line(bytes), stream, false)
    }

    fn cuMemcpyAsync(driver, to: Address, from: Address, bytes: usize, stream: Handle) {
        driver.copy(Side::Any(to), Side::Any(from), &line(bytes), stream, false)
    }

    fn cuMemcpyBatchAsync(
        driver,
        to: In<u64>,
        from: In<u64>,
        sizes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        starts: In<usize>,
        kinds: usize,
        failed: Out<usize>,
        stream: Handle,
    ) {
        failed.set_if(usize::MAX);
        copy_batch(driver, &(to.all(count)?, from.all(count)?, sizes.all(count)?), (attributes, starts, kinds), stream)
    }

    fn cuMemcpyBatchAsync_v2(
        driver,
        to: In<u64>,
        from: In<u64>,
        sizes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        starts: In<usize>,
        kinds: usize,
        stream: Handle,
    ) {
        copy_batch(driver, &(to.all(count)?, from.all(count)?, sizes.all(count)?), (attributes, starts, kinds), stream)
    }

    fn cuMemcpyPeer(driver, to: Address, to_context: Handle, from: Address, from_context: Handle, bytes: usize) {
        driver.outside_capture("cuMemcpyPeer")?;
        check_home(driver, to, to_context)?;
        check_home(driver, from, from_context)?;
        driver.copy(Side::Device(to), Side::Device(from), &Shape { peer: true, ..line(bytes) }, 0, true)
    }

    fn cuMemcpyPeerAsync(
        driver,
        to: Address,
        to_context: Handle,
        from: Address,
        from_context: Handle,
        bytes: usize,
        stream: Handle,
    ) {
        check_home(driver, to, to_context)?;
        check_home(driver, from, from_context)?;
        driver.copy(Side::Device(to), Side::Device(from), &Shape { peer: true, ..line(bytes) }, stream, false)
    }

    fn cuMemcpy2D_v2(driver, copy: In<Copy2d>) {
        driver.outside_capture("cuMemcpy2D_v2")?;
        copy_2d(driver, &copy.get()?, 0, true)
    }

    fn cuMemcpy2DAsync_v2(driver, copy: In<Copy2d>, stream: Handle) {
        copy_2d(driver, &copy.get()?, stream, false)
    }

    fn cuMemsetD8_v2(driver, address: Address, value: u8, count: usize) {
        driver.outside_capture("cuMemsetD8_v2")?;
        driver.fill(address, 0, &[value], (count, 1), 0, true)
    }

    fn cuMemsetD16_v2(driver, address: Address, value: u16, count: usize) {
        driver.outside_capture("cuMemsetD16_v2")?;
        driver.fill(address, 0, &value.to_ne_bytes(), (count, 1), 0, true)
    }

    fn cuMemsetD32_v2(driver, address: Address, value: u32, count: usize) {
        driver.outside_capture("cuMemsetD32_v2")?;
        driver.fill(address, 0, &value.to_ne_bytes(), (count, 1), 0, true)
    }

    fn cuMemsetD8Async(driver, address: Address, value: u8, count: usize, stream: Handle) {
        driver.fill(address, 0, &[value], (count, 1), stream, false)
    }

    fn cuMemsetD16Async(driver, address: Address, value: u16, count: usize, stream: Handle) {
        driver.fill(address, 0, &value.to_ne_bytes(), (count, 1), stream, false)
    }

    fn cuMemsetD32Async(driver, address: Address, value: u32, count: usize, stream: Handle) {
        driver.fill(address, 0, &value.to_ne_bytes(), (count, 1), stream, false)
    }

    fn cuMemsetD2D8Async(
        driver,
        address: Address,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: Handle,
    ) {
        driver.fill(address, pitch, &[value], (width, height), stream, false)
    }

    fn cuMemsetD2D32Async(
        driver,
        address: Address,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
        stream: Handle,
    ) {
        driver.fill(address, pitch, &value.to_ne_bytes(), (width, height), stream, false)
    }
}
