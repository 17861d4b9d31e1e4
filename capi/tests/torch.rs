//! Builds the library and the stand-in driver, and lets a Python program use both; and counts what a free looks at.

mod build;
#[path = "../src/live.rs"]
mod live;

use build::library;
use heap::pool::{DevicePool, PoolOptions};
use heap::sim::DeviceMemory;
use live::Live;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn libraries() -> [PathBuf; 2] {
    [
        library("allotment-capi", "allotment", "gpu"),
        library("allotment-stand-in-driver", "allotment_stand_in_driver", ""),
    ]
}

/// Runs a program of the folder `tests` and returns what it prints on both streams.
fn output(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

/// Compiles `bad_alloc.cc` to a file of this name.
fn compile_bad_alloc(name: &str, options: &[&str]) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_alloc.cc");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let (built, text) =
        output(Command::new(compiler).args(options).arg("-o").arg(&to).arg(source).arg("-ldl"));
    assert!(built, "{text}");
    to
}

#[test]
fn programs_in_cpp_catch_bad_alloc() {
    let program = compile_bad_alloc("bad_alloc", &[]);
    let (passed, text) = output(Command::new(&program).args(libraries()));
    assert!(passed, "{text}");
    // What was asked for, what there is, and what was tried, in MiB.
    for part in ["65536.0 MiB requested", "MiB free", "MiB reserved", "tried: "] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    // A wrong option is an error of every request.
    let (passed, text) =
        output(Command::new(&program).args(libraries()).env("ALLOTMENT_CUDA_ALLOC_CONF", "no_such_option:1"));
    assert!(!passed && text.contains("no_such_option:1"), "{text}");
}

/// Python loads C++ libraries, and libstdc++ with them, where the global search for symbols does not see them.
#[test]
fn libraries_in_cpp_that_python_loads_catch_bad_alloc() {
    let library = compile_bad_alloc("bad_alloc.so", &["-shared", "-fPIC"]);
    let program = "import ctypes, sys; load, *paths = sys.argv[1:]; \
                   sys.exit(ctypes.CDLL(load).run(*(path.encode() for path in paths)))";
    let (passed, text) = output(Command::new("python3").args(["-c", program]).arg(library).args(libraries()));
    assert!(passed, "{text}");
}

#[test]
fn python_uses_a_pool_by_the_functions_for_torch() {
    let [allotment, driver] = libraries();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch.py");
    let (passed, text) = output(Command::new("python3").arg(script).args([allotment, driver]));
    assert!(passed && text.contains("all is well"), "{text}");
}

thread_local! {
    /// How often addresses were compared or hashed.
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// An address that counts.
#[derive(Clone, Copy)]
struct Address(usize);

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        LOOKS.set(LOOKS.get() + 1);
        self.0 == other.0
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        LOOKS.set(LOOKS.get() + 1);
        self.0.hash(state);
    }
}

/// A free hashes its address once and compares it with one other, and rarely with a few more, however many blocks are live.
#[test]
fn a_free_by_address_looks_at_few_blocks() {
    for count in [10, 1_000, 100_000] {
        let device: DeviceMemory = DeviceMemory::new(1 << 30);
        let stream = device.stream();
        let pool = DevicePool::new(device, PoolOptions::new()).unwrap();
        let mut live = Live::new();
        let mut addresses = Vec::new();
        for number in 0..count {
            let block = pool.allocate_raw(1 + number % 5000, 1, &stream).unwrap();
            addresses.push(Address(block.address()));
            live.insert(Address(block.address()), block);
        }
        let (mut sum, mut most) = (0, 0);
        fastrand::Rng::with_seed(1).shuffle(&mut addresses);
        for address in &addresses {
            let before = LOOKS.get();
            assert_eq!(live.get(address).map(|block| block.address()), Some(address.0));
            let block = live.remove(address).expect("it is live");
            let looks = LOOKS.get() - before;
            (sum, most) = (sum + looks, most.max(looks));
            pool.deallocate(block).unwrap();
            assert!(live.remove(address).is_none());
        }
        assert_eq!(pool.stats().blocks.current, 0);
        // Two look-ups, with a hash and a comparison each. A few more comparisons are likely, since only seven bits of the hash are compared
        // before.
        assert!(sum <= 6 * count as u64 && most <= 40, "{count} live blocks: {sum} looks, {most} for one");
    }
}
