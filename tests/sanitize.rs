//! What AddressSanitizer and valgrind report of a heap's blocks. Each misuse is committed in a process of its own.
//!
//! With `-Zsanitizer=address` in `RUSTFLAGS` this is a test of AddressSanitizer, else one of valgrind, which must be installed.

use std::alloc::Layout;
use std::process::{Command, Output};
use std::ptr::NonNull;

use allotment::harden::Full;
use allotment::lock::Unsync;
use allotment::placement::Placement;
use allotment::{BestFit, Buddy, Heap, Region, Tiered, Tlsf};

/// Names the case to a process.
const CASE: &str = "ALLOTMENT_SANITIZE";

/// The status with which valgrind ends a program with errors.
const ERRORS: i32 = 99;

/// A use of one byte: no tool takes it for something else.
#[derive(Clone, Copy)]
struct Misuse {
    name: &'static str,
    /// What the tools call it; empty if it is none.
    kind: &'static str,
    /// Whether the block is a freed one. It has 44 bytes.
    freed: bool,
    /// The byte.
    at: usize,
}

const MISUSES: &[Misuse] = &[
    Misuse { name: "write 1 B behind", kind: "write", freed: false, at: 44 },
    Misuse { name: "read 1 B behind", kind: "read", freed: false, at: 44 },
    Misuse { name: "write 8 B behind", kind: "write", freed: false, at: 51 },
    Misuse { name: "write after the free", kind: "write", freed: true, at: 0 },
    Misuse { name: "read after the free", kind: "read", freed: true, at: 30 },
    Misuse { name: "nothing", kind: "", freed: false, at: 43 },
];

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Works with a heap for a while, commits a misuse, and goes on.
fn commit<P: Placement>(misuse: Misuse) {
    let mut memory = vec![0_u64; 8 * 1024];
    let heap = Heap::<Full<P, 4>, Unsync>::empty();
    // SAFETY: the memory outlives the heap, and blocks are used rightly but for the misuse.
    unsafe {
        heap.claim(Region::new(NonNull::from(memory.as_mut_slice()).cast(), 64 * 1024)).unwrap();
        let work = |rounds: usize| {
            let mut live: Vec<(NonNull<u8>, Layout)> = Vec::new();
            for round in 0..rounds {
                let layout = layout(1 + round * 37 % 300);
                let block = heap.try_allocate(layout).unwrap();
                block.write_bytes(7, layout.size());
                live.push((block, layout));
                if round % 3 == 0 {
                    let (block, old) = live.swap_remove(round * 7 % live.len());
                    let wider = Layout::from_size_align(old.size() + 40, 8).unwrap();
                    if heap.try_resize(block, old, wider.size()) {
                        block.write_bytes(8, wider.size());
                        heap.try_deallocate(block, wider).unwrap();
                    } else {
                        assert_eq!(block.read(), 7);
                        heap.try_deallocate(block, old).unwrap();
                    }
                }
            }
            for (block, layout) in live {
                heap.try_deallocate(block, layout).unwrap();
            }
        };
        work(100);
        let [freed, live] = [(); 2].map(|()| heap.try_allocate(layout(44)).unwrap());
        freed.write_bytes(1, 44);
        live.write_bytes(1, 44);
        heap.try_deallocate(freed, layout(44)).unwrap();
        // The heap refuses invalid frees, which misuse no memory.
        assert!(heap.try_deallocate(freed, layout(44)).is_err());
        assert!(
            heap.try_deallocate(live, layout(40)).is_err() && heap.try_deallocate(live, layout(45)).is_err()
        );
        let byte = (if misuse.freed { freed } else { live }).as_ptr().add(misuse.at);
        if misuse.kind == "read" {
            _ = byte.read_volatile();
        } else {
            byte.write_volatile(1);
        }
        // A tool that goes on, as valgrind does, must find the heap whole.
        if heap.try_deallocate(live, layout(44)).is_ok() {
            work(3);
        }
    }
}

/// What a child process does. In this one it does nothing.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let (placement, misuse) = case.split_once('/').unwrap();
    let misuse = *MISUSES.iter().find(|known| known.name == misuse).unwrap();
    match placement {
        "Tlsf" => commit::<Tlsf>(misuse),
        "Tiered" => commit::<Tiered>(misuse),
        "BestFit" => commit::<BestFit>(misuse),
        _ => commit::<Buddy>(misuse),
    }
}

#[test]
fn tools_report_misuses() {
    let asan = std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer=address"));
    let program = std::env::current_exe().unwrap();
    for placement in ["Tlsf", "Tiered", "BestFit", "Buddy"] {
        for &Misuse { name, kind, .. } in MISUSES {
            let mut command = match asan {
                true => Command::new(&program),
                false => {
                    let mut command = Command::new("valgrind");
                    command.arg(format!("--error-exitcode={ERRORS}")).arg(&program);
                    command
                }
            };
            command.args(["--exact", "child", "--test-threads=1", "--nocapture"]);
            command.env(CASE, format!("{placement}/{name}"));
            let Output { status, stderr, .. } = command.output().expect("is valgrind installed?");
            let text = String::from_utf8_lossy(&stderr);
            if kind.is_empty() {
                assert!(status.success(), "{placement}, {name}: {status}\n{text}");
                continue;
            }
            let (word, what) = match asan {
                true => ("use-after-poison", format!("{} of size 1", kind.to_uppercase())),
                false => ("Address 0x", format!("Invalid {kind} of size 1")),
            };
            assert!(text.contains(word) && text.contains(&what), "{placement}, {name}: {status}\n{text}");
            assert!(!status.success(), "{placement}, {name}");
        }
    }
}
