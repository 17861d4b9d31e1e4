//! Explanations name the moment, the buffers and what helps.

mod common;

use allotment_planner::bounds::load_bound;
use allotment_planner::deadline::Deadline;
use allotment_planner::explain::{Remedy, explain};
use allotment_planner::model::{Buffer, Instance};
use common::{read, solved};

#[test]
fn the_tight_moment_is_named_and_its_relief_is_real() {
    let buffers = vec![
        Buffer::new("early", 10, 0, 3),
        Buffer::new("late", 30, 2, 6),
        Buffer::new("long", 20, 0, 9),
        Buffer::new("apart", 39, 7, 9),
    ];
    let instance = Instance::new(buffers).unwrap();
    let solution = solved(&instance, Some(50), 5);
    let explanation = explain(&instance, &solution, Some(50), &Deadline::never());
    assert_eq!((explanation.load, &explanation.steps[..]), (60, &[(2, 3)][..]));
    assert_eq!(
        explanation.live.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(),
        ["late", "long", "early"]
    );
    // Whatever is left, `long` and `apart` need 59 together.
    assert!(explanation.reliefs.iter().all(|relief| relief.saved <= 20));
    let spill = |id: &str| {
        explanation.reliefs.iter().find(|r| r.remedy == Remedy::Spill && r.buffer == id).unwrap().saved
    };
    assert_eq!((spill("early"), spill("late"), spill("long")), (1, 1, 20));
    let text = explanation.to_string();
    assert!(
        text.contains("steps 2..3")
            && text.contains("10 B above the capacity")
            && text.contains("spill long"),
        "{text}"
    );
}

/// A buffer that nothing reads or writes still has a place; one without bytes needs none.
#[test]
fn buffers_that_are_never_live_are_named() {
    let explained = |capacity, buffers| {
        let instance = Instance::new(buffers).unwrap();
        explain(&instance, &solved(&instance, capacity, 5), capacity, &Deadline::never())
    };
    let empty = explained(Some(4), vec![Buffer::new("empty", 0, 0, 2), Buffer::new("other", 0, 1, 3)]);
    assert_eq!((empty.load, empty.packing, &empty.alone), (0, 0, &None));
    assert_eq!(empty.to_string(), "No step needs memory.\n");
    let never = explained(Some(4), vec![Buffer::new("never", 10, 2, 2)]);
    assert_eq!((never.load, never.packing), (0, 0));
    assert_eq!(
        never.to_string(),
        "No step needs memory.\n10 B are needed for never alone, wherever the other buffers lie.\n\
         That is 6 B above the capacity: no placement can help.\n"
    );
    // Shortening `low` would save nothing, as `high` stays.
    let high = Buffer { fixed: Some(90), ..Buffer::new("high", 10, 0, 2) };
    let fixed = explained(None, vec![Buffer::new("low", 30, 0, 2), high]);
    assert_eq!((fixed.load, fixed.packing, fixed.alone.as_ref().unwrap().1), (40, 0, 100));
    assert!(fixed.reliefs.is_empty() && !fixed.to_string().contains("several steps"), "{fixed}");
}

/// Every relief that is promised holds when the buffer is taken out or halved.
#[test]
fn promises_hold_on_a_real_instance() {
    let instance = read("tflm/person_detect.sg0.csv");
    let explanation = explain(&instance, &solved(&instance, None, 5), None, &Deadline::never());
    assert!(!explanation.reliefs.is_empty());
    for relief in explanation.reliefs.iter().filter(|r| matches!(r.remedy, Remedy::Spill | Remedy::Shrink)) {
        let changed = instance.buffers().iter().map(|b| {
            let size = match relief.remedy {
                _ if b.id != relief.buffer => b.size,
                Remedy::Shrink => b.size / 2,
                _ => 0,
            };
            Buffer { size, ..b.clone() }
        });
        let after = load_bound(&Instance::new(changed.collect()).unwrap(), &Deadline::never()).unwrap().bytes;
        assert_eq!(explanation.load - after, relief.saved, "{relief:?}");
    }
}
