//! Drawings: time to the right, addresses upwards.

use std::collections::HashMap;
use std::fmt::Write;

use super::Planned;
use crate::transform::Inside;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 700.0;
const MARGIN: f64 = 60.0;

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Returns a standalone SVG: one rectangle for each stretch of a buffer's life with its name as a tooltip, the free space beneath the
/// peak shaded, gaps in lifetimes hatched, a line at the lower bound and one at the peak.
pub fn svg(planned: Planned) -> String {
    let buffers = planned.schedule.lowered.instance.buffers();
    let solution = &planned.schedule.solution;
    let (start, end) = buffers.iter().fold((i64::MAX, i64::MIN), |(s, e), b| (s.min(b.start), e.max(b.end)));
    let (start, end) = if start < end { (start as f64, end as f64) } else { (0.0, 1.0) };
    let top = solution.peak.max(solution.lower_bound).max(1) as f64;
    let x = |time: f64| MARGIN + (time - start) / (end - start) * (WIDTH - 2.0 * MARGIN);
    let y = |bytes: f64| HEIGHT - MARGIN - bytes / top * (HEIGHT - 2.0 * MARGIN);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <defs><pattern id=\"gap\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
         <line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#888\" stroke-width=\"2\"/></pattern></defs>\n\
         <text x=\"{MARGIN}\" y=\"24\">{}: {} B, lower bound {} B, {}</text>\n\
         <rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"#e4e4e4\"><title>free</title></rect>\n",
        escape(planned.name),
        solution.peak,
        solution.lower_bound,
        escape(&planned.schedule.proved()),
        x(start),
        y(solution.peak as f64),
        x(end) - x(start),
        y(0.0) - y(solution.peak as f64),
    );
    let mut inside: HashMap<usize, Vec<&Inside>> = HashMap::new();
    planned
        .schedule
        .lowered
        .inside
        .iter()
        .for_each(|tensor| inside.entry(tensor.buffer).or_default().push(tensor));
    for (n, (buffer, &offset)) in buffers.iter().zip(&solution.offsets).enumerate() {
        let mut title = format!(
            "{}: {} B at {offset}, steps {}..{}",
            escape(&buffer.id),
            buffer.size,
            buffer.start,
            buffer.end
        );
        for Inside { name, at, size, start, end, .. } in inside.get(&n).into_iter().flatten() {
            let at = offset + at;
            let _ = write!(title, "; in it {}: {size} B at {at}, steps {start}..{end}", escape(name));
        }
        let mut rectangle = |start: i64, end: i64, from: u64, to: u64, fill: &str| {
            let (left, right) = (x(start as f64), x(end as f64));
            let (upper, lower) = (y((offset + to) as f64), y((offset + from) as f64));
            let _ = writeln!(
                out,
                "<rect class=\"b\" x=\"{left:.2}\" y=\"{upper:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{fill}\" \
                 stroke=\"#333\" stroke-width=\"0.3\"><title>{title}</title></rect>",
                right - left,
                lower - upper
            );
        };
        // The golden angle keeps neighbours apart.
        let colour = format!("hsl({:.0},60%,65%)", (n as f64 * 137.508) % 360.0);
        for (start, end, from, to) in buffer.pieces() {
            rectangle(start, end, from, to, &colour);
        }
        for gap in &buffer.gaps {
            rectangle(gap.start, gap.end, 0, buffer.size, "url(#gap)");
        }
    }
    for (bytes, colour, name) in
        [(solution.lower_bound, "#c00", "lower bound"), (solution.peak, "#000", "peak")]
    {
        let level = y(bytes as f64);
        let _ = writeln!(
            out,
            "<line x1=\"{:.2}\" y1=\"{level:.2}\" x2=\"{:.2}\" y2=\"{level:.2}\" stroke=\"{colour}\" \
             stroke-dasharray=\"6 3\"><title>{name}: {bytes} B</title></line>",
            x(start),
            x(end)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{MARGIN}\" y=\"{:.0}\">step {start}</text><text x=\"{:.0}\" y=\"{0:.0}\" text-anchor=\"end\">step {end}</text>\n</svg>",
        HEIGHT - MARGIN / 2.0,
        WIDTH - MARGIN
    );
    out
}

/// Writes the drawing of [`svg`] as a standalone page, with a line of text that follows the pointer and a filter by name.
pub fn html(planned: Planned) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\
         body{{font-family:sans-serif;margin:1em}}svg{{width:100%;height:auto}}\
         .b:hover{{stroke:#000;stroke-width:2}}.dim{{opacity:0.12}}</style></head><body>\n\
         <p><input id=\"filter\" placeholder=\"filter by name\"> <span id=\"info\">Point at a buffer.</span></p>\n{1}\
         <script>\n\
         const info=document.getElementById('info');\n\
         const all=[...document.querySelectorAll('.b')];\n\
         all.forEach(b=>b.addEventListener('pointerenter',()=>info.textContent=b.textContent));\n\
         document.getElementById('filter').addEventListener('input',e=>all.forEach(b=>\
         b.classList.toggle('dim',!b.textContent.includes(e.target.value))));\n\
         </script></body></html>\n",
        escape(planned.name),
        svg(planned)
    )
}
