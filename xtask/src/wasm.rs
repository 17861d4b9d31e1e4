//! `wasm`: our heap beside others in a WebAssembly module, by the program in `benches/wasm`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use allotment_common::table;
use anyhow::{Context, Result, ensure};

use crate::{Setup, child, firmware, setup, toolchain};

const TARGET: &str = "wasm32-unknown-unknown";

/// The allocators, as features of the module; the first is none.
const SUBJECTS: [&str; 6] = ["", "allotment", "micro", "dlmalloc", "talc", "lol_alloc"];

/// What Node may take for all of them.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds a module for each allocator, runs all in turns in Node, and prints one table.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    let node = setup::provide("node", false, setup)?;
    let toolchain = toolchain::find(&[TARGET], setup)?;
    let folder = firmware::root().join("benches/wasm");
    let target = folder.join("target");
    let (mut modules, mut sizes) = (Vec::new(), Vec::new());
    for subject in SUBJECTS {
        // For its size alone, and as it runs.
        for level in ["z", "s"] {
            let mut cargo = toolchain.cargo("build");
            cargo.current_dir(&folder).args(["--release", "--locked", "--target", TARGET]);
            cargo.arg("--config").arg(format!("profile.release.opt-level=\"{level}\""));
            cargo.arg("--target-dir").arg(&target).args(["--features", subject]);
            ensure!(child::status(&mut cargo, "building a module")?.success(), "{subject} does not build");
            let name = if subject.is_empty() { "nothing" } else { subject };
            let module: PathBuf = target.join(format!("{name}-{level}.wasm"));
            fs::copy(target.join(TARGET).join("release/wasm_heaps.wasm"), &module)?;
            if level == "s" {
                modules.push(module);
            } else {
                sizes.push(fs::metadata(&module)?.len());
            }
        }
    }
    let bare = fs::metadata(&modules[0])?.len();
    let mut command = child::command(node);
    command.arg(folder.join("run.mjs")).args(&modules[1..]);
    let (status, text) = child::run_limited(&mut command, LIMIT)?;
    ensure!(status.is_some_and(|status| status.success()), "Node fails: {text}");
    let rows = text.lines().zip(SUBJECTS.iter().zip(&sizes).skip(1)).map(|(line, (subject, smallest))| {
        let cells: Vec<&str> = line.split(',').collect();
        let [_, size, small, small_time, small_memory, mixed, mixed_time, mixed_memory] = cells[..] else {
            anyhow::bail!("Node prints `{line}`");
        };
        // A block that changed makes the module return 0.
        ensure!(small != "0" && mixed != "0", "{subject}: a live block has changed");
        let size: u64 = size.parse().context("the size is a number")?;
        let size = size.saturating_sub(bare).to_string();
        let smallest = smallest.saturating_sub(sizes[0]).to_string();
        let figures = [small_time, small_memory, mixed, mixed_time, mixed_memory].map(str::to_owned);
        let [small_time, small_memory, mixed, mixed_time, mixed_memory] = figures;
        Ok([(*subject).to_owned(), smallest, size, small_time, small_memory, mixed, mixed_time, mixed_memory])
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    ensure!(rows.len() == SUBJECTS.len() - 1, "Node prints: {text}");
    let header =
        ["allocator", "B (z)", "B (s)", "small, ns", "small, KiB", "served", "mixed, ns", "mixed, KiB"];
    println!("{}", table::render(header, rows, &[1, 2, 3, 4, 5, 6, 7]));
    println!(
        "Bytes that the allocator adds to a module without one, at opt-level z and s (which is run); micro: `MicroTlsf`, up to 2 MiB; \
         served: requests of mixed. Median of nine turns, the allocators one after the other in each; \
         memory of the module at the end. Small: up to 256 B; mixed: up to 32 KiB; 1,024 places."
    );
    Ok(ExitCode::SUCCESS)
}
