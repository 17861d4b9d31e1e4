//! Draws the curves.

use std::fmt::Write;
use std::path::Path;

use super::{Forecast, risk, thousands};
use crate::failure::Failure;
use crate::output::{endings, writable};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
const MARGIN: f64 = 70.0;
const COLOURS: [&str; 2] = ["#1f6fb4", "#c8501e"];
/// The lowest chance drawn, as a power of ten.
const LOWEST: f64 = -6.0;

/// Checks that the file can be written and has a known format.
pub fn check(path: &Path) -> Result<(), Failure> {
    match endings(path) {
        (form, None) if matches!(form.as_str(), "svg" | "html") => {
            writable(path).map_err(Failure::file(path))
        }
        _ => Err(Failure::Other(format!("{}: its ending must be .svg or .html", path.display()))),
    }
}

/// Writes the drawing.
pub fn write(path: &Path, forecast: &Forecast) -> Result<(), Failure> {
    let drawing = svg(forecast);
    let text = match endings(path).0.as_str() {
        "html" => format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>allotment endure</title><body>{drawing}</body></html>\n"
        ),
        _ => drawing,
    };
    crate::output::write(path, text).map_err(Failure::file(path))
}

fn svg(forecast: &Forecast) -> String {
    let points = || forecast.curves.iter().flat_map(|curve| &curve.points);
    let first = points().map(|point| point.arena).min().unwrap_or(0) as f64;
    let last = points().map(|point| point.arena).max().unwrap_or(1).max(forecast.arena) as f64;
    let x = |arena: usize| MARGIN + (arena as f64 - first) / (last - first).max(1.0) * (WIDTH - 2.0 * MARGIN);
    let y = |chance: f64| MARGIN + chance.log10().clamp(LOWEST, 0.0) / LOWEST * (HEIGHT - 2.0 * MARGIN);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\">chance of a failed request in a year, by arena ({}); bars up to the 95 % bound</text>\n",
        forecast.heap
    );
    for power in (LOWEST as i32..=0).rev() {
        let at = y(10_f64.powi(power));
        let _ = writeln!(
            out,
            "<line x1=\"{MARGIN}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">1e{power}</text>",
            WIDTH - MARGIN,
            MARGIN - 6.0,
            at + 4.0
        );
    }
    for part in 0..=4 {
        let arena = (first + (last - first) * f64::from(part) / 4.0) as usize;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} B</text>",
            x(arena),
            HEIGHT - MARGIN + 20.0,
            thousands(arena as u64)
        );
    }
    for (number, (curve, colour)) in forecast.curves.iter().zip(COLOURS).enumerate() {
        let mut line = String::new();
        for point in &curve.points {
            let rate = |failures: f64| risk::chance(failures / point.episodes as f64, forecast.per_year);
            let (chance, bound) = (rate(point.failures as f64), rate(risk::upper(point.failures)));
            let at = x(point.arena);
            if point.failures > 0 {
                let _ = write!(line, "{at:.1},{:.1} ", y(chance));
            }
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"><title>{} B: {} failures in {} \
                 episodes</title></line>",
                y(bound),
                y(chance.max(1e-9)),
                point.arena,
                point.failures,
                point.episodes
            );
        }
        let name = curve
            .keep
            .map_or("nothing kept".into(), |keep| format!("{} of {} B kept", keep.count, keep.most));
        let _ = writeln!(
            out,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" \
             fill=\"{colour}\"><title>{} B</title></circle>\n<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" \
             text-anchor=\"end\">{name}: {} B</text>",
            x(curve.arena),
            y(curve.upper),
            curve.arena,
            WIDTH - MARGIN,
            MARGIN + 16.0 * number as f64,
            thousands(curve.arena as u64)
        );
    }
    out + "</svg>\n"
}
