//! Modules and functions: PTX text whose entry points are built-in kernels.

use crate::abi::{Code, Handle, In, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::kernel::{self, Launch};
use crate::state::module::{Function, Module};
use crate::state::work::Work;
use std::ffi::{CStr, c_char};

/// Zero-terminated text, or null.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    fn get(&self) -> Outcome<&str> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the C interface requires null or zero-terminated text.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Code::INVALID_IMAGE)
    }
}

/// The names of the entry points of PTX text.
fn entries(ptx: &str) -> Outcome<Vec<String>> {
    if !ptx.contains(".version") || !ptx.contains(".target") {
        return Err(Code::INVALID_IMAGE);
    }
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
    let name = |text: &str| text.trim_start().split(|c| !is_name(c)).next().unwrap_or("").to_owned();
    let code = ptx.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    Ok(code.split(".entry").skip(1).map(name).collect())
}

fn load(driver: &mut Driver, place: Out<Handle>, image: &str) -> Outcome {
    let context = driver.outside_capture("cuModuleLoadData")?;
    let module = Module { context, entries: entries(image)? };
    place.set(driver.modules.insert(module))
}

exports! {
    fn cuModuleLoad(driver, module: Out<Handle>, file: Text) {
        let image = std::fs::read_to_string(file.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        load(driver, module, &image)
    }

    fn cuModuleLoadData(driver, module: Out<Handle>, image: Text) {
        load(driver, module, image.get()?)
    }

    fn cuModuleLoadDataEx(
        driver,
        module: Out<Handle>,
        image: Text,
        _count: u32,
        _options: usize,
        _values: usize,
    ) {
        load(driver, module, image.get()?)
    }

    fn cuModuleUnload(driver, module: Handle) {
        driver.modules.remove(module, &mut driver.misuse).map(drop)
    }

    fn cuModuleGetFunction(driver, function: Out<Handle>, module: Handle, name: Text) {
        let name = name.get()?;
        let found = driver.modules.find(module, &mut driver.misuse)?;
        if !found.entries.iter().any(|entry| entry == name) {
            return Err(Code::NOT_FOUND);
        }
        let kernel = kernel::by_name(name).ok_or(Code::NOT_FOUND)?;
        function.set(driver.functions.insert(Function { module, kernel }))
    }

    fn cuModuleGetGlobal_v2(driver, _address: Out<u64>, _bytes: Out<usize>, module: Handle, _name: Text) {
        driver.modules.find(module, &mut driver.misuse)?;
        Err(Code::NOT_FOUND)
    }

    fn cuFuncGetAttribute(driver, value: Out<i32>, attribute: u32, function: Handle) {
        driver.functions.find(function, &mut driver.misuse)?;
        value.set(if attribute == 0 { 1024 } else { 0 })
    }

    fn cuFuncSetAttribute(driver, function: Handle, _attribute: u32, _value: i32) {
        driver.functions.find(function, &mut driver.misuse).map(drop)
    }

    fn cuFuncSetCacheConfig(driver, function: Handle, _config: u32) {
        driver.functions.find(function, &mut driver.misuse).map(drop)
    }

    fn cuLaunchKernel(
        driver,
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared: u32,
        stream: Handle,
        arguments: In<usize>,
        _extra: usize,
    ) {
        let stream = driver.stream(stream)?;
        let Function { module, kernel } = *driver.functions.find(function, &mut driver.misuse)?;
        driver.modules.find(module, &mut driver.misuse)?;
        let block = [block_x, block_y, block_z];
        let mut sizes = [grid_x, grid_y, grid_z].into_iter().chain(block).map(u64::from);
        let threads = sizes.try_fold(1, u64::checked_mul).filter(|&n| n > 0).ok_or(Code::INVALID_VALUE)?;
        if block.iter().map(|&n| u64::from(n)).product::<u64>() > 1024 {
            return Err(Code::INVALID_VALUE);
        }
        let pointers = arguments.all(kernel.parameters.len())?;
        let arguments = kernel::read_arguments(kernel, &pointers)?;
        let context = driver.streams.get(stream).ok_or(Code::INVALID_HANDLE)?.context;
        let launch = Launch { kernel, threads, arguments, context };
        driver.submit(stream, Work::Kernel(launch), Vec::new()).map(drop)
    }
}
