//! Models: TensorFlow Lite Micro's and ONNX.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use allotment::plan::{Buffer, affordable_rules, try_plan};
use allotment_planner::deadline::Deadline;
use allotment_planner::graph::{Graph, Lowering};
use allotment_planner::greedy::Baseline;
use allotment_planner::import::onnx::read_onnx;
use allotment_planner::import::tflite::read_tflite;
use allotment_planner::model::Instance;
use allotment_planner::transform::{in_place, rematerialise, reorder, stream};
use anyhow::{Context, Result};

use super::run::{find, head, own, percent, plan, read, rules};
use super::{Args, Findings};

/// Returns the peak of the `const` planner; `None` for a number of buffers that is not listed here.
fn constant(instance: &Instance) -> Option<u64> {
    let buffer = |b: &allotment_planner::model::Buffer| {
        Buffer::new(b.size, b.start as u64..b.end as u64).align(b.align)
    };
    let buffers: Vec<Buffer<'static>> = instance.buffers().iter().map(buffer).collect();
    macro_rules! sizes {
        ($($n:literal)*) => {
            match buffers.len() {
                $($n => {
                    let buffers: [Buffer<'static>; $n] = buffers.try_into().ok()?;
                    Some(try_plan(&buffers, affordable_rules($n)).ok()?.peak())
                })*
                _ => None,
            }
        };
    }
    sizes!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 85)
}

/// Peaks of a graph: unchanged, in place, reordered, both, and streamed.
struct Peaks {
    buffers: usize,
    naive: u64,
    plain: Instance,
    base: u64,
    in_place: u64,
    reordered: u64,
    both: u64,
    streamed: u64,
    optimal: bool,
    kept: String,
}

fn peaks(graph: &Graph, lowering: Lowering) -> Result<Peaks> {
    let peak = |instance: &Instance| Ok::<u64, anyhow::Error>(plan(instance, None, 5.0, 0)?.peak);
    let plain = graph.instance(lowering)?;
    let ordered = reorder(graph, lowering, false, &Deadline::never());
    let shared = in_place(graph, lowering)?;
    Ok(Peaks {
        buffers: plain.len(),
        naive: plain.buffers().iter().map(|buffer| buffer.size).sum(),
        base: peak(&plain)?,
        in_place: peak(&shared.instance)?,
        reordered: peak(&ordered.graph.instance(lowering)?)?,
        both: peak(&in_place(&ordered.graph, lowering)?.instance)?,
        streamed: peak(
            &in_place(&stream(graph, lowering, 8, 1, &Deadline::never()).graph, lowering)?.instance,
        )?,
        optimal: ordered.optimal,
        kept: format!("{} views, {} overwrite", shared.views, shared.overwrites),
        plain,
    })
}

/// Compares TensorFlow Lite Micro's instances with the rules of other planners, and shows what else its model files
/// allow.
pub fn tflm(args: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    found.line("Above the bound; the rules of others are re-implemented. `const`: the library's own planner, as a `const` runs it.\n");
    let mut columns = vec!["instance", "buffers", "peak, B", "above the bound", "`const`, B"];
    columns.extend(Baseline::ALL.map(Baseline::name));
    found.line(head(&columns));
    let (mut worse, mut farthest, mut seen) = (0, 0.0_f64, 0);
    for name in [
        "audio_preprocessor_int8",
        "hello_world_int8",
        "keyword_scrambled_8bit",
        "micro_speech_quantized",
        "person_detect",
        "trained_lstm_int8",
    ] {
        let Some(path) = find(args, &format!("tflm/{name}.sg0.csv")) else { continue };
        let instance = read(&path)?;
        let s = plan(&instance, None, 5.0, 0)?;
        let peers = rules(&instance, &Baseline::ALL)?;
        let own = constant(&instance);
        let text: Vec<String> = peers.iter().map(|gap| format!("{gap:+.2} %")).collect();
        let gap = percent(s.peak, s.lower_bound);
        let constant = own.map_or("–".into(), |peak| peak.to_string());
        found.line(format!(
            "| {name} | {} | {} | {gap} | {constant} | {} |",
            instance.len(),
            s.peak,
            text.join(" | ")
        ));
        seen += 1;
        let bound = s.lower_bound as f64;
        worse += u32::from(peers.iter().any(|gap| s.peak as f64 > bound * (1.0 + gap / 100.0) + 0.5));
        farthest = farthest.max(own.map_or(f64::INFINITY, |peak| peak as f64 / s.peak as f64));
        if name == "audio_preprocessor_int8" {
            found.target("audio_preprocessor_int8 at 2,096 B", s.peak.to_string(), s.peak == 2096, "");
        }
    }
    found.target(
        "never worse than any re-implemented rule",
        format!("worse on {worse} of {seen}"),
        worse == 0,
        "",
    );
    let gap = (farthest - 1.0) * 100.0;
    found.target(
        "the `const` planner within 5 %",
        format!("{gap:+.1} % at worst, on {seen}"),
        gap <= 5.0,
        "",
    );
    let Some(folder) = &args.models else {
        found.line("\nThe model files were not given (`--models DIR`): what in-place operators and reordering save is not measured.");
        return Ok(found);
    };
    found.line(
        "\nWhat operators in place, reordering and streaming (8 chunks) save beyond, in bytes; from the model files of \
         tensorflow/tflite-micro, inputs planned too, 16-byte alignment.\n",
    );
    found.line(head(&[
        "model",
        "operators",
        "buffers",
        "no sharing at all",
        "planned",
        "`const`",
        "best / worst rule",
        "in place",
        "reordered",
        "both",
        "streamed, in place",
        "groups",
    ]));
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "tflite"));
    paths.sort();
    let (mut models, mut better, mut bytes) = (0, 0, 0);
    let lowering = Lowering { align: 16, inputs: true, ..Lowering::default() };
    let six = [Baseline::TfLite, Baseline::TfLiteMicro, Baseline::TvmBySize, Baseline::TvmByConflicts];
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let graph = match read_tflite(&fs::read(&path)?) {
            Ok(graph) => graph,
            Err(error) => {
                found.line(format!("| {name} | refused: {error} |{}", " |".repeat(10)));
                continue;
            }
        };
        let p = peaks(&graph, lowering)?;
        let gaps = rules(&p.plain, &six)?;
        let (low, high) =
            gaps.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &gap| (low.min(gap), high.max(gap)));
        let saved = |peak: u64| format!("{:+}", peak as i64 - p.base as i64);
        let constant = constant(&p.plain).map_or("–".into(), |peak| peak.to_string());
        found.line(format!(
            "| {name} | {} | {} | {} | {} | {constant} | {low:+.1} / {high:+.1} % | {} | {}{} | {} | {} | {} |",
            graph.ops.len(),
            p.buffers,
            p.naive,
            p.base,
            saved(p.in_place),
            saved(p.reordered),
            if p.optimal { "" } else { " (not proved the best order)" },
            saved(p.both),
            saved(p.streamed),
            p.kept
        ));
        models += 1;
        better += u32::from(p.both < p.base);
        bytes += p.base - p.both.min(p.base);
    }
    found.target(
        "further bytes saved per model by in-place operators and reordering",
        format!("on {better} of {models} models, {bytes} B together; table below"),
        models > 0,
        "",
    );
    Ok(found)
}

/// Shows what transformations save on ONNX models.
pub fn onnx(_: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    found.line(
        "Activations, 16-byte alignment, reshapes as views where sharing is on; rematerialisation for at most a tenth more \
         elements; streaming in 8 chunks. Differences to the plan, in bytes.\n",
    );
    found.line(head(&[
        "model",
        "buffers",
        "no sharing at all",
        "planned",
        "in place, views",
        "reordered",
        "both",
        "rematerialised",
        "streamed, in place",
        "groups",
    ]));
    let list: [(&str, &[(&str, u64)]); 4] = [
        ("kws_dscnn", &[]),
        ("resnet8_cifar", &[("batch", 1)]),
        ("encoder2_dyn", &[("batch", 1), ("seq", 64)]),
        ("unet_w8", &[]),
    ];
    let lowering = Lowering { align: 16, ..Lowering::default() };
    let mut lines = Vec::new();
    for (name, dims) in list {
        let dims: BTreeMap<String, u64> = dims.iter().map(|&(n, d)| (n.into(), d)).collect();
        let path = own(&format!("onnx/{name}.onnx"));
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let graph = read_onnx(&bytes, &dims)?;
        let p = peaks(&graph, lowering)?;
        let budget = graph.ops.iter().map(|op| op.cost).sum::<u64>() / 10;
        let again = plan(
            &rematerialise(&graph, lowering, budget, &Deadline::never()).graph.instance(lowering)?,
            None,
            5.0,
            0,
        )?
        .peak;
        let saved = |peak: u64| format!("{:+}", peak as i64 - p.base as i64);
        found.line(format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            p.buffers,
            p.naive,
            p.base,
            saved(p.in_place),
            saved(p.reordered),
            saved(p.both),
            saved(again),
            saved(p.streamed),
            p.kept
        ));
        lines.push(format!("{name} {}", saved(p.both.min(p.in_place))));
    }
    found.target("further bytes saved per ONNX model (in place, views)", lines.join(", "), true, "");
    Ok(found)
}
