//! Draws the memory of a program: in place on a terminal, elsewhere as consecutive text.

use std::collections::VecDeque;
use std::io::{self, Write};

use super::follow::{Line, Moment};
use crate::profile::Measure;
use crate::text::plain;

/// Rows of the chart.
const ROWS: usize = 5;

/// The eighths of a row, from the bottom.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Largest number of moments that the chart shows.
const MOMENTS: usize = 500;

/// The screen and the moments it shows.
pub struct Screen {
    terminal: bool,
    lines: usize,
    by: Measure,
    live: VecDeque<u64>,
    opened: bool,
}

impl Drop for Screen {
    fn drop(&mut self) {
        // An error comes with a message, which belongs on the usual screen.
        let _ = self.close();
    }
}

impl Screen {
    /// Creates a screen with at most `lines` lines of the program.
    pub fn new(terminal: bool, lines: usize, by: Measure) -> Self {
        Self { terminal, lines, by, live: VecDeque::new(), opened: false }
    }

    /// Draws a moment.
    pub fn draw(&mut self, moment: &Moment) -> io::Result<()> {
        self.live.push_back(moment.live);
        if self.live.len() > MOMENTS {
            self.live.pop_front();
        }
        let size = self.terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
        // A terminal may not know its size.
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (width, height) =
            size.map_or((100, usize::MAX), |size| (size.ws_col.into(), usize::from(size.ws_row)));
        let lines = self.picture(moment, width, height);
        let mut out = io::stdout().lock();
        if !self.terminal {
            writeln!(out, "{}\n", lines.join("\n"))?;
            return out.flush();
        }
        // Use the alternate screen, without a cursor, so that the old contents return at the end.
        let open = if std::mem::replace(&mut self.opened, true) { "" } else { "\x1b[?1049h\x1b[?25l" };
        let end = "\x1b[K";
        write!(out, "{open}\x1b[H{}{end}\x1b[J", lines.join(&format!("{end}\r\n")))?;
        out.flush()
    }

    /// Restores the terminal.
    pub fn close(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.opened) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "\x1b[?25h\x1b[?1049l")?;
        out.flush()
    }

    fn picture(&self, moment: &Moment, width: usize, height: usize) -> Vec<String> {
        let Moment { program, seconds, events, peak, others, live, blocks, grows, calls, .. } = moment;
        let estimates = if moment.sampled { ", estimates" } else { "" };
        let more = if *others > 0 { format!(", {others} more processes or images") } else { String::new() };
        let mut lines = vec![
            format!("{program}: {seconds:.0} s, {events} events, {calls} calls/s{estimates}{more}"),
            format!("live {} in {blocks} blocks, peak {}, {}/s", size(*live), size(*peak), signed(*grows)),
        ];
        lines.extend(chart(&self.live, width));
        let what = match self.by {
            Measure::Live | Measure::Peak | Measure::Bytes => "",
            Measure::Calls => " calls",
            Measure::Temporary => " blocks",
        };
        lines.push(format!("{:>11} {:>12} {:>9}  {}{what}", "live", "grows /s", "blocks", self.by.meaning()));
        let room = height.saturating_sub(lines.len() + 1).min(self.lines);
        lines.extend(moment.lines.iter().take(room).map(|line| self.row(line)));
        lines.into_iter().map(|line| plain(&line).chars().take(width).collect()).collect()
    }

    fn row(&self, line: &Line) -> String {
        let Line { function, file, line: number, costs, grows } = line;
        let by = match self.by {
            Measure::Live => String::new(),
            Measure::Calls | Measure::Temporary => format!("{}  ", self.by.of(costs)),
            Measure::Peak | Measure::Bytes => format!("{}  ", size(self.by.of(costs))),
        };
        let place = file.as_ref().map_or(String::new(), |file| {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("  {name}:{number}")
        });
        format!("{:>11} {:>12} {:>9}  {by}{function}{place}", size(costs.live), signed(*grows), costs.blocks)
    }
}

/// Draws as many of the last figures as fit, on a scale from 0 to the largest.
fn chart(figures: &VecDeque<u64>, width: usize) -> Vec<String> {
    let shown: Vec<u64> = figures.iter().rev().take(width).rev().copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0).max(1);
    let full = ROWS * 8;
    let heights: Vec<usize> =
        shown.iter().map(|&figure| (figure as f64 / most as f64 * full as f64).round() as usize).collect();
    (0..ROWS)
        .rev()
        .map(|row| heights.iter().map(|height| EIGHTHS[height.saturating_sub(row * 8).min(8)]).collect())
        .collect()
}

/// Writes bytes with a unit.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / f64::from(power * 10).exp2(), units[power as usize]),
    }
}

fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "+" }, size(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_reach_from_nothing_to_the_most() {
        let lines = chart(&VecDeque::from([0, 20, 40]), 2);
        assert_eq!(lines, [" █", " █", "▄█", "██", "██"]);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            [size(0), size(1023), size(1536), size(u64::MAX)],
            ["0 B", "1023 B", "1.5 KiB", "16777216.0 TiB"]
        );
        assert_eq!([signed(-2048), signed(1)], ["-2.0 KiB", "+1 B"]);
    }
}
