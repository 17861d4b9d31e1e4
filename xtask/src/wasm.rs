//! `wasm`: our heap beside others in a WebAssembly module, by the program in `benches/wasm`; and a page that shows a module's heap.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use allotment_common::boards::Boards;
use allotment_common::table;
use anyhow::{Context, Result, ensure};

use crate::{Setup, child, firmware, setup, toolchain};

#[derive(clap::Args)]
pub struct Options {
    /// Write a page that shows the heap of its own module, for a browser, and do nothing else
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

const TARGET: &str = "wasm32-unknown-unknown";

/// The allocators, as features of the module; the first is none.
const SUBJECTS: [&str; 6] = ["", "allotment", "micro", "dlmalloc", "talc", "lol_alloc"];

/// What Node may take for all of them.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds the module of the board `wasm32-node`, and writes it with all that the page needs to one file.
fn write_page(file: &Path, setup: &Setup) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let board = boards.get("wasm32-node")?;
    let toolchain = toolchain::find(&[TARGET], setup)?;
    // Without debug information, which is a hundred times larger than the code.
    let mut cargo = firmware::cargo(board, &toolchain, "rustc");
    cargo.args(["--lib", "--", "-Cstrip=symbols"]);
    ensure!(child::status(&mut cargo, "building the module")?.success(), "the module does not build");
    let module = firmware::target_folder().join(TARGET).join("release/wasm32_node.wasm");
    let folder = firmware::folder(board);
    let template = fs::read_to_string(folder.join("page.html"))?;
    let text = page(&template, &fs::read_to_string(folder.join("heap.mjs"))?, &fs::read(module)?);
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}: open it in a browser", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Puts the script and the module's bytes into the page, so that a browser opens it without a server.
fn page(template: &str, script: &str, module: &[u8]) -> String {
    let bytes: Vec<String> = module.iter().map(u8::to_string).collect();
    template.replace("/* heap.mjs */", script).replace("/* module */", &bytes.join(","))
}

/// Builds a module for each allocator, runs all in turns in Node, and prints one table. Or writes the page.
pub fn run(options: &Options, setup: &Setup) -> Result<ExitCode> {
    if let Some(file) = &options.page {
        return write_page(file, setup);
    }
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

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn the_page_needs_no_other_file() {
        let folder = crate::firmware::root().join("boards/wasm32-node");
        let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
        let text = page(&read("page.html"), &read("heap.mjs"), &[0, 97, 255]);
        assert!(text.contains("const MODULE = [0,97,255];") && text.contains("class Blocks"), "{text}");
        let others = ["/* heap.mjs */", "/* module */", "import ", " src=", " href="];
        assert_eq!(others.map(|other| text.contains(other)), [false; 5]);
    }
}
