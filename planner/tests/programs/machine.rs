//! Stands in for the operators of a generated program: fills each tensor with a pattern when it is made, and checks it at each use.

use std::collections::HashMap;

/// A tensor, the parameter that it lies in, its bytes, whether it is kept from run to run, and whether it is an output.
pub type Tensor = (&'static str, &'static str, usize, bool, bool);

pub struct Step {
    pub act: &'static str,
    pub reads: &'static [Tensor],
    pub writes: &'static [Tensor],
    pub overwrites: &'static [&'static str],
    pub view_of: &'static str,
}

/// A call that is expected: a step, and one of its tensors where each has a call of its own.
type Expected = (usize, Option<usize>);

pub struct Machine {
    steps: &'static [Step],
    holds: HashMap<&'static str, Vec<u8>>,
    mark: usize,
    at: usize,
    prepared: usize,
    begun: bool,
}

impl Machine {
    pub fn new(steps: &'static [Step]) -> Self {
        Self { steps, holds: HashMap::new(), mark: 0, at: 0, prepared: 0, begun: false }
    }

    pub fn begin(&mut self) {
        (self.at, self.begun) = (0, true);
    }

    /// Checks that all calls came.
    pub fn end(&mut self) {
        self.inner();
        assert_eq!(self.at, self.calls().len(), "calls are missing");
    }

    /// The calls of a run in order; steps without a call are there too.
    fn calls(&self) -> Vec<Expected> {
        let mut calls = Vec::new();
        for (n, step) in self.steps.iter().enumerate() {
            match step.act {
                "Given" => calls.extend((0..step.writes.len()).filter(|&k| !step.writes[k].3).map(|k| (n, Some(k)))),
                "Taken" => calls.extend((0..step.reads.len()).filter(|&k| step.reads[k].4).map(|k| (n, Some(k)))),
                "Load" => calls.extend((0..step.writes.len()).map(|k| (n, Some(k)))),
                _ => calls.push((n, None)),
            }
        }
        calls
    }

    /// Goes over the steps that call nothing.
    fn inner(&mut self) {
        let calls = self.calls();
        while let Some(&(n, None)) = calls.get(self.at) {
            let step = &self.steps[n];
            let (Some(from), Some(to)) = (step.reads.first(), step.writes.first()) else { return };
            let copied = step.act == "Copy" || (!step.view_of.is_empty() && step.writes.len() == 1);
            if !copied {
                return;
            }
            let held = self.holds[from.0][..to.2].to_vec();
            self.holds.insert(to.0, held);
            self.at += 1;
        }
    }

    fn fresh(&mut self, bytes: usize) -> Vec<u8> {
        self.mark += 1;
        (0..bytes).map(|n| (self.mark * 101 + self.mark / 7 + n * 13 + 1) as u8).collect()
    }

    fn fill(&mut self, given: &mut [(&str, &mut [u8])], tensor: Tensor) {
        let bytes = self.fresh(tensor.2);
        let (_, memory) = given.iter_mut().find(|(name, _)| *name == tensor.1).expect("the parameter is there");
        memory[..bytes.len()].copy_from_slice(&bytes);
        self.holds.insert(tensor.0, bytes);
    }

    fn check(&self, given: &[(&str, &mut [u8])], tensor: Tensor) {
        let (_, memory) = given.iter().find(|(name, _)| *name == tensor.1).expect("the parameter is there");
        assert_eq!(memory[..tensor.2], self.holds[tensor.0], "{} is wrong", tensor.0);
    }

    pub fn call(&mut self, given: &mut [(&str, &mut [u8])]) {
        if !self.begun {
            let kept = |step: &&Step| step.act == "Given";
            let tensors: Vec<Tensor> =
                self.steps.iter().filter(kept).flat_map(|step| step.writes).copied().filter(|tensor| tensor.3).collect();
            self.fill(given, tensors[self.prepared]);
            self.prepared += 1;
            return;
        }
        self.inner();
        let (n, one) = self.calls()[self.at];
        self.at += 1;
        let step = &self.steps[n];
        match (step.act, one) {
            ("Taken", Some(k)) => self.check(given, step.reads[k]),
            (_, Some(k)) => self.fill(given, step.writes[k]),
            _ => {
                step.reads.iter().for_each(|&tensor| self.check(given, tensor));
                if let (false, Some(to)) = (step.view_of.is_empty(), step.writes.first()) {
                    let held = self.holds[step.view_of][..to.2].to_vec();
                    self.holds.insert(to.0, held);
                }
                for &tensor in step.writes.iter().skip(usize::from(!step.view_of.is_empty())) {
                    self.fill(given, tensor);
                }
                for &tensor in step.reads {
                    let written = step.writes.iter().any(|own| own.0 == tensor.0);
                    if !written && !step.overwrites.contains(&tensor.0) {
                        self.check(given, tensor);
                    }
                }
            }
        }
    }
}
