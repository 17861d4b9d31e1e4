//! Training and generation with PyTorch.

use allotment_planner::greedy::Baseline;
use anyhow::Result;

use super::run::{above, find, head, percent, plan, read, rules};
use super::{Args, Findings};

const RULES: [Baseline; 4] =
    [Baseline::TfLiteMicro, Baseline::SizeBestFit, Baseline::FirstFitByBirth, Baseline::FirstFitByDuration];

/// Plans one steady iteration of each.
pub fn torch(args: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    found.line("20 s at most; the rules of others are re-implemented, in percent above the bound.\n");
    let mut columns = vec!["instance", "buffers", "peak, B", "above the bound", "result"];
    columns.extend(RULES.map(Baseline::name));
    found.line(head(&columns));
    let (mut worse, mut seen) = (Vec::new(), 0);
    for name in ["resnet18_train", "gpt_train", "unet_train", "gpt_generate"] {
        let Some(path) = find(args, &format!("torch/{name}.csv")) else { continue };
        let instance = read(&path)?;
        let peers = rules(&instance, &RULES)?;
        let s = plan(&instance, None, 20.0, 0)?;
        let gap = above(s.peak, s.lower_bound);
        let best = peers.iter().copied().fold(f64::INFINITY, f64::min);
        seen += 1;
        if gap > best + 1e-9 {
            worse.push(name);
        }
        let peers: Vec<String> = peers.iter().map(|gap| format!("{gap:+.2} %")).collect();
        let ours = percent(s.peak, s.lower_bound);
        found.line(format!(
            "| {name} | {} | {} | {ours} | {s} | {} |",
            instance.len(),
            s.peak,
            peers.join(" | ")
        ));
        for (wanted, most) in [("unet_train", 1.0), ("gpt_generate", 5.0)] {
            if name == wanted {
                found.target(&format!("{name} ≤ +{most} %"), format!("{gap:+.2} %, {s}"), gap <= most, "");
            }
        }
    }
    let summary =
        if worse.is_empty() { format!("never, on {seen}") } else { format!("on {}", worse.join(", ")) };
    found.target(
        "never worse than the best of three simple rules",
        summary,
        worse.is_empty() && seen > 0,
        "",
    );
    Ok(found)
}
