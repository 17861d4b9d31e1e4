//! Builds the page's tree of calls with the costs of each.

use std::collections::HashMap;

use serde::Serialize;

use crate::profile::{Costs, Label, Measure, Profile, labels};

/// A call with less than this part of all costs is added to its caller.
const LEAST: u64 = 20_000;

/// The tree of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Who {
    /// Functions: name, file, line. The first is the whole.
    pub frames: Vec<(String, String, u32)>,
    /// Calls: the caller's number, the function, and what the call itself costs: bytes live at the end, at the peak, in all, requests,
    /// temporary blocks, blocks live at the end. The first is the whole.
    pub nodes: Vec<[u64; 8]>,
}

/// The tree under construction.
struct Tree {
    frames: Vec<Label>,
    numbers: HashMap<Label, usize>,
    nodes: Vec<(usize, usize, Costs)>,
    children: HashMap<(usize, usize), usize>,
}

impl Tree {
    fn frame(&mut self, label: Label) -> usize {
        if let Some(&known) = self.numbers.get(&label) {
            return known;
        }
        self.frames.push(label.clone());
        self.numbers.insert(label, self.frames.len() - 1);
        self.frames.len() - 1
    }

    fn child(&mut self, parent: usize, frame: usize) -> usize {
        let next = self.nodes.len();
        let node = *self.children.entry((parent, frame)).or_insert(next);
        if node == next {
            self.nodes.push((parent, frame, Costs::default()));
        }
        node
    }
}

impl Who {
    /// Builds the tree of a profile, and finds the call of each stack; `None` if the trace has no stacks.
    pub fn of(profile: &Profile) -> Option<(Self, HashMap<u32, u32>)> {
        if !profile.has_stacks() {
            return None;
        }
        let whole = Label { function: "all".into(), file: None, line: 0 };
        let (frames, nodes) = (vec![whole], vec![(0, 0, Costs::default())]);
        let mut tree = Tree { frames, numbers: HashMap::new(), nodes, children: HashMap::new() };
        let mut leaves = HashMap::new();
        for (number, costs) in (0..).zip(&profile.by_stack) {
            let mut node = 0;
            if costs.calls == 0 {
                continue;
            }
            let mut stack = labels(&profile.stacks, number);
            if stack.is_empty() {
                stack.push(Label { function: "(not known)".into(), file: None, line: 0 });
            }
            for label in stack.into_iter().rev() {
                let frame = tree.frame(label);
                node = tree.child(node, frame);
            }
            tree.nodes[node].2.add(costs);
            leaves.insert(number, node);
        }
        let (nodes, kept) = pruned(tree.nodes, &profile.total);
        let name = |label: &Label| {
            (label.function.to_string(), label.file.as_deref().unwrap_or_default().to_owned(), label.line)
        };
        let frames = tree.frames.iter().map(name).collect();
        let leaves = leaves.into_iter().map(|(number, node)| (number, kept[node] as u32)).collect();
        Some((Self { frames, nodes }, leaves))
    }
}

/// Leaves out calls that cost next to nothing, and returns the rest and the new number of each node.
fn pruned(nodes: Vec<(usize, usize, Costs)>, total: &Costs) -> (Vec<[u64; 8]>, Vec<usize>) {
    let mut sums: Vec<Costs> = nodes.iter().map(|&(_, _, costs)| costs).collect();
    // Callers come before those whom they call.
    for node in (1..nodes.len()).rev() {
        let costs = sums[node];
        sums[nodes[node].0].add(&costs);
    }
    let counts = |costs: &Costs| {
        Measure::ALL.iter().any(|measure| {
            let (part, whole) = (measure.of(costs), measure.of(total));
            part > 0 && part.saturating_mul(LEAST) >= whole
        })
    };
    let mut kept = vec![0; nodes.len()];
    let mut out: Vec<[u64; 8]> = Vec::new();
    for (node, &(parent, frame, costs)) in nodes.iter().enumerate() {
        kept[node] = kept[parent];
        if node == 0 || counts(&sums[node]) {
            out.push([kept[parent] as u64, frame as u64, 0, 0, 0, 0, 0, 0]);
            kept[node] = out.len() - 1;
        }
        let Costs { live, peak, bytes, calls, temporary, blocks, .. } = costs;
        let cells = &mut out[kept[node]][2..];
        for (cell, cost) in cells.iter_mut().zip([live, peak, bytes, calls, temporary, blocks]) {
            *cell += cost;
        }
    }
    (out, kept)
}
