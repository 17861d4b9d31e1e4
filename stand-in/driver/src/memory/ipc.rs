//! Device memory shared with other processes. A handle names this process and one of its open files.

use crate::abi::{Address, Code, IpcHandle, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::backing::Memory;
use crate::state::space::{Allocation, Chunks, Kind};
use rustix::fs::{Mode, OFlags, open};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;

const MAGIC: u64 = u64::from_le_bytes(*b"allotipc");

impl Driver {
    /// Moves the memory of an allocation into a file, unless it is already in one, and returns the file's number.
    fn share(&mut self, address: Address) -> Outcome<i32> {
        let mapping = self.space.mappings.get_mut(&address).ok_or(Code::INVALID_VALUE)?;
        if mapping.memory.file().is_none() {
            let device = self.space.allocations.get(&address).ok_or(Code::INVALID_VALUE)?.device;
            let bytes = mapping.bytes;
            let shared = Memory::shared(bytes, None)?;
            let old = Chunks::one(mapping.memory.pointer(), bytes);
            Chunks::one(shared.pointer(), bytes).copy_from(0, &old, 0, bytes);
            // The old memory returns its bytes, and the new memory takes them.
            mapping.memory = Arc::new(shared);
            let account = self.devices[device].take(bytes as u64)?;
            self.space.accounts.insert(address, account);
        }
        let file = self.space.mappings[&address].memory.file().ok_or(Code::OPERATING_SYSTEM)?;
        Ok(file.as_raw_fd())
    }
}

exports! {
    fn cuIpcGetMemHandle(driver, handle: Out<IpcHandle>, address: Address) {
        let found = driver.space.containing(address);
        let (start, bytes) = match found {
            Some((start, found)) if found.kind == Kind::Device => (start, found.bytes),
            _ => return Err(Code::INVALID_VALUE),
        };
        let file = driver.share(start)?;
        let fields = [MAGIC, u64::from(process::id()), file as u64, bytes as u64];
        let mut name = [0; 64];
        name.chunks_exact_mut(8).zip(fields).for_each(|(place, field)| place.copy_from_slice(&field.to_le_bytes()));
        handle.set(IpcHandle(name))
    }

    fn cuIpcOpenMemHandle_v2(driver, address: Out<Address>, handle: IpcHandle, flags: u32) {
        let context = driver.outside_capture("cuIpcOpenMemHandle_v2")?;
        let field = |n: usize| u64::from_le_bytes(std::array::from_fn(|byte| handle.0[8 * n + byte]));
        if field(0) != MAGIC || flags & !1 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // A process cannot open memory that it shares itself.
        if field(1) == u64::from(process::id()) {
            return Err(Code::INVALID_CONTEXT);
        }
        let path = format!("/proc/{}/fd/{}", field(1), field(2));
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|_| Code::INVALID_VALUE)?;
        let bytes = usize::try_from(field(3)).map_err(|_| Code::INVALID_VALUE)?;
        let device = driver.current_device()?;
        let memory = Memory::open(file, bytes, None)?;
        let found = driver.space.find(device, bytes, 1, 0)?;
        let kind = Kind::Imported;
        let allocation = Allocation { id: 0, bytes, kind, device, context, alive: true, freed: false };
        driver.space.insert(found, allocation, Some(memory));
        address.set(found)
    }

    fn cuIpcCloseMemHandle(driver, address: Address) {
        let context = driver.outside_capture("cuIpcCloseMemHandle")?;
        let found = driver.space.allocations.get(&address).map(|found| found.kind.clone());
        if found != Some(Kind::Imported) {
            return Err(driver.invalid_free(address));
        }
        driver.finish_context(context, address);
        driver.space.remove(address);
        Ok(())
    }
}
