//! `wasm`: our heap beside others in a WebAssembly module, by the program in `benches/wasm`, in Node and in Chromium; with threads, by another
//! module there; and a page that shows a module's heap.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use allotment_common::boards::Boards;
use allotment_common::table;
use anyhow::{Context, Result, ensure};

use crate::{Setup, child, firmware, pages, setup, toolchain};

#[derive(clap::Args)]
pub struct Options {
    /// Write a page that shows the heap of its own module, for a browser, and do nothing else
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Only check workers that share a memory and its heap, and measure them
    #[arg(long, conflicts_with = "page")]
    threads: bool,
    /// Write benches/results/pages/wasm.csv
    #[arg(long, conflicts_with_all = ["page", "threads"])]
    write: bool,
}

const TARGET: &str = "wasm32-unknown-unknown";

/// The allocators, as features of the module; the first is none.
const SUBJECTS: [&str; 7] = ["", "allotment", "micro", "tiny", "dlmalloc", "talc", "lol_alloc"];

/// The same, as the tables call them.
const NAMES: [&str; 6] = [
    "`WasmHeap`",
    "`WasmHeap<MicroTlsf<4, false>>`, up to 2 MiB",
    "`TinyHeap`, 512 KiB that do not grow",
    "dlmalloc",
    "talc",
    "lol_alloc",
];

/// What Node or Chromium may take for all of them.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds the module of the board `wasm32-node`, and writes it with all that the page needs to one file.
fn write_page(file: &Path, setup: &Setup) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let board = boards.get("wasm32-node")?;
    let toolchain = toolchain::find(&[TARGET], setup)?;
    // Without debug information, which is a hundred times larger than the code.
    let mut cargo = firmware::cargo(board, &toolchain, "rustc");
    cargo.args(["--", "-Cstrip=symbols"]);
    child::run(&mut cargo, "building the module")?;
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

/// Builds a module for each allocator. Returns those to run, and for all the bytes that the allocator adds at opt-level z and s.
fn modules(setup: &Setup) -> Result<(Vec<PathBuf>, Vec<[u64; 2]>)> {
    let toolchain = toolchain::find(&[TARGET], setup)?;
    let folder = firmware::root().join("benches/wasm");
    let target = firmware::root().join("benches/target");
    let (mut modules, mut sizes) = (Vec::new(), Vec::new());
    for subject in SUBJECTS {
        let mut bytes = [0; 2];
        // For its size alone, and as it runs.
        for (level, bytes) in ["z", "s"].into_iter().zip(&mut bytes) {
            let mut cargo = toolchain.cargo("build");
            cargo.current_dir(&folder).args(["--release", "--locked", "--lib", "--target", TARGET]);
            cargo.arg("--config").arg(format!("profile.release.opt-level=\"{level}\""));
            cargo.args(["--config", "profile.release.strip=true"]);
            cargo.arg("--target-dir").arg(&target).args(["--features", subject]);
            child::run(&mut cargo, &format!("building a module with `{subject}`"))?;
            let name = if subject.is_empty() { "nothing" } else { subject };
            let module: PathBuf = target.join(format!("{name}-{level}.wasm"));
            fs::copy(target.join(TARGET).join("release/wasm_heaps.wasm"), &module)?;
            *bytes = fs::metadata(&module)?.len();
            if level == "s" {
                modules.push(module);
            }
        }
        sizes.push(bytes);
    }
    let bare = sizes.remove(0);
    let added =
        sizes.iter().map(|bytes| [bytes[0].saturating_sub(bare[0]), bytes[1].saturating_sub(bare[1])]);
    modules.remove(0);
    Ok((modules, added.collect()))
}

/// The cells of one module's line: requests and nanoseconds and KiB of the small mix, and of the mixed one.
fn cells(lines: &str) -> Result<Vec<[String; 6]>> {
    let cells = lines.lines().map(|line| {
        let cells: Vec<String> = line.split(',').skip(1).map(str::to_owned).collect();
        let cells = <[String; 6]>::try_from(cells).ok().with_context(|| format!("it prints `{line}`"))?;
        // A block that changed makes the module return 0.
        ensure!(cells[0] != "0" && cells[3] != "0", "a live block has changed");
        Ok(cells)
    });
    let cells = cells.collect::<Result<Vec<_>>>()?;
    ensure!(cells.len() == NAMES.len(), "it prints {lines}");
    Ok(cells)
}

/// Runs modules in Node.
fn in_node(node: &Path, modules: &[PathBuf]) -> Result<Vec<[String; 6]>> {
    let mut command = child::command(node);
    command.arg(firmware::root().join("benches/wasm/run.mjs")).args(modules);
    let (status, text) = child::run_limited(&mut command, LIMIT)?;
    ensure!(status.is_some_and(|status| status.success()), "Node fails: {text}");
    cells(&text)
}

/// Runs modules in Chromium, on a page without any other file.
fn in_chromium(chromium: &Path, modules: &[PathBuf]) -> Result<Vec<[String; 6]>> {
    let folder = firmware::root().join("benches/wasm");
    let script = fs::read_to_string(folder.join("measure.js"))?;
    let mut bytes = Vec::new();
    for module in modules {
        bytes.push(format!("new Uint8Array({:?})", fs::read(module)?));
    }
    let page = tempfile::Builder::new().suffix(".html").tempfile()?;
    let text = format!(
        "<pre></pre><script>{script}\ndocument.querySelector('pre').textContent = measure([{}]).join('\\n');</script>",
        bytes.join(",")
    );
    fs::write(page.path(), text)?;
    let mut command = child::command(chromium);
    // A container's root user has no sandbox; the page is our own.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]).arg(page.path());
    let output = child::output_limited(&mut command, LIMIT)?.context("Chromium does not come to an end")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.split_once("<pre>").and_then(|(_, rest)| rest.split_once("</pre>"));
    cells(figures.with_context(|| format!("Chromium shows: {text}"))?.0)
}

/// Builds the module with threads with its standard library, and runs it in Node on several workers.
fn threads(node: &Path) -> Result<String> {
    let root = firmware::root();
    let folder = root.join("benches/wasm");
    let target = root.join("target/wasm-threads");
    let mut cargo = child::command("rustup");
    cargo.args(["run", "nightly", "cargo", "build", "--quiet", "--release", "--locked"]);
    cargo.args(["--features", "threads", "--example", "wasm_threads"]);
    cargo.args(["-Zbuild-std=std,panic_abort", "--target", TARGET, "--target-dir"]).arg(&target);
    cargo.current_dir(&folder).env("RUSTFLAGS", "-Ctarget-feature=+atomics");
    child::run(&mut cargo, "building a module with threads")
        .context("it needs a nightly compiler and the component rust-src")?;
    let mut command = child::command(node);
    command
        .arg(folder.join("threads.mjs"))
        .arg(target.join(TARGET).join("release/examples/wasm_threads.wasm"));
    let (status, text) = child::run_limited(&mut command, LIMIT)?;
    ensure!(status.is_some_and(|status| status.success()), "workers fail: {text}");
    let rows: Vec<[String; 4]> = text
        .lines()
        .map(|line| {
            let cells: Vec<String> = line.split(',').map(str::to_owned).collect();
            <[String; 4]>::try_from(cells).ok().with_context(|| format!("Node prints `{line}`"))
        })
        .collect::<Result<_>>()?;
    ensure!(rows.len() == 3, "Node prints {text}");
    Ok(table::render(["heap", "1 worker, ns", "2 workers", "4 workers"], rows, &[1, 2, 3]))
}

const ABOUT_THREADS: &str = "Workers of Node share the memory of one module. Each allocates, frees, and passes an eighth of its blocks of up to \
    4 KiB on to others, which free them; blocks are checked. Wall time of a round, divided by the number of workers: median of five turns.";

/// Measures our heap and others, or does the one thing that was asked for.
pub fn run(options: &Options, setup: &Setup) -> Result<ExitCode> {
    if let Some(file) = &options.page {
        return write_page(file, setup);
    }
    let node = setup::provide("node", false, setup)?;
    if options.threads {
        println!("{}\n{ABOUT_THREADS}", threads(&node)?);
        return Ok(ExitCode::SUCCESS);
    }
    let (modules, sizes) = modules(setup)?;
    let version = child::stdout_of(child::command(&node).arg("--version"))?;
    let mut browsers = vec![(format!("Node {version}"), in_node(&node, &modules)?)];
    match setup::provide("chromium", false, setup) {
        Ok(chromium) => {
            let version = child::stdout_of(child::command(&chromium).arg("--version"))?;
            let words: Vec<&str> = version.split(' ').take(2).collect();
            browsers.push((words.join(" "), in_chromium(&chromium, &modules)?));
        }
        Err(error) => eprintln!("xtask: without Chromium: {error:#}"),
    }
    let rows =
        NAMES.iter().zip(&sizes).map(|(name, [z, s])| [(*name).to_owned(), z.to_string(), s.to_string()]);
    let mut text = format!(
        "## WebAssembly: size, time and memory beside other allocators\n\n* compiler: {}\n* command: cargo xtask wasm --write\n\n\
         Bytes that the allocator adds to a module without one, after fat LTO, for one thread and without statistics:\n\n{}\n\n",
        toolchain::find(&[TARGET], setup)?.version()?,
        table::render(["allocator", "opt-level z", "opt-level s"], rows.collect::<Vec<_>>(), &[1, 2])
    );
    text.push_str(
        "Nanoseconds of a request or free at opt-level s, requests served, and memory of the module at the end. Median of nine turns, the \
         allocators one after the other in each. *Small*: up to 256 B; *mixed*: up to 32 KiB; in 1,024 places. Read the times as ratios.\n",
    );
    for (browser, figures) in browsers {
        let rows =
            NAMES.iter().zip(figures).map(|(name, [_, small, small_memory, served, mixed, memory])| {
                [(*name).to_owned(), small, small_memory, mixed, memory, served]
            });
        let header = ["allocator", "small, ns", "small, KiB", "mixed, ns", "mixed, KiB", "mixed, served"];
        let table = table::render(header, rows.collect::<Vec<_>>(), &[1, 2, 3, 4, 5]);
        text.push_str(&format!("\n### {browser}\n\n{table}\n"));
    }
    match threads(&node) {
        Ok(table) => text.push_str(&format!("\n### Threads\n\n{ABOUT_THREADS}\n\n{table}\n")),
        // The other figures need no nightly compiler; a file needs all.
        Err(error) if !options.write => eprintln!("xtask: without threads: {error:#}"),
        Err(error) => return Err(error),
    }
    print!("{text}");
    if options.write {
        pages::keep("wasm", &text)?;
    }
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
