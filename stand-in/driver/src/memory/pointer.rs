//! Queries about addresses.

use crate::abi::{Address, Code, Out, memory_type};
use crate::call::exports;
use crate::state::space::Kind;

exports! {
    fn cuMemGetAddressRange_v2(driver, base: Out<Address>, bytes: Out<usize>, address: Address) {
        let (start, allocation) = driver.space.containing(address).ok_or(Code::INVALID_VALUE)?;
        base.set_if(start);
        bytes.set_if(allocation.bytes);
        Ok(())
    }

    fn cuPointerGetAttribute(driver, data: Out<u64>, attribute: u32, address: Address) {
        let (start, allocation) = driver.space.containing(address).ok_or(Code::INVALID_VALUE)?;
        let is_host = matches!(allocation.kind, Kind::Host { .. });
        let is_managed = matches!(allocation.kind, Kind::Managed(_));
        match attribute {
            1 => data.set(allocation.context),
            2 => data.cast::<u32>().set(if is_host { memory_type::HOST } else { memory_type::DEVICE }),
            3 => data.set(address),
            4 if is_host || is_managed => data.set(address),
            7 => data.set(allocation.id),
            8 => data.cast::<u8>().set(u8::from(is_managed)),
            9 => data.cast::<i32>().set(allocation.device as i32),
            11 => data.set(start),
            12 => data.set(allocation.bytes as u64),
            13 => data.cast::<u8>().set(1),
            17 => match allocation.kind {
                Kind::Ordered(pool) => data.set(pool),
                _ => data.set(0),
            },
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
