//! Pieces of work.

use super::copy::{Copy, Fill};
use super::kernel::Launch;
use crate::abi::{Address, Handle, Location};

#[derive(Clone)]
pub enum Work {
    Nothing,
    Mark {
        event: Handle,
    },
    Copy(Copy),
    Fill(Fill),
    Kernel(Launch),
    /// Stream-ordered memory becomes usable.
    Alive {
        address: Address,
        id: u64,
    },
    /// Stream-ordered memory is freed.
    Free {
        address: Address,
        id: u64,
    },
    Prefetch {
        address: Address,
        id: u64,
        location: Location,
    },
    /// Managed memory is attached to the host, or to all devices.
    Attach {
        address: Address,
        id: u64,
        on_host: bool,
    },
    Host {
        function: extern "C" fn(usize),
        argument: usize,
    },
    Callback {
        function: extern "C" fn(Handle, u32, usize),
        stream: Handle,
        argument: usize,
    },
}

impl Work {
    /// The addresses that it reads or writes.
    pub fn uses(&self) -> impl Iterator<Item = Address> {
        let places = match self {
            Self::Copy(copy) => vec![copy.to.address(), copy.from.address()],
            Self::Fill(fill) => vec![Some(fill.address)],
            Self::Kernel(launch) => launch.arrays().iter().copied().map(Some).collect(),
            Self::Prefetch { address, .. } => vec![Some(*address)],
            Self::Nothing
            | Self::Mark { .. }
            | Self::Alive { .. }
            | Self::Free { .. }
            | Self::Attach { .. }
            | Self::Host { .. }
            | Self::Callback { .. } => vec![],
        };
        places.into_iter().flatten()
    }
}
