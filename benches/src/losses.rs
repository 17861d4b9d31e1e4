//! Finds where a peer is ahead.

use crate::results::Results;
use crate::subjects::{self, Form};
use crate::table::{Better, HARNESS, Table, ordered};

/// A column in which a peer beats the best of ours.
pub struct Loss {
    /// The head of the column.
    pub column: String,
    /// The best peer.
    pub peer: String,
    /// Its figure.
    pub theirs: f64,
    /// The best of ours.
    pub own: String,
    /// Its figure.
    pub ours: f64,
}

impl Loss {
    /// By which factor the peer is ahead.
    pub fn factor(&self) -> f64 {
        let factor = self.theirs / self.ours;
        if factor < 1.0 { factor.recip() } else { factor }
    }
}

/// Returns in how many columns a table compares ours with peers, and those in which a peer is ahead. Stripped heaps do
/// not count, since programs do not register them.
pub fn of(table: &Table, results: &Results) -> (usize, Vec<Loss>) {
    let columns = table.columns(results);
    let subjects = ordered(results.subjects(table.metric));
    let own = subjects::is_own;
    // Offsets without memory behind them do not compete, and subjects without an arena limit only where that is
    // allowed.
    let fair = |id: &str, form: Option<Form>| match subjects::entry(id) {
        Some(entry) => {
            (table.level || entry.confined && entry.memory)
                && entry.form != Form::Stripped
                && form.is_none_or(|form| entry.form == form)
        }
        None => id != HARNESS,
    };
    let best = |cases: &[String], form: Option<Form>, ours: bool| {
        let candidates = subjects.iter().filter(|id| own(id) == ours && fair(id, form));
        let values = candidates.filter_map(|id| Some((id, table.value(results, cases, id)?)));
        let values = values.filter(|(_, value)| value.is_finite());
        match table.better {
            Better::Higher => values.max_by(|a, b| a.1.total_cmp(&b.1)),
            _ => values.min_by(|a, b| a.1.total_cmp(&b.1)),
        }
    };
    let forms: &[Option<Form>] =
        if table.by_form { &[Some(Form::Registered), Some(Form::Bare)] } else { &[None] };
    let (mut compared, mut lost) = (0, Vec::new());
    for (head, cases) in &columns {
        for &form in forms {
            let (Some(ours), Some(theirs)) = (best(cases, form, true), best(cases, form, false)) else {
                continue;
            };
            compared += 1;
            let behind = match table.better {
                Better::Higher => theirs.1 > ours.1,
                _ => theirs.1 < ours.1,
            };
            if behind {
                lost.push(Loss {
                    column: head.clone(),
                    peer: theirs.0.clone(),
                    theirs: theirs.1,
                    own: ours.0.clone(),
                    ours: ours.1,
                });
            }
        }
    }
    (compared, lost)
}
