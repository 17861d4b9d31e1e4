//! The built-in kernels. A module can contain them under these names. Each handles one element per thread, up to a
//! number of elements that limits the last block:
//!
//! ```text
//! fill_u32(u32 *data, u32 value, u64 count)      data[i] = value
//! add_u32(u32 *data, u32 value, u64 count)       data[i] += value
//! scale_f32(f32 *data, f32 factor, u64 count)    data[i] *= factor
//! axpy_f32(f32 *y, f32 *x, f32 a, u64 count)     y[i] += a * x[i]
//! ```

use super::Driver;
use crate::abi::{Address, Code, Handle, Outcome};

pub struct Kernel {
    name: &'static str,
    /// The size of each parameter in bytes.
    pub parameters: &'static [usize],
    /// How many of the first parameters are arrays of 4-byte elements.
    arrays: usize,
    run: fn(elements: &mut [u32], arguments: &[u64]),
}

/// The kernels. `run` gets the array elements with the same index in `elements`; results go into the first.
static KERNELS: [Kernel; 4] = [
    Kernel {
        name: "fill_u32",
        parameters: &[8, 4, 8],
        arrays: 1,
        run: |elements, arguments| elements[0] = arguments[1] as u32,
    },
    Kernel {
        name: "add_u32",
        parameters: &[8, 4, 8],
        arrays: 1,
        run: |elements, arguments| elements[0] = elements[0].wrapping_add(arguments[1] as u32),
    },
    Kernel {
        name: "scale_f32",
        parameters: &[8, 4, 8],
        arrays: 1,
        run: |elements, arguments| elements[0] = (float(elements[0]) * float(arguments[1] as u32)).to_bits(),
    },
    Kernel {
        name: "axpy_f32",
        parameters: &[8, 8, 4, 8],
        arrays: 2,
        run: |elements, arguments| {
            let product = float(arguments[2] as u32) * float(elements[1]);
            elements[0] = (float(elements[0]) + product).to_bits();
        },
    },
];

fn float(bits: u32) -> f32 {
    f32::from_bits(bits)
}

pub fn by_name(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}

/// A kernel with its arguments.
#[derive(Clone)]
pub struct Launch {
    pub kernel: &'static Kernel,
    /// The threads of all blocks together.
    pub threads: u64,
    pub arguments: Vec<u64>,
    /// The context of its stream.
    pub context: Handle,
}

impl Launch {
    /// The addresses of the arrays.
    pub fn arrays(&self) -> &[Address] {
        &self.arguments[..self.kernel.arrays]
    }
}

/// Reads the arguments behind an array of pointers.
pub fn read_arguments(kernel: &Kernel, pointers: &[usize]) -> Outcome<Vec<u64>> {
    let read = |(&pointer, &bytes): (&usize, &usize)| {
        if pointer == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut value = [0; 8];
        // SAFETY: the C interface requires pointers to the arguments, which have the kernel's sizes.
        unsafe { std::ptr::copy_nonoverlapping(pointer as *const u8, value.as_mut_ptr(), bytes) };
        Ok(u64::from_le_bytes(value))
    };
    pointers.iter().zip(kernel.parameters).map(read).collect()
}

/// Elements that are processed at a time.
const BATCH: u64 = 4096;

impl Driver {
    pub fn run_kernel(&mut self, launch: &Launch) -> Outcome {
        let Launch { kernel, threads, arguments, context } = launch;
        let count = arguments.last().copied().unwrap_or(0).min(*threads);
        if count == 0 {
            return Ok(());
        }
        let bytes = usize::try_from(count * 4).map_err(|_| Code::ILLEGAL_ADDRESS)?;
        let mut arrays = Vec::new();
        for (number, &address) in launch.arrays().iter().enumerate() {
            self.check_peer(address, *context, true).map_err(|_| Code::ILLEGAL_ADDRESS)?;
            arrays.push(self.resolve_now(address, bytes, number == 0)?);
        }
        let mut values = vec![vec![0; BATCH as usize]; kernel.arrays];
        for first in (0..count).step_by(BATCH as usize) {
            let batch = BATCH.min(count - first) as usize;
            let start = first as usize * 4;
            for (array, values) in arrays.iter().zip(&mut values) {
                array.read(start, &mut values[..batch]);
            }
            for n in 0..batch {
                let mut elements = [0; 2];
                elements.iter_mut().zip(&values).for_each(|(element, values)| *element = values[n]);
                (kernel.run)(&mut elements, arguments);
                values[0][n] = elements[0];
            }
            arrays[0].write(start, &values[0][..batch]);
        }
        Ok(())
    }
}
