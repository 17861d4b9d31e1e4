//! Contexts: the primary context of each device, and others.

use crate::abi::{Code, Handle, In, Ordinal, Out, Outcome};
use crate::call::exports;
use crate::misuse::Kind;
use crate::state::Driver;
use crate::state::context::{Context, STACK, current};
use crate::state::pool::Pool;
use crate::state::stream::Stream;
use std::collections::BTreeSet;

impl Driver {
    fn create_context(&mut self, device: usize, primary: bool) -> Handle {
        let context = Context { device, primary, default_stream: 0, fault: None, peers: BTreeSet::new() };
        let handle = self.contexts.insert(context);
        let stream = self.streams.insert(Stream::new(handle, true, 0, self.hold_new));
        self.contexts.get_mut(handle).expect("just made").default_stream = stream;
        handle
    }

    /// Destroys a context with everything in it, which should be nothing but work in streams that were destroyed.
    ///
    /// Documentation of `cuStreamDestroy`: "In case the device is still doing work in the stream hStream when cuStreamDestroy()
    /// is called, the function will return immediately and the resources associated with hStream will be released automatically
    /// once the device has completed all work in hStream." So memory that such a stream frees does not stay allocated when the
    /// context ends first. A reset ends the work instead.
    fn destroy_context(&mut self, handle: Handle, is_reset: bool) -> Outcome {
        if !is_reset {
            self.finish_work(handle);
        }
        let context = self.contexts.remove(handle, &mut self.misuse)?;
        self.streams.take(context.default_stream);
        let streams = &mut self.streams;
        self.per_thread.retain(|key, stream| {
            let stays = key.0 != handle;
            if !stays {
                streams.take(*stream);
            }
            stays
        });
        if is_reset {
            self.drop_device(context.device);
        }
        let streams: Vec<_> =
            self.streams.iter().filter(|(_, stream)| stream.context == handle).map(|(h, _)| h).collect();
        let events: Vec<_> =
            self.events.iter().filter(|(_, event)| event.context == handle).map(|(h, _)| h).collect();
        let modules: Vec<_> =
            self.modules.iter().filter(|(_, module)| module.context == handle).map(|(h, _)| h).collect();
        let memory = self.space.drop_context(handle);
        let live =
            streams.iter().filter(|stream| !self.streams.get(**stream).expect("listed").destroyed).count();
        if !is_reset && live + events.len() + modules.len() + memory > 0 {
            let text = format!(
                "context {handle:#x} ended with {live} streams, {} events, {} modules and {memory} allocations",
                events.len(),
                modules.len()
            );
            self.misuse.note(Kind::LeftInContext, text);
        }
        for handle in streams {
            self.streams.take(handle);
        }
        for handle in events {
            self.events.take(handle);
        }
        for handle in modules {
            self.modules.take(handle);
        }
        Ok(())
    }

    /// Ends what belongs to a device rather than to a context: memory pools and virtual memory.
    fn drop_device(&mut self, device: usize) {
        self.space.drop_device(device);
        let own = self.devices[device].default_pool;
        let pools: Vec<_> =
            self.pools.iter().filter(|(_, pool)| pool.device == device).map(|(h, _)| h).collect();
        pools.into_iter().filter(|&pool| pool != own).for_each(|pool| drop(self.pools.take(pool)));
        self.devices[device].pool = own;
        if let Some(pool) = self.pools.get_mut(own) {
            *pool = Pool::new(device, 0);
        }
        let physical = self.physical.iter().filter(|(_, physical)| physical.device == device);
        let physical: Vec<_> = physical.map(|(handle, _)| handle).collect();
        physical.into_iter().for_each(|handle| drop(self.physical.take(handle)));
    }

    /// Makes the host wait for all work of a context.
    pub fn wait_for_context(&mut self, context: Handle) {
        let streams = self.streams.iter().filter(|(_, stream)| stream.context == context);
        self.waits.extend(streams.map(|(handle, stream)| (handle, stream.submitted)));
    }
}

exports! {
    fn cuDevicePrimaryCtxRetain(driver, context: Out<Handle>, device: Ordinal) {
        let (handle, retained) = match driver.device(device)?.primary {
            Some((0, retained)) => (driver.create_context(device as usize, true), retained + 1),
            Some((handle, retained)) => (handle, retained + 1),
            None => (driver.create_context(device as usize, true), 1),
        };
        driver.device(device)?.primary = Some((handle, retained));
        context.set(handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(driver, device: Ordinal) {
        let (handle, retained) = driver.device(device)?.primary.ok_or(Code::INVALID_CONTEXT)?;
        if retained > 1 {
            driver.device(device)?.primary = Some((handle, retained - 1));
            return Ok(());
        }
        driver.device(device)?.primary = None;
        if handle == 0 { Ok(()) } else { driver.destroy_context(handle, false) }
    }

    // Documentation: "Explicitly destroys and cleans up all resources associated with the device in the current process.
    // ... Resetting the primary context does not release it, an application that has retained the primary context should
    // explicitly release its usage."
    fn cuDevicePrimaryCtxReset_v2(driver, device: Ordinal) {
        match driver.device(device)?.primary {
            Some((handle, retained)) if handle != 0 => {
                driver.device(device)?.primary = Some((0, retained));
                driver.destroy_context(handle, true)
            }
            _ => Ok(()),
        }
    }

    fn cuDevicePrimaryCtxGetState(driver, device: Ordinal, flags: Out<u32>, active: Out<i32>) {
        let is_active = driver.device(device)?.primary.is_some_and(|(handle, _)| handle != 0);
        flags.set(0)?;
        active.set(i32::from(is_active))
    }

    fn cuCtxCreate_v2(driver, context: Out<Handle>, _flags: u32, device: Ordinal) {
        driver.device(device)?;
        create(driver, context, device)
    }

    fn cuCtxCreate_v4(driver, context: Out<Handle>, _params: In<u8>, _flags: u32, device: Ordinal) {
        driver.device(device)?;
        create(driver, context, device)
    }

    fn cuCtxDestroy_v2(driver, context: Handle) {
        if driver.contexts.find(context, &mut driver.misuse)?.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        driver.destroy_context(context, false)?;
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(_driver, context: Out<Handle>) {
        context.set(current().unwrap_or(0))
    }

    fn cuCtxSetCurrent(driver, context: Handle) {
        if context != 0 {
            driver.contexts.find(context, &mut driver.misuse).map_err(|_| Code::INVALID_CONTEXT)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(driver, context: Handle) {
        driver.contexts.find(context, &mut driver.misuse).map_err(|_| Code::INVALID_CONTEXT)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(_driver, context: Out<Handle>) {
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        context.set_if(popped);
        Ok(())
    }

    fn cuCtxGetDevice(driver, device: Out<Ordinal>) {
        let current = driver.current_device()?;
        device.set(current as Ordinal)
    }

    fn cuCtxGetApiVersion(driver, context: Handle, version: Out<u32>) {
        driver.contexts.find(context, &mut driver.misuse)?;
        version.set(3020)
    }

    fn cuCtxSetFlags(driver, _flags: u32) {
        driver.current().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(_driver, least: Out<i32>, greatest: Out<i32>) {
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }

    fn cuCtxSynchronize(driver) {
        let context = driver.current()?;
        let of_context = driver.streams.iter().filter(|(_, stream)| stream.context == context);
        let streams: Vec<_> = of_context.map(|(handle, _)| handle).collect();
        driver.refuse_of_captured(&streams, "cuCtxSynchronize")?;
        driver.refuse_in_capture("cuCtxSynchronize")?;
        driver.wait_for_context(context);
        driver.trims = true;
        Ok(())
    }

    fn cuCtxEnablePeerAccess(driver, peer: Handle, _flags: u32) {
        let context = driver.current()?;
        let device = driver.contexts.find(peer, &mut driver.misuse)?.device;
        let current = driver.contexts.find(context, &mut driver.misuse)?;
        if current.device == device {
            return Err(Code::INVALID_DEVICE);
        }
        if !current.peers.insert(peer) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(())
    }

    fn cuCtxDisablePeerAccess(driver, peer: Handle) {
        let context = driver.current()?;
        if !driver.contexts.find(context, &mut driver.misuse)?.peers.remove(&peer) {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
        Ok(())
    }
}

fn create(driver: &mut Driver, place: Out<Handle>, device: Ordinal) -> Outcome {
    let handle = driver.create_context(device as usize, false);
    STACK.with_borrow_mut(|stack| stack.push(handle));
    place.set(handle)
}
