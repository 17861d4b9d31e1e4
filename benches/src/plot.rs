//! Charts of the tables.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::results::Results;
use crate::subjects;
use crate::table::{Table, ordered};

/// Colours that can be told apart with most kinds of colour vision.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 150, 160),
];

/// Draws one bar per subject: the geometric mean over the cases that every subject of the chart has.
pub fn bars(path: &Path, table: &Table, results: &Results) -> Result<()> {
    // Use the first column if there are several, otherwise all cases.
    let columns = table.columns(results);
    let cases = if table.sets { columns[0].1.clone() } else { results.cases(table.metric) };
    let mut bars = Vec::new();
    for id in ordered(results.subjects(table.metric)) {
        if let Some(value) = table.value(results, &cases, &id) {
            bars.push((id, value));
        }
    }
    let longest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if longest <= 0.0 {
        return Ok(());
    }
    let (row, left) = (22, 170);
    let height = 50 + row * bars.len() as u32;
    let area = SVGBackend::new(path, (760, height)).into_drawing_area();
    let draw = || -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        area.fill(&WHITE)?;
        area.draw(&Text::new(
            format!("{} ({}, geometric mean)", table.title, table.metric),
            (10, 12),
            ("sans-serif", 15),
        ))?;
        // One long bar must not hide the others.
        let mut sorted: Vec<f64> = bars.iter().map(|bar| bar.1).collect();
        sorted.sort_by(f64::total_cmp);
        let typical = sorted[sorted.len() * 3 / 4] * 1.3;
        let scale = 490.0 / longest.min(typical);
        for (place, (id, value)) in bars.iter().enumerate() {
            let y = 40 + (row as usize * place) as i32;
            let own = subjects::is_own(id);
            let colour = if own { COLOURS[0] } else { RGBColor(170, 170, 170) };
            let end = left + (value * scale).min(490.0) as i32;
            area.draw(&Text::new(id.clone(), (10, y), ("sans-serif", 13)))?;
            area.draw(&Rectangle::new([(left, y - 1), (end, y + 13)], colour.filled()))?;
            let more = if value * scale > 490.0 { " →" } else { "" };
            let label = format!("{value:.0$}{more}", table.digits);
            area.draw(&Text::new(label, (end + 5, y), ("sans-serif", 13)))?;
        }
        area.present()
    };
    draw().map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

/// Draws one line per subject over numeric cases, with both axes logarithmic.
pub fn curves(path: &Path, table: &Table, results: &Results) -> Result<()> {
    let mut lines = Vec::new();
    for id in ordered(results.subjects(table.metric)) {
        let points: Vec<(f64, f64)> = results
            .cases(table.metric)
            .iter()
            .filter_map(|case| Some((case.parse().ok()?, results.get(table.metric, case, &id)?)))
            .filter(|&(x, y): &(f64, f64)| x > 0.0 && y > 0.0)
            .collect();
        lines.push((id, points));
    }
    let all: Vec<(f64, f64)> = lines.iter().flat_map(|line| line.1.iter().copied()).collect();
    if all.is_empty() {
        return Ok(());
    }
    let least = |f: fn(&(f64, f64)) -> f64| all.iter().map(f).fold(f64::INFINITY, f64::min);
    let most = |f: fn(&(f64, f64)) -> f64| all.iter().map(f).fold(0.0, f64::max);
    let (x0, x1, y0, y1) = (least(|p| p.0), most(|p| p.0), least(|p| p.1), most(|p| p.1));
    let area = SVGBackend::new(path, (820, 460)).into_drawing_area();
    let draw = || -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        area.fill(&WHITE)?;
        let (chart, legend) = area.split_horizontally(640);
        let mut chart = ChartBuilder::on(&chart)
            .caption(table.title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((x0..x1 * 1.01).log_scale(), (y0 * 0.8..y1 * 1.2).log_scale())?;
        chart
            .configure_mesh()
            .y_desc(table.metric)
            .x_label_formatter(&|x| quantity(*x))
            .y_label_formatter(&|y| quantity(*y))
            .draw()?;
        for (place, (id, points)) in lines.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let own = subjects::is_own(id);
            let style =
                ShapeStyle { color: colour.to_rgba(), filled: false, stroke_width: 1 + u32::from(own) };
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
            let y = 40 + 20 * place as i32;
            legend.draw(&PathElement::new(vec![(0, y + 6), (20, y + 6)], style))?;
            legend.draw(&Text::new(id.clone(), (26, y), ("sans-serif", 13)))?;
        }
        area.present()
    };
    draw().map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

/// Formats a number as briefly as possible.
fn quantity(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let text = format!("{value:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}
