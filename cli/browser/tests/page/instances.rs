//! The page of the collection of instances in Chromium: sorted by its headings, its plans drawn and pointed at.

use std::path::Path;

use allotment_cli::plan::{PlanArgs, plan};
use clap::Parser;
use serde_json::Value;

use super::browser::Window;
use super::page::DRAWN;

/// `allotment plan`.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    plan: PlanArgs,
}

/// The texts of a column's cells, from the top.
fn column(window: &Window, number: usize) -> Vec<String> {
    let cells =
        format!("[...document.querySelectorAll('#body td:nth-child({number})')].map(c => c.textContent)");
    serde_json::from_value(window.value(&cells)).unwrap()
}

#[test]
fn instances_are_sorted_and_drawn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../planner/instances");
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instances.html");
    let words = ["plan".as_ref(), "--bench".as_ref(), "--stored".as_ref(), "-q".as_ref(), folder.as_os_str()];
    let command = Command::parse_from(words.into_iter().chain(["-o".as_ref(), page.as_os_str()]));
    assert!(plan(&command.plan).unwrap());
    let ready = "document.querySelector('#body tr[aria-selected=true]') !== null";
    let Some(window) = Window::open_when(&page, (1400, 1000), "light", ready) else { return };

    // Each row has a small drawing of its plan, and the first one a large one.
    let listed = std::fs::read_to_string(folder.join("instances.csv")).unwrap().lines().count() - 1;
    let names = column(&window, 1);
    assert_eq!(names.len(), listed);
    let drawn = window.value(DRAWN);
    assert_eq!(drawn.as_array().unwrap().len(), listed + 1);
    assert!(drawn.as_array().unwrap().iter().all(|canvas| canvas[1].as_f64().unwrap() > 0.9), "{drawn}");

    // A heading sorts by numbers, and once more the other way round; the bound is never above the peak.
    let numbers = |number: usize| -> Vec<u64> {
        column(&window, number).iter().map(|text| text.replace(',', "").parse().unwrap()).collect()
    };
    window.click("#head th:nth-child(3) button");
    let up = numbers(3);
    assert!(up.is_sorted() && up[0] < up[listed - 1], "{up:?}");
    window.click("#head th:nth-child(3) button");
    assert!(numbers(3).into_iter().rev().is_sorted());
    assert_eq!(window.value("document.querySelector('#head th:nth-child(3)').ariaSort"), "descending");
    assert!(numbers(4).iter().zip(numbers(5)).all(|(&bound, peak)| bound <= peak));
    assert_ne!(column(&window, 1), names);

    // A row shows its plan; a buffer that is pointed at says its size, place and time.
    window.click("#body tr:nth-child(2)");
    let chosen = window.value("document.querySelector('#body tr:nth-child(2)').ariaSelected");
    assert_eq!(chosen, Value::from("true"));
    let name = &column(&window, 1)[1];
    assert!(window.text("#name").starts_with(&format!("{name}: ")), "{}", window.text("#name"));
    window.hover_until("#plan", "document.querySelector('#said').textContent.includes(' B at ')");
    assert_eq!(window.complaints(), [""; 0]);
}
