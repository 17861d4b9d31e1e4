//! `freertos`: traces of real programs on FreeRTOS's heap_4 and heap_5 and on our heap behind the same functions, in QEMU.
//!
//! FreeRTOS's sources are not part of the repository: `--kernel` names a folder with them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use allotment_common::table;
use allotment_trace::{Kind, Program, open};
use anyhow::{Context, Result, ensure};

use crate::emulator::{Figures, MPS2_AN385};
use crate::{Setup, c_firmware, child, firmware, pages, setup};

#[derive(clap::Args)]
pub struct Options {
    /// A folder with the source of FreeRTOS's kernel
    #[arg(long, value_name = "FOLDER")]
    kernel: PathBuf,
    /// Write benches/results/pages/freertos.csv
    #[arg(long)]
    write: bool,
}

/// The traces in `tests/data` that have room in a heap of our default type: none of its regions is longer than 511 KiB.
const TRACES: [&str; 2] = ["mosquitto", "lua_small"];

/// Sizes of the heap, in hundredths of the most bytes that are live at once.
const SIZES: [usize; 4] = [90, 100, 110, 150];

/// A heap in a program: its name, the number in the name of FreeRTOS's file (0: ours), and its regions.
const HEAPS: [(&str, u8, u8); 4] =
    [("heap_4", 4, 1), ("allotment", 0, 1), ("heap_5, two regions", 5, 2), ("allotment, two regions", 0, 2)];

pub fn run(setup: &Setup, options: &Options) -> Result<ExitCode> {
    let compiler = setup::provide("arm-none-eabi-gcc", false, setup)?;
    let kernel = options.kernel.canonicalize().context("the folder with FreeRTOS's kernel")?;
    ensure!(kernel.join("tasks.c").is_file(), "{} is not FreeRTOS's kernel", kernel.display());
    let library = c_firmware::library(setup)?;
    let folder = firmware::root().join("boards/target/freertos");
    fs::create_dir_all(&folder)?;
    let mut text = preamble(&compiler)?;
    for name in TRACES {
        let trace = firmware::root().join(format!("tests/data/{name}.trace.zst"));
        let program = Program::compile(open(&trace)?).with_context(|| trace.display().to_string())?;
        let operations = folder.join(format!("{name}.bin"));
        fs::write(&operations, encoded(&program)?)?;
        let requests = program.ops.iter().filter(|op| op.kind != Kind::Free).count();
        let mut rows = Vec::new();
        for size in SIZES {
            let bytes = (program.peak * size / 100).next_multiple_of(32);
            for (heap, file, regions) in HEAPS {
                let elf = folder.join("replay.elf");
                let variables = [
                    format!("-DHEAP={file}"),
                    format!("-DREGIONS={regions}"),
                    format!("-DBYTES={bytes}"),
                    format!("-DconfigTOTAL_HEAP_SIZE={bytes}"),
                    format!("-DSLOTS={}", program.slots),
                    format!("-DTRACE=\"{}\"", operations.display()),
                ];
                let output = compile(&compiler, &kernel, &library, file, &variables, &elf)
                    .output()
                    .context("the compiler does not start")?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
                let figures = MPS2_AN385
                    .figures(&elf, setup)
                    .with_context(|| format!("{heap} under {name} in {bytes} bytes"))?;
                rows.push(row(size, heap, requests, &figures)?);
                eprintln!("xtask: {name}: {}", rows[rows.len() - 1].join(" | "));
            }
        }
        let header =
            ["memory", "heap", "placed", "refused", "malloc", "worst", "refusal", "free", "worst free"];
        let table = table::render(header, rows, &[2, 3, 4, 5, 6, 7, 8]);
        let peak = program.peak / 1024;
        let _ =
            write!(text, "### {name}: {requests} requests, {peak} KiB at once\n\n{}\n\n", table.trim_end());
    }
    print!("{text}");
    if options.write {
        pages::keep("freertos", &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the trace as `replay.c` reads it: slot, kind and size in 2, 2 and 4 bytes.
fn encoded(program: &Program) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for op in &program.ops {
        let kind: u16 = match op.kind {
            Kind::Allocate => 0,
            Kind::Reallocate => 1,
            Kind::Free => 2,
        };
        let slot = u16::try_from(op.slot).context("the trace has too many blocks at once")?;
        bytes.extend(slot.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        let size = u32::try_from(op.after()).context("a block of the trace has 4 GiB or more")?;
        bytes.extend(size.to_le_bytes());
    }
    Ok(bytes)
}

fn row(size: usize, heap: &str, requests: usize, figures: &Figures) -> Result<[String; 9]> {
    let figure = |name: &str| figures.get(name).copied().with_context(|| format!("no figure `{name}`"));
    let (placed, refused) = (figure("placed")?, figure("refused")?);
    ensure!((placed + refused) as usize == requests, "{placed} and {refused} are not {requests} requests");
    let mean = |name: &str| Ok::<_, anyhow::Error>(format!("{:.1}", figure(name)? / 10.0));
    let refusal = if refused > 0.0 { mean("refused_mean")? } else { "-".into() };
    Ok([
        format!("{size} %"),
        heap.into(),
        placed.to_string(),
        refused.to_string(),
        mean("placed_mean")?,
        figure("placed_worst")?.to_string(),
        refusal,
        mean("freed_mean")?,
        figure("freed_worst")?.to_string(),
    ])
}

/// Compiles the replay with FreeRTOS's heap and what of its kernel that heap calls, or with ours.
fn compile(
    compiler: &Path,
    kernel: &Path,
    library: &Path,
    file: u8,
    variables: &[String],
    elf: &Path,
) -> Command {
    let folder = firmware::root().join("boards/c-heap");
    let mut command = c_firmware::compiler(compiler, "-O2", "mps2-an385.ld");
    command.args(variables).arg(folder.join("freertos/replay.c"));
    // FreeRTOS's own sources compile with warnings.
    command.arg("-w").arg("-I").arg(folder.join("freertos/libc")).arg("-I").arg(folder.join("freertos"));
    if file == 0 {
        command
            .arg("-I")
            .arg(folder.join("include"))
            .arg(folder.join("freertos/heap_allotment.c"))
            .arg(library);
    } else {
        let port = kernel.join("portable/GCC/ARM_CM3");
        command.arg("-I").arg(kernel.join("include")).arg("-I").arg(&port);
        command.arg(kernel.join(format!("portable/MemMang/heap_{file}.c")));
        command.args([kernel.join("tasks.c"), kernel.join("list.c"), port.join("port.c")]);
    }
    command.args(["-lgcc", "-o"]).arg(elf);
    command
}

fn preamble(compiler: &Path) -> Result<String> {
    let version = child::stdout_of(child::command(compiler).arg("--version"))?;
    Ok(format!(
        "## FreeRTOS: `pvPortMalloc` and `vPortFree` on heap_4, heap_5 and ours\n\n\
         * compiler: {}, FreeRTOS at -O2, our library at opt-level 3\n\
         * command: cargo xtask freertos --kernel FOLDER --write, with FreeRTOS-Kernel in FOLDER\n\n\
         Traces of real programs, replayed on a Cortex-M3 (QEMU, mps2-an385, `-icount`). *Memory*: of the heap, as a share of the most bytes \
         that are live at once. *Placed*: requests that found room; the others are refused, and the replay goes on without them. A request to \
         resize is one for a new block, since FreeRTOS has no other, and then a free. Instructions of the calls on average and at most; *refusal*: of \
         a refused request. Locks are included: theirs suspend the scheduler, in which no task runs here, so that resuming it costs the least \
         that it can; ours mask interrupts. heap_5 and ours in two regions have three quarters of the memory in the first.\n\n",
        version.lines().next().unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_encoded_as_the_replay_reads_them() {
        let trace = allotment_trace::Reader::new("a 0 100 8\nr 0 70000\nf 0\n".as_bytes()).unwrap();
        let program = Program::compile(trace).unwrap();
        let bytes = encoded(&program).unwrap();
        assert_eq!(bytes[..8], [0, 0, 0, 0, 100, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0, 0, 1, 0, 0x70, 0x11, 1, 0]);
        assert_eq!(bytes[16..], [0, 0, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn requests_that_are_missing_are_an_error() {
        let names =
            ["placed", "refused", "placed_mean", "placed_worst", "refused_mean", "freed_mean", "freed_worst"];
        let figures: Figures = names.iter().map(|name| (name.to_string(), 10.0)).collect();
        assert_eq!(row(90, "heap_4", 20, &figures).unwrap()[4], "1.0");
        assert!(row(90, "heap_4", 21, &figures).is_err());
    }
}
