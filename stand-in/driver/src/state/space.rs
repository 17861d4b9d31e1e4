//! The address space: the allocations, and the physical memory behind them.

use super::Driver;
use super::backing::Memory;
use super::device::Account;
use crate::abi::{Address, Code, Handle, Location, Outcome};
use crate::misuse::Kind as Misused;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The start of device memory. No process can have such addresses, so using one on the host faults.
const DEVICES: Address = 1 << 48;
/// The size of each device's address range.
const DEVICE_SPAN: Address = 1 << 44;
/// Alignment of device memory, as in real drivers.
const ALIGNMENT: u64 = 512;

/// Returns whether an address can be a host address.
pub const fn is_host(address: Address) -> bool {
    address < DEVICES
}

#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    /// Device memory from `cuMemAlloc`.
    Device,
    /// Stream-ordered memory from a pool.
    Ordered(Handle),
    /// Pinned host memory, allocated or registered.
    Host {
        flags: u32,
        registered: bool,
    },
    Managed(Hints),
    /// Opened from another process.
    Imported,
    /// Reserved addresses for mapping virtual memory.
    Reserved,
}

/// Advice and prefetches of managed memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hints {
    pub read_mostly: bool,
    pub preferred: Option<Location>,
    pub accessed_by: BTreeSet<i32>,
    pub prefetched: Option<Location>,
    /// Whether it is attached to the host, so that no device without concurrent access may use it.
    pub on_host: bool,
}

pub struct Allocation {
    /// A unique number.
    pub id: u64,
    pub bytes: usize,
    pub kind: Kind,
    pub device: usize,
    /// The context whose destruction ends it; 0 for none.
    pub context: Handle,
    /// Whether its stream has reached the allocation.
    pub alive: bool,
    /// Whether its release is in a stream's queue.
    pub freed: bool,
}

pub struct Mapping {
    pub bytes: usize,
    pub memory: Arc<Memory>,
    /// The physical memory that is mapped; 0 if it has none of its own.
    pub physical: Handle,
    pub readable: bool,
    pub writable: bool,
    /// Devices that have access to virtual memory.
    pub devices: BTreeSet<usize>,
}

#[derive(Default)]
pub struct Space {
    pub allocations: BTreeMap<Address, Allocation>,
    pub mappings: BTreeMap<Address, Mapping>,
    /// Accounts of memory in files.
    pub accounts: BTreeMap<Address, Account>,
    /// Start addresses that were freed and not allocated again.
    freed: BTreeSet<Address>,
    next: u64,
}

impl Space {
    /// Finds a free range of device addresses, at `hint` if possible.
    pub fn find(&self, device: usize, bytes: usize, alignment: u64, hint: Address) -> Outcome<Address> {
        if bytes as u64 > DEVICE_SPAN {
            return Err(Code::OUT_OF_MEMORY);
        }
        let alignment = alignment.max(ALIGNMENT);
        let bytes = (bytes as u64).next_multiple_of(ALIGNMENT);
        let base = DEVICES + device as Address * DEVICE_SPAN;
        let end = base + DEVICE_SPAN;
        if hint.is_multiple_of(alignment) && hint >= base && hint <= end - bytes && self.is_free(hint, bytes)
        {
            return Ok(hint);
        }
        let mut start = base;
        for (&address, allocation) in self.allocations.range(base..end) {
            if start + bytes <= address {
                break;
            }
            start =
                (address + (allocation.bytes as u64).next_multiple_of(ALIGNMENT)).next_multiple_of(alignment);
        }
        if start + bytes > end { Err(Code::OUT_OF_MEMORY) } else { Ok(start) }
    }

    fn is_free(&self, start: Address, bytes: u64) -> bool {
        let before = self.allocations.range(..start + bytes).next_back();
        before.is_none_or(|(&address, allocation)| address + allocation.bytes as u64 <= start)
    }

    pub fn insert(&mut self, address: Address, mut allocation: Allocation, memory: Option<Memory>) -> u64 {
        self.next += 1;
        allocation.id = self.next;
        if let Some(memory) = memory {
            let mapping = Mapping {
                bytes: allocation.bytes,
                memory: Arc::new(memory),
                physical: 0,
                readable: true,
                writable: true,
                devices: BTreeSet::new(),
            };
            self.mappings.insert(address, mapping);
        }
        self.freed.remove(&address);
        self.allocations.insert(address, allocation);
        self.next
    }

    /// Adds an allocation whose memory belongs to the caller.
    pub fn insert_borrowed(&mut self, address: Address, allocation: Allocation) {
        let memory = Memory::borrowed(address as *mut u8, allocation.bytes);
        self.insert(address, allocation, Some(memory));
    }

    /// Removes an allocation and the mappings in it.
    pub fn remove(&mut self, address: Address) -> Option<Allocation> {
        let allocation = self.allocations.remove(&address)?;
        let end = address + allocation.bytes.max(1) as u64;
        let mapped: Vec<_> = self.mappings.range(address..end).map(|(&at, _)| at).collect();
        mapped.into_iter().for_each(|at| drop(self.mappings.remove(&at)));
        self.accounts.remove(&address);
        self.freed.insert(address);
        Some(allocation)
    }

    /// The allocation that contains an address.
    pub fn containing(&self, address: Address) -> Option<(Address, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address < start + allocation.bytes as u64).then_some((start, allocation))
    }

    pub fn was_freed(&self, address: Address) -> bool {
        self.freed.contains(&address)
    }

    /// Frees the memory of a destroyed context, and returns the number of allocations.
    pub fn drop_context(&mut self, context: Handle) -> usize {
        let of_context = self.allocations.iter().filter(|(_, allocation)| allocation.context == context);
        let gone: Vec<_> = of_context.map(|(&address, _)| address).collect();
        gone.iter().for_each(|&address| drop(self.remove(address)));
        gone.len()
    }

    /// Removes what belongs to a device, in any context.
    pub fn drop_device(&mut self, device: usize) {
        let is_of = |found: &Allocation| {
            found.device == device && matches!(found.kind, Kind::Ordered(_) | Kind::Reserved | Kind::Imported)
        };
        let gone: Vec<_> =
            self.allocations.iter().filter(|(_, found)| is_of(found)).map(|(&at, _)| at).collect();
        gone.into_iter().for_each(|address| drop(self.remove(address)));
    }

    pub fn attached(&mut self, address: Address, id: u64, on_host: bool) {
        let allocation = self.allocations.get_mut(&address).filter(|allocation| allocation.id == id);
        if let Some(Allocation { kind: Kind::Managed(hints), .. }) = allocation {
            hints.on_host = on_host;
            if let Some(mapping) = self.mappings.get(&address) {
                mapping.memory.open_window(on_host);
            }
        }
    }

    pub fn prefetched(&mut self, address: Address, id: u64, location: Location) {
        let allocation = self.allocations.get_mut(&address).filter(|allocation| allocation.id == id);
        if let Some(Allocation { kind: Kind::Managed(hints), .. }) = allocation {
            hints.prefetched = Some(location);
        }
    }
}

impl Driver {
    /// Returns the id of the allocation that contains all of a range; otherwise reports misuse and fails.
    pub fn check(&mut self, address: Address, bytes: usize) -> Outcome<u64> {
        let Some((start, allocation)) = self.space.containing(address) else {
            let kind =
                if self.space.was_freed(address) { Misused::UseAfterFree } else { Misused::OutOfBounds };
            self.misuse.note(kind, format!("{address:#x} is in no allocation"));
            return Err(Code::INVALID_VALUE);
        };
        let room = allocation.bytes - (address - start) as usize;
        let (id, freed) = (allocation.id, allocation.freed);
        if bytes > room {
            let text = format!("{bytes} bytes at {address:#x}, where {room} are left of the allocation");
            self.misuse.note(Misused::OutOfBounds, text);
            return Err(Code::INVALID_VALUE);
        }
        if freed {
            self.misuse.note(Misused::UseAfterFree, format!("{address:#x} was already freed in a stream"));
            return Err(Code::INVALID_VALUE);
        }
        Ok(id)
    }

    /// Returns the memory behind a range of the allocation `id`, when work on it runs.
    pub fn resolve(&mut self, address: Address, bytes: usize, id: u64, write: bool) -> Outcome<Chunks> {
        let found = self.space.containing(address).filter(|(_, allocation)| allocation.id == id);
        let Some((_, allocation)) = found else {
            self.misuse.note(Misused::UseAfterFree, format!("work on {address:#x} ran after it was freed"));
            return Err(Code::ILLEGAL_ADDRESS);
        };
        if !allocation.alive {
            let text = format!("work on {address:#x} ran before its stream reached the allocation");
            self.misuse.note(Misused::UseBeforeAllocation, text);
            return Err(Code::ILLEGAL_ADDRESS);
        }
        let on_host = matches!(&allocation.kind, Kind::Managed(hints) if hints.on_host);
        if on_host && !self.devices[allocation.device].is_concurrent() {
            let text = format!("work on {address:#x} ran while it was attached to the host");
            self.misuse.note(Misused::NoAccess, text);
            return Err(Code::ILLEGAL_ADDRESS);
        }
        let mut chunks = Chunks(Vec::new());
        let (mut at, end) = (address, address + bytes as u64);
        while at < end {
            let mapping = self.space.mappings.range(..=at).next_back();
            let Some((&start, mapping)) =
                mapping.filter(|(start, mapping)| at < **start + mapping.bytes as u64)
            else {
                self.misuse.note(Misused::NoAccess, format!("nothing is mapped at {at:#x}"));
                return Err(Code::ILLEGAL_ADDRESS);
            };
            if !(if write { mapping.writable } else { mapping.readable }) {
                self.misuse.note(Misused::NoAccess, format!("access to {at:#x} was not set"));
                return Err(Code::ILLEGAL_ADDRESS);
            }
            let offset = (at - start) as usize;
            let length = (mapping.bytes - offset).min((end - at) as usize);
            chunks.0.push((mapping.memory.pointer().wrapping_add(offset), length));
            at += length as u64;
        }
        Ok(chunks)
    }

    /// Returns the memory behind a range of whichever allocation contains it: what a kernel does with an address.
    pub fn resolve_now(&mut self, address: Address, bytes: usize, write: bool) -> Outcome<Chunks> {
        let id = self.check(address, bytes).map_err(|_| Code::ILLEGAL_ADDRESS)?;
        self.resolve(address, bytes, id, write)
    }

    /// Refuses a copy that is not a peer copy and touches memory of another device to which this one has no access.
    ///
    /// Programming guide, "Virtual Memory Management": "cuMemSetAccess ... By default only the device on which the
    /// memory resides" has none either; "Stream Ordered Memory Allocator, Multi-GPU": "By default, allocations are only
    /// accessible from the device where the allocations are located. ... to access from other devices ...
    /// cudaMemPoolSetAccess".
    ///
    /// `cuCtxEnablePeerAccess`: "on success all allocations from peerContext will immediately be accessible by the current
    /// context"; without it a kernel has none to memory of `cuMemAlloc`.
    pub fn check_peer(&mut self, address: Address, context: Handle, kernel: bool) -> Outcome {
        let of_context = self.contexts.get(context);
        let Some(device) = of_context.map(|context| context.device) else {
            return Err(Code::INVALID_CONTEXT);
        };
        let Some((_, allocation)) = self.space.containing(address) else { return Ok(()) };
        let home = allocation.device;
        let may = match &allocation.kind {
            _ if home == device => true,
            Kind::Ordered(pool) => self.pools.get(*pool).is_some_and(|pool| pool.peers.contains(&device)),
            Kind::Reserved => {
                let mapping = self.space.mappings.range(..=address).next_back();
                mapping.is_some_and(|(_, mapping)| mapping.devices.contains(&device))
            }
            // A copy goes by way of the host, a kernel needs access.
            Kind::Device if kernel => of_context.is_some_and(|context| {
                context
                    .peers
                    .iter()
                    .any(|&peer| self.contexts.get(peer).is_some_and(|peer| peer.device == home))
            }),
            _ => true,
        };
        if may {
            return Ok(());
        }
        self.misuse.note(Misused::NoAccess, format!("device {device} has no access to {address:#x}"));
        Err(Code::INVALID_VALUE)
    }

    /// Reports memory that cannot be freed, and returns the error.
    pub fn invalid_free(&mut self, address: Address) -> Code {
        let kind = if self.space.was_freed(address) { Misused::FreeTwice } else { Misused::FreeUnknown };
        self.misuse.note(kind, format!("{address:#x} was freed"));
        Code::INVALID_VALUE
    }
}

/// The pieces of host memory that make up a range.
pub struct Chunks(Vec<(*mut u8, usize)>);

impl Chunks {
    pub fn one(pointer: *mut u8, bytes: usize) -> Self {
        Self(vec![(pointer, bytes)])
    }

    /// The pieces of `bytes` bytes from `offset` on.
    fn pieces(&self, offset: usize, bytes: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut skip = offset;
        let mut left = bytes;
        self.0.iter().filter_map(move |&(pointer, length)| {
            let from = skip.min(length);
            skip -= from;
            let take = (length - from).min(left);
            left -= take;
            (take > 0).then_some((pointer.wrapping_add(from), take))
        })
    }

    pub fn copy_from(&self, offset: usize, from: &Self, from_offset: usize, bytes: usize) {
        let mut sources = from.pieces(from_offset, bytes);
        let mut source = sources.next();
        for (mut to, mut room) in self.pieces(offset, bytes) {
            while room > 0 {
                let Some((pointer, length)) = source else { return };
                let step = room.min(length);
                // SAFETY: both pieces are memory of this length that the driver or the caller of the copy keeps.
                unsafe { pointer.copy_to(to, step) };
                to = to.wrapping_add(step);
                room -= step;
                source = if step < length {
                    Some((pointer.wrapping_add(step), length - step))
                } else {
                    sources.next()
                };
            }
        }
    }

    /// Fills with `element`; pieces begin at multiples of its size.
    pub fn fill(&self, offset: usize, bytes: usize, element: &[u8]) {
        for (pointer, length) in self.pieces(offset, bytes) {
            // SAFETY: the driver or the caller keeps the memory of the piece, and nothing else uses it meanwhile.
            let piece = unsafe { std::slice::from_raw_parts_mut(pointer, length) };
            match element {
                [byte] => piece.fill(*byte),
                _ => piece
                    .chunks_mut(element.len())
                    .for_each(|part| part.copy_from_slice(&element[..part.len()])),
            }
        }
    }

    pub fn read(&self, offset: usize, values: &mut [u32]) {
        let bytes = size_of_val(values);
        Self::one(values.as_mut_ptr().cast(), bytes).copy_from(0, self, offset, bytes);
    }

    pub fn write(&self, offset: usize, values: &[u32]) {
        let bytes = size_of_val(values);
        self.copy_from(offset, &Self::one(values.as_ptr().cast_mut().cast(), bytes), 0, bytes);
    }
}
