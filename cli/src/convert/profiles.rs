//! Writes profiles for the viewers of other profilers: the costs of each stack, without events.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::Form;
use super::pprof::pprof;
use crate::profile::{Costs, Measure, Profile, labels};

/// Writes a profile in the format `form`; folded stacks count `by`.
///
/// # Errors
/// Those of the output.
pub fn write(profile: &Profile, form: Form, by: Measure, output: &mut impl Write) -> io::Result<()> {
    match form {
        Form::Pprof => output.write_all(&pprof(profile)),
        Form::Dhat => {
            serde_json::to_writer(&mut *output, &dhat(profile))?;
            writeln!(output)
        }
        _ => folded(profile, by, output),
    }
}

/// Returns the names of a stack's functions, the outermost first.
fn names(profile: &Profile, number: u32) -> Vec<String> {
    let labels = labels(&profile.stacks, number);
    if labels.is_empty() {
        return vec!["(not known)".into()];
    }
    labels.iter().rev().map(|label| label.function.to_string()).collect()
}

/// Writes a line for each stack, for `flamegraph.pl`, inferno and speedscope.
fn folded(profile: &Profile, by: Measure, output: &mut impl Write) -> io::Result<()> {
    let mut lines: HashMap<String, u64> = HashMap::new();
    for (number, costs) in (0..).zip(&profile.by_stack).filter(|(_, costs)| by.of(costs) > 0) {
        let names: Vec<String> = names(profile, number).iter().map(|name| name.replace(';', ":")).collect();
        *lines.entry(names.join(";")).or_default() += by.of(costs);
    }
    let mut lines: Vec<(String, u64)> = lines.into_iter().collect();
    lines.sort_unstable();
    for (names, figure) in lines {
        writeln!(output, "{names} {figure}")?;
    }
    Ok(())
}

/// Returns the profile in the format of Valgrind's DHAT, version 2, for `dh_view.html`. Times are numbers of events.
fn dhat(profile: &Profile) -> Value {
    let mut frames = vec!["[root]".to_owned()];
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut points = Vec::new();
    for (number, costs) in (0..).zip(&profile.by_stack).filter(|(_, costs)| costs.calls > 0) {
        let lines: Vec<usize> = labels(&profile.stacks, number)
            .iter()
            .map(|label| {
                *numbers.entry(label.to_string()).or_insert_with_key(|text| {
                    frames.push(text.clone());
                    frames.len() - 1
                })
            })
            .collect();
        let &Costs { calls, bytes, blocks, live, peak, peak_blocks, most, most_blocks, lifetimes, .. } =
            costs;
        points.push(json!({
            "tb": bytes, "tbk": calls, "tl": lifetimes, "mb": most, "mbk": most_blocks,
            "gb": peak, "gbk": peak_blocks, "eb": live, "ebk": blocks, "fs": lines,
        }));
    }
    json!({
        "dhatFileVersion": 2, "mode": "heap", "verb": "Allocated", "bklt": true, "bkacc": false,
        "tu": "events", "Mtu": "Mevents", "tuth": 1,
        "cmd": profile.name, "pid": 0, "tg": profile.peak_event, "te": profile.events,
        "pps": points, "ftbl": frames,
    })
}
