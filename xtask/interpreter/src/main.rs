//! Runs the demo's WebAssembly module, as `boards/wasm32-node/run.mjs` does in Node, and exits with its status.
//!
//! `cargo xtask run` builds and starts this only where nothing else can run firmware, so that no other user waits for an
//! interpreter to compile.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use wasmi::{Caller, Engine, Error, Extern, Linker, Module, Store, Val};

fn main() -> ExitCode {
    match std::env::args_os().nth(1).context("name a WebAssembly module").and_then(|file| {
        let module = std::fs::read(&file).with_context(|| format!("{}", file.to_string_lossy()))?;
        let started = Instant::now();
        let status = run(&module, |line| println!("{line}"))?;
        println!("{} ms in an interpreter", started.elapsed().as_millis());
        Ok(status)
    }) {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(error) => {
            eprintln!("interpreter: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a module to its end; returns its status. What it prints goes to `print`, line by line.
///
/// # Errors
/// It is no module that `run.mjs` could run, or it was trapped, as by a panic.
fn run(module: &[u8], print: impl Fn(&str) + Send + Sync + 'static) -> Result<u32> {
    let engine = Engine::default();
    let module = Module::new(&engine, module).context("this is no WebAssembly module")?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap(
        "host",
        "print",
        move |caller: Caller<'_, ()>, text: u32, length: u32| -> Result<(), Error> {
            let memory = caller.get_export("memory").and_then(Extern::into_memory);
            let memory = memory.ok_or_else(|| Error::new("the module exports no memory"))?;
            let bytes = (text as usize)
                .checked_add(length as usize)
                .and_then(|end| memory.data(&caller).get(text as usize..end));
            let bytes = bytes.ok_or_else(|| Error::new("what is printed lies outside the memory"))?;
            let mut line = String::from_utf8_lossy(bytes).into_owned();
            if line.starts_with("summary ") {
                // The variables lie between these; the file itself does not tell their size.
                let number = |name| match caller
                    .get_export(name)
                    .and_then(Extern::into_global)
                    .map(|it| it.get(&caller))
                {
                    Some(Val::I32(number)) => Some(i64::from(number.cast_unsigned())),
                    _ => None,
                };
                if let (Some(end), Some(start)) = (number("__data_end"), number("__global_base")) {
                    line += &format!(" static_ram={}", end - start);
                }
            }
            print(&line);
            Ok(())
        },
    )?;
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?.start(&mut store)?;
    let Ok(entry) = instance.get_typed_func::<(), u32>(&store, "run") else {
        bail!("the module has no function `run` that returns a status");
    };
    entry.call(&mut store, ()).context("the module was stopped")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The smallest module that does what a demo does: prints `text` and returns `status`, or reads where no memory is.
    fn module(text: &str, offset: u8, status: u8) -> Vec<u8> {
        let section = |number: u8, body: Vec<u8>| [vec![number, body.len() as u8], body].concat();
        let length = text.len() as u8;
        [
            b"\0asm\x01\0\0\0".to_vec(),
            // Types: (i32, i32) -> (), () -> i32.
            section(1, vec![2, 0x60, 2, 0x7f, 0x7f, 0, 0x60, 0, 1, 0x7f]),
            section(2, [&[1, 4][..], b"host", &[5], b"print", &[0, 0]].concat()),
            section(3, vec![1, 1]),
            section(5, vec![1, 0, 1]),
            // Two globals: where the variables begin and end.
            section(6, vec![2, 0x7f, 0, 0x41, 8, 0x0b, 0x7f, 0, 0x41, 24, 0x0b]),
            section(
                7,
                [
                    &[4, 6][..],
                    b"memory",
                    &[2, 0, 3],
                    b"run",
                    &[0, 1, 13],
                    b"__global_base",
                    &[3, 0, 10],
                    b"__data_end",
                    &[3, 1],
                ]
                .concat(),
            ),
            // print(offset << 16, length), then the status.
            section(
                10,
                [&[1, 13, 0, 0x41, offset, 0x41, 16, 0x74, 0x41, length, 0x10, 0, 0x41, status][..], &[0x0b]]
                    .concat(),
            ),
            section(11, [&[1, 0, 0x41, 0, 0x0b, length][..], text.as_bytes()].concat()),
        ]
        .concat()
    }

    fn lines(module: &[u8]) -> (Result<u32>, Vec<String>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&lines);
        let status = run(module, move |line| to.lock().unwrap().push(line.to_owned()));
        let lines = lines.lock().unwrap().clone();
        (status, lines)
    }

    #[test]
    fn lines_and_status_come_out() {
        let (status, printed) = lines(&module("hello", 0, 3));
        assert_eq!((status.unwrap(), printed), (3, vec!["hello".to_owned()]));
        let (status, printed) = lines(&module("summary peak=1", 0, 0));
        assert_eq!((status.unwrap(), printed), (0, vec!["summary peak=1 static_ram=16".to_owned()]));
    }

    #[test]
    fn what_is_no_demo_is_refused() {
        for wrong in [&b"\0asm"[..], b"", b"\0asm\x01\0\0\0"] {
            assert!(lines(wrong).0.is_err());
        }
        let (status, printed) = lines(&module("hello", 1, 0));
        let error = format!("{:#}", status.unwrap_err());
        assert!(error.contains("outside the memory") && printed.is_empty(), "{error}");
    }
}
