//! Draws plans: time to the right, addresses upwards.

use askama::Template;

use super::{Planned, plain, rendered};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 700.0;
const MARGIN: f64 = 60.0;

#[derive(Template)]
#[template(path = "plan.svg", escape = "html")]
struct Drawing {
    name: String,
    proved: String,
    peak: u64,
    bound: u64,
    /// The first time step, and the time step after the last.
    start: f64,
    end: f64,
    rectangles: Vec<Rectangle>,
    /// Horizontal lines: bytes, height, colour and label.
    levels: [(u64, f64, &'static str, &'static str); 2],
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    foot: f64,
}

struct Rectangle {
    /// `b` for buffers, which react to the pointer.
    class: &'static str,
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    fill: String,
    title: String,
}

/// Returns a standalone SVG: one rectangle for each stretch of a buffer's life with its name as a tooltip, free space below the peak
/// shaded, gaps in lifetimes hatched, and lines at the lower bound and the peak.
pub fn svg(planned: Planned) -> String {
    let (lowered, solution) = (&planned.schedule.lowered, &planned.schedule.solution);
    let (peak, bound) = (solution.peak, solution.lower_bound);
    let buffers = lowered.instance.buffers();
    let (start, end) = buffers.iter().fold((i64::MAX, i64::MIN), |(s, e), b| (s.min(b.start), e.max(b.end)));
    let (start, end) = if start < end { (start as f64, end as f64) } else { (0.0, 1.0) };
    let top = peak.max(bound).max(1) as f64;
    let x = |time: f64| MARGIN + (time - start) / (end - start) * (WIDTH - 2.0 * MARGIN);
    let y = |bytes: u64| HEIGHT - MARGIN - bytes as f64 / top * (HEIGHT - 2.0 * MARGIN);
    let rectangle = |class, (start, end): (f64, f64), (from, to): (u64, u64), fill: &str, title: &str| {
        let (width, height) = (x(end) - x(start), y(from) - y(to));
        Rectangle { class, x: x(start), y: y(to), width, height, fill: fill.into(), title: title.into() }
    };
    let mut titles: Vec<String> = Vec::with_capacity(buffers.len());
    for (place, offset) in planned.schedule.placed() {
        let (id, size) = (plain(place.id), place.size);
        let lies = format!("{id}: {size} B at {offset}, steps {}..{}", place.start, place.end);
        match place.inside {
            true => titles[place.number] += &format!("; in it {lies}"),
            false => titles.push(lies),
        }
    }
    let mut rectangles = vec![rectangle("free", (start, end), (0, peak), "#e4e4e4", "free")];
    for (n, (buffer, &offset)) in buffers.iter().zip(&solution.offsets).enumerate() {
        // The golden angle gives neighbours distinct colours.
        let colour = format!("hsl({:.0},60%,65%)", (n as f64 * 137.508) % 360.0);
        let own = |start: i64, end: i64, from: u64, to: u64, fill: &str| {
            rectangle("b", (start as f64, end as f64), (offset + from, offset + to), fill, &titles[n])
        };
        rectangles
            .extend(buffer.pieces().iter().map(|&(start, end, from, to)| own(start, end, from, to, &colour)));
        rectangles.extend(buffer.gaps.iter().map(|gap| own(gap.start, gap.end, 0, buffer.size, "url(#gap)")));
    }
    let drawing = Drawing {
        name: plain(planned.name),
        proved: planned.schedule.proved(),
        peak,
        bound,
        start,
        end,
        rectangles,
        levels: [(bound, y(bound), "#c00", "lower bound"), (peak, y(peak), "#000", "peak")],
        width: WIDTH,
        height: HEIGHT,
        left: MARGIN,
        right: WIDTH - MARGIN,
        foot: HEIGHT - MARGIN / 2.0,
    };
    rendered(&drawing)
}

#[derive(Template)]
#[template(path = "plan.html", escape = "html")]
struct Page {
    name: String,
    svg: String,
}

/// Writes the drawing of [`svg`] as a standalone page, with a line of text that follows the pointer and a filter by name.
pub fn html(planned: Planned) -> String {
    rendered(&Page { name: plain(planned.name), svg: svg(planned) })
}
