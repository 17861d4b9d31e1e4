//! Two steps at a time: most steps in their order, and beside them, in theirs, those that build in other target folders.
//!
//! Much of a step runs on one core: linking, optimising a whole program, or booting one board after the other. Cargo
//! lets only one build at a time into a target folder.

use std::sync::mpsc;
use std::thread;

use super::Step;
use super::output::Output;
use crate::progress;

/// Runs all steps, and returns the names of those that failed, in the order of `steps`. `run` returns whether one succeeded.
///
/// What the steps of the second lane print is kept, and shown whole where no other step is in the middle of its own.
pub fn run(
    steps: &[&'static Step],
    run: impl Fn(&'static Step, &Output<'_>) -> bool + Sync,
) -> Vec<&'static str> {
    let (beside, line): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|step| step.beside);
    let (sender, ended) = mpsc::channel();
    let run = &run;
    let mut failed = Vec::new();
    thread::scope(|scope| {
        scope.spawn(move || {
            for step in beside {
                let output = Output::kept();
                let succeeded = run(step, &output);
                // The receiver waits for this lane.
                let _ = sender.send((step, succeeded, output));
            }
        });
        let mut end = |step: &Step, succeeded: bool| {
            if !succeeded {
                failed.push(step.name);
            }
        };
        let mut show = |(step, succeeded, output): (&Step, bool, Output<'_>)| {
            output.show();
            end(step, succeeded);
        };
        for step in line {
            let succeeded = run(step, &Output::live(&progress::show(step.name.into())));
            show((step, succeeded, Output::kept()));
            ended.try_iter().for_each(&mut show);
        }
        let progress = progress::show("waiting for what runs beside the other steps".into());
        for outcome in &ended {
            progress.spoken();
            show(outcome);
        }
    });
    failed.sort_unstable_by_key(|name| steps.iter().position(|step| step.name == *name));
    failed
}

#[cfg(test)]
mod tests {
    use super::super::Tier;
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    #[test]
    fn two_steps_run_at_a_time_and_each_lane_keeps_its_order() {
        static STEPS: [Step; 5] = [
            Step::new("a", Tier::Landing, "a").beside(),
            Step::new("b", Tier::Landing, "b"),
            Step::new("c", Tier::Landing, "c").beside(),
            Step::new("d", Tier::Landing, "d"),
            Step::new("e", Tier::Landing, "e"),
        ];
        let (count, changed) = (Mutex::new(0_usize), Condvar::new());
        let order = Mutex::new(String::new());
        let steps: Vec<_> = STEPS.iter().collect();
        let failed = run(&steps, |step, output| {
            if matches!(step.name, "a" | "b" | "c" | "d") {
                // None of these two ends without the other.
                let mut begun = count.lock().unwrap();
                *begun += 1;
                changed.notify_all();
                let both = begun.next_multiple_of(2);
                let limit = Duration::from_secs(60);
                let (_begun, outcome) =
                    changed.wait_timeout_while(begun, limit, |begun| *begun < both).unwrap();
                assert!(!outcome.timed_out(), "no other step runs");
            }
            output.say("");
            order.lock().unwrap().push_str(step.name);
            matches!(step.name, "a" | "d")
        });
        assert_eq!(failed, ["b", "c", "e"]);
        let order = order.into_inner().unwrap();
        let of = |names: &str| order.chars().filter(|&step| names.contains(step)).collect::<String>();
        assert_eq!((of("ac"), of("bde")), ("ac".into(), "bde".into()));
    }
}
