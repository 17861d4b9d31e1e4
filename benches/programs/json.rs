//! JSON with serde_json: documents are written, parsed as values and as types, changed and written again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Serialize, Deserialize)]
struct Person {
    id: u64,
    name: String,
    tags: Vec<String>,
    scores: BTreeMap<String, f64>,
    friends: Vec<Friend>,
    note: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Friend {
    id: u64,
    name: String,
}

/// Runs it; the bytes that were written.
pub fn run(percent: usize) -> u64 {
    let mut random = fastrand::Rng::with_seed(1);
    let mut written = 0;
    for _ in 0..4 {
        let people: Vec<Person> = (0..30 * percent as u64).map(|id| person(id, &mut random)).collect();
        let text = serde_json::to_string(&people).expect("it can be written");
        let mut value: Value = serde_json::from_str(&text).expect("it was written here");
        change(&mut value);
        let pretty = serde_json::to_string_pretty(&value).expect("it can be written");
        let mut typed: Vec<Person> = serde_json::from_str(&text).expect("it was written here");
        typed.retain(|person| person.id % 3 != 0);
        typed.sort_by(|a, b| a.name.cmp(&b.name));
        let by_name: BTreeMap<String, &Person> =
            typed.iter().map(|person| (person.name.clone(), person)).collect();
        let again = serde_json::to_vec(&by_name).expect("it can be written");
        written += (text.len() + pretty.len() + again.len()) as u64;
    }
    written
}

fn word(random: &mut fastrand::Rng) -> String {
    (0..random.usize(3..18)).map(|_| random.lowercase()).collect()
}

fn person(id: u64, random: &mut fastrand::Rng) -> Person {
    Person {
        id,
        name: format!("{} {}", word(random), word(random)),
        tags: (0..random.usize(..6)).map(|_| word(random)).collect(),
        scores: (0..random.usize(..8)).map(|_| (word(random), f64::from(random.u16(..)) / 8.0)).collect(),
        friends: (0..random.usize(..5)).map(|id| Friend { id: id as u64, name: word(random) }).collect(),
        note: random.bool().then(|| (0..random.usize(1..20)).map(|_| word(random) + " ").collect()),
    }
}

/// Turns numbers into text and lists around.
fn change(value: &mut Value) {
    match value {
        Value::Number(number) => *value = Value::String(number.to_string()),
        Value::Array(values) => {
            values.reverse();
            values.iter_mut().for_each(change);
        }
        Value::Object(fields) => {
            fields.remove("note");
            fields.values_mut().for_each(change);
        }
        _ => {}
    }
}
