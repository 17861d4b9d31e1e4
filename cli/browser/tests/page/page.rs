//! The page in Chromium: pointed at, dragged, zoomed, clicked, typed at, and looked at in two sizes and two themes.

use std::path::{Path, PathBuf};

use allotment_cli::view::{Placing, Trace, page, report};
use allotment_trace::Reader;
use serde_json::Value;

use super::browser::Window;
use super::firmware;

/// The variable that names a folder to keep the screenshots in.
const FOLDER: &str = "ALLOTMENT_SCREENSHOTS";

/// The variable that names `axe.min.js` of the package `axe-core` (npm), which checks whether pages are accessible.
const AXE: &str = "ALLOTMENT_AXE";

fn write(name: &str, trace: &Trace) -> PathBuf {
    let html = page(&report(trace, Placing::GoodFit, None).unwrap()).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html"));
    std::fs::write(&path, html).unwrap();
    path
}

fn firmware(name: &str, events: usize, network: &str) -> PathBuf {
    let text = firmware::trace(events, network);
    write(
        name,
        &Trace::gather("sensor-node.trace".into(), &mut Reader::new(text.as_bytes()).unwrap(), None).unwrap(),
    )
}

fn real() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/rust_json_small.trace.zst");
    write("real", &Trace::read(&path, None).unwrap())
}

/// The mean brightness of a screenshot, 0 to 255, and how many colours it has.
fn look(name: &str, png: &[u8]) -> (f64, usize) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), png).unwrap();
    }
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let size = info.color_type.samples();
    let colours: std::collections::HashSet<&[u8]> = pixels.chunks(size).map(|pixel| &pixel[..3]).collect();
    let sum: f64 = pixels
        .chunks(size)
        .map(|pixel| f64::from(pixel[0]) + f64::from(pixel[1]) + f64::from(pixel[2]))
        .sum();
    (sum / 3.0 / (pixels.len() / size) as f64, colours.len())
}

/// The range of events that is shown.
fn range(window: &Window) -> (f64, f64) {
    let of = |side| window.number(&format!("Number(document.documentElement.dataset.{side})"));
    (of("from"), of("to"))
}

/// Pixels of a canvas that are not empty.
pub const DRAWN: &str = "[...document.querySelectorAll('canvas')].map(c => { \
    const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', { willReadFrequently: true }); \
    copy.drawImage(c, 0, 0); \
    const data = copy.getImageData(0, 0, c.width, c.height).data; \
    return [c.id, data.filter((v, i) => i % 4 === 3 && v > 0).length / (c.width * c.height)]; })";

fn charts_are_drawn(window: &Window) {
    // A frame after the last change.
    let drawn = window.value(DRAWN);
    for chart in drawn.as_array().unwrap() {
        assert!(chart[1].as_f64().unwrap() > 0.02, "{} is empty", chart[0]);
    }
}

#[test]
fn the_page_answers() {
    let path = real();
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 2 << 20, "the page has {size} bytes");
    let Some(window) = Window::open(&path, 1400, 1000, "light") else { return };
    assert_eq!(window.text("#name"), "rust_json_small.trace.zst");
    window.wait("document.querySelector('#memory').width > 1000");
    charts_are_drawn(&window);
    let all = range(&window);
    assert_eq!(all.0, 0.0);

    // A drag over a chart shows what it covers; the wheel and the buttons zoom, a double click shows all.
    let (from, to) = (window.place("#memory", 0.4, 0.5), window.place("#memory", 0.6, 0.5));
    window.drag(from, to);
    let dragged = range(&window);
    assert!(dragged.0 > 0.25 * all.1 && dragged.1 < 0.75 * all.1, "{dragged:?}");
    assert!(dragged.1 - dragged.0 > 0.15 * all.1, "{dragged:?}");
    window.wheel(window.place("#memory", 0.5, 0.5), -200.0);
    window.wait(&format!("Number(document.documentElement.dataset.from) > {}", dragged.0));
    let wheeled = range(&window);
    assert!(wheeled.1 - wheeled.0 < dragged.1 - dragged.0, "{wheeled:?}");
    assert!(window.text("#range").contains('%'));
    window.click("#out");
    let out = range(&window);
    assert!(out.1 - out.0 > wheeled.1 - wheeled.0, "{out:?}");
    window.click("#all");
    assert_eq!(range(&window), all);

    // The brush of the overview.
    let (from, to) = (window.place("#overview", 0.1, 0.5), window.place("#overview", 0.2, 0.5));
    window.drag(from, to);
    let brushed = range(&window);
    assert!((brushed.0 / all.1 - 0.1).abs() < 0.02 && (brushed.1 / all.1 - 0.2).abs() < 0.02, "{brushed:?}");

    // Blocks are drawn and named when they are near.
    window.hover_until("#map", "!document.querySelector('#tip').hidden");
    let tip = window.text("#tip");
    assert!(tip.contains("Offset") && tip.contains("Full"), "{tip}");
    window.hover_until("#memory", "document.querySelector('#tip').textContent.includes('High-water mark')");
    charts_are_drawn(&window);

    // Keys do the same as the mouse.
    window.value("document.querySelector('#memory').focus()");
    window.key("ArrowRight");
    window.wait("document.querySelector('#say').textContent.includes('Live')");
    let before = range(&window);
    window.key("+");
    let typed = range(&window);
    assert!(typed.1 - typed.0 < before.1 - before.0, "{typed:?}");
    window.key("Escape");
    assert_eq!(range(&window), all);

    // A suggestion leads to its event, a legend's button hides a line, a heading sorts.
    window.click("#suggestions button");
    assert_ne!(range(&window), all);
    window.click("#all");
    window.click("#memory-legend button:last-child");
    assert_eq!(
        window.value("document.querySelector('#memory-legend button:last-child').ariaPressed"),
        Value::from("false")
    );
    window.click("#largest thead th:nth-child(2) button");
    window.click("#largest thead th:nth-child(2) button");
    assert_eq!(
        window.value("document.querySelector('#largest thead th:nth-child(2)').ariaSort"),
        Value::from("ascending")
    );
    window.click("#sizes-unit button:last-child");
    assert!(window.text("#sizes").contains("KiB"));
    assert_eq!(window.complaints(), [""; 0]);
}

/// Light and dark, wide and narrow: all fits, and the theme is the one that the system asks for until it is switched.
#[test]
fn it_fits_every_window() {
    let path = firmware("fits", 60_000, "net");
    for (width, height) in [(1400, 1000), (390, 844)] {
        for scheme in ["light", "dark"] {
            let Some(window) = Window::open(&path, width, height, scheme) else { return };
            assert_eq!(window.value("document.documentElement.dataset.theme"), Value::from(scheme));
            let wide = window.number("document.documentElement.scrollWidth");
            assert!(wide <= f64::from(width), "{wide} pixels in a window of {width}");
            let outside = window.value(
                "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && \
                 e.getBoundingClientRect().right > innerWidth + 1).map(e => e.id || e.className)",
            );
            assert_eq!(outside, Value::Array(vec![]), "in a window of {width}");
            charts_are_drawn(&window);
            let (light, colours) = look(&format!("top-{width}-{scheme}"), &window.screenshot());
            assert!(if scheme == "light" { light > 180.0 } else { light < 80.0 }, "{scheme} is {light}");
            assert!(colours > 200, "{colours} colours");
            window.place("#map", 0.5, 0.5);
            look(&format!("map-{width}-{scheme}"), &window.screenshot());
            window.click("#theme");
            let other = if scheme == "light" { "dark" } else { "light" };
            assert_eq!(window.value("document.documentElement.dataset.theme"), Value::from(other));
            let (now, _) = look(&format!("switched-{width}-{scheme}"), &window.screenshot());
            assert!((now > light) == (scheme == "dark"), "{now} after {light}");
            if width > 500 {
                // Near enough, the blocks of the start are seen one by one.
                (0..6).for_each(|_| window.click("#in"));
                let named = "document.querySelector('#tip').textContent.includes('Block')";
                window.hover_until("#map", named);
                assert!(window.text("#tip").contains("Tag"), "{}", window.text("#tip"));
                charts_are_drawn(&window);
                look(&format!("near-{other}"), &window.screenshot());
            } else {
                // Two fingers zoom, one moves.
                let all = range(&window);
                let [a, b, c, d] = [0.3, 0.45, 0.6, 0.9].map(|x| window.place("#memory", x, 0.5));
                window.touch(&[[b, a], [c, d]]);
                let pinched = range(&window);
                assert!(pinched.1 - pinched.0 < 0.6 * all.1, "{pinched:?}");
                window.touch(&[[d, b]]);
                let moved = range(&window);
                assert!(moved.0 > pinched.0, "{moved:?} after {pinched:?}");
                assert!(
                    (moved.1 - moved.0 - pinched.1 + pinched.0).abs() <= 2.0,
                    "{moved:?} after {pinched:?}"
                );
            }
            assert_eq!(window.complaints(), [""; 0]);
        }
    }
}

/// Names that would be HTML or end the script are text.
#[test]
fn hostile_names_are_text() {
    const NAMES: [&str; 5] = [
        "</script><script>document.title='owned'</script>",
        "<img src=x onerror=\"document.title='owned'\">",
        "{{script}} ${document.title='owned'} <!--",
        "x\u{2028}'\"&lt;\\u003c",
        "javascript:document.title='owned'",
    ];
    for (n, name) in NAMES.into_iter().enumerate() {
        let text = firmware::trace(2000, name);
        let trace = Trace::gather(name.into(), &mut Reader::new(text.as_bytes()).unwrap(), None).unwrap();
        let path = write(&format!("hostile-{n}"), &trace);
        let html = std::fs::read_to_string(&path).unwrap();
        assert_eq!(html.matches("</script>").count(), 2, "the data and the script end once each");
        assert!(!html.contains("<img"));
        let Some(window) = Window::open(&path, 1000, 800, "light") else { return };
        assert_eq!(window.text("#name"), name);
        assert_eq!(window.value("document.title"), Value::from(format!("{name} – allotment view")));
        assert!(window.text("#tags-legend").contains(name) && window.text("#tag-table").contains(name));
        assert_eq!(window.value("document.querySelectorAll('img, script').length"), Value::from(2));
        assert_eq!(window.complaints(), [""; 0]);
    }
}

/// A trace without events, and one of a single block.
#[test]
fn there_may_be_nothing_to_see() {
    for (name, text) in [("empty", ""), ("single", "a 1 0 8\n")] {
        let trace = Trace::gather(name.into(), &mut Reader::new(text.as_bytes()).unwrap(), None).unwrap();
        let Some(window) = Window::open(&write(name, &trace), 1000, 800, "dark") else { return };
        window.hover(window.place("#map", 0.5, 0.5));
        window.click("#in");
        window.hover(window.place("#memory", 0.5, 0.5));
        assert_eq!(window.complaints(), [""; 0]);
    }
}

/// The flame graph and the table of calls: pressed, searched, turned round, typed at; names are text.
#[test]
fn who_holds_the_memory() {
    const TEXT: &str = "#^n 0 0 1\n#^n 1 0 2\n#^n 2 0 3\n#^n 1 0 4\n#^3\na 1 900 8\n#^3\na 2 900 8\n#^4\na 3 200 8\n#^4\na 4 50 8\nf 4\n\
                        #^s main\n#^s serve\n#^s remember\n#^s <img src=x onerror=\"document.title='owned'\">\n#^s src/serve.c\n\
                        #^f 0 1 1 5 30\n#^f 0 2 2 5 20\n#^f 0 3 3 5 10\n#^f 0 4 4 5 40\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (trace, html) = (folder.join("who.trace"), folder.join("who.html"));
    std::fs::write(&trace, TEXT).unwrap();
    allotment_cli::view::write_page(&trace, &html).unwrap();
    let Some(window) = Window::open(&html, 1400, 1000, "light") else { return };
    charts_are_drawn(&window);
    // A way without a fork is open: from the whole to `main`, and what that calls.
    assert!(window.text("#calls").contains("serve") && window.text("#calls").contains("<img"));
    assert_eq!(window.value("document.querySelectorAll('img').length"), Value::from(0));
    // The second row of the graph is `main`, the third what it calls, the largest first.
    window.hover_until("#flame", "!document.querySelector('#tip').hidden");
    window.value("document.querySelector('#flame').focus()");
    for _ in 0..3 {
        window.key("ArrowDown");
    }
    let stack = window.text("#stack");
    assert!(
        stack.contains("remember") && stack.contains("serve.c:10") && stack.contains("1.76 KiB"),
        "{stack}"
    );
    assert!(stack.find("remember") < stack.find("main"), "{stack}");
    window.key("Escape");
    // A search says how much is below what it finds.
    window.value(
        "(search => { search.value = 'SERVE.C'; search.dispatchEvent(new Event('input')); })(document.querySelector('#who-search'))",
    );
    assert!(window.text("#found").contains("100.0 %"), "{}", window.text("#found"));
    window.value(
        "(search => { search.value = 'remem'; search.dispatchEvent(new Event('input')); })(document.querySelector('#who-search'))",
    );
    assert!(window.text("#found").contains("1 call found: 1.76 KiB, 90.0 %"), "{}", window.text("#found"));
    // Bottom up, those that ask for memory come first; another measure counts otherwise.
    window.click("#who-ways button:last-child");
    window.click("#who-measures button:last-child");
    let rows = window.text("#calls tbody");
    assert!(rows.contains("<img") && !rows.contains("remember"), "{rows}");
    window.click("#who-measures button:first-child");
    assert!(window.text("#calls tbody").contains("remember"));
    // A block leads to its stack.
    window.click("#largest td:last-child button");
    assert!(window.text("#stack").contains("serve.c:20"));
    look("who", &window.screenshot());
    assert_eq!(window.value("document.title"), Value::from("who.trace – allotment view"));
    assert_eq!(window.complaints(), [""; 0]);
}

/// Who held the memory at a moment that a click chooses, by size and by tag; what a click on a block or a band says.
#[test]
fn any_moment_is_shown() {
    // A thousand blocks of `early`, which the second half frees one by one while `late` asks for as many, with a tag.
    let mut text = String::from("#^n 0 0 1\n#^n 1 0 2\n#^n 1 0 3\n");
    for n in 0..1000 {
        text += &format!("#^2\na {n} 100 8\n");
    }
    for n in 0..1000 {
        text += &format!("f {n}\n#^3\na {} 3000 8 #late\n", 1000 + n);
    }
    text +=
        "#^s main\n#^s early\n#^s late\n#^s src/serve.c\n#^f 0 1 1 4 30\n#^f 0 2 2 4 20\n#^f 0 3 3 4 10\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (trace, html) = (folder.join("moments.trace"), folder.join("moments.html"));
    std::fs::write(&trace, text).unwrap();
    allotment_cli::view::write_page(&trace, &html).unwrap();
    let Some(window) = Window::open(&html, 1400, 1000, "light") else { return };
    let table = || window.text("#calls tbody");
    assert!(table().contains("late") && !table().contains("early"), "{}", table());
    // After 1000 of 3000 events only `early` has memory.
    let place = window.place("#memory", 0.36, 0.5);
    window.drag(place, place);
    let event = window.number("view.moment");
    assert!((900.0..1200.0).contains(&event), "{event}");
    assert!(
        window.text("#who-measures").contains("After event")
            && window.text("#who-at").contains("after event")
    );
    assert!(table().contains("early"), "{}", table());
    assert!(window.text("#memory-chosen").contains("early"), "{}", window.text("#memory-chosen"));
    let exact = window.number("who.nodes[0].costs[6]");
    let live = |event: f64| {
        if event <= 1000.0 {
            event * 100.0
        } else {
            let (freed, asked) = (((event - 1000.0) / 2.0).ceil(), ((event - 1000.0) / 2.0).floor());
            (1000.0 - freed) * 100.0 + asked * 3000.0
        }
    };
    assert_eq!(exact, live(event), "after {event} events");
    // The keys of the slider do the same.
    window.value("document.querySelector('#who-moment').focus()");
    window.key("Home");
    let first = window.number("view.moment");
    assert!(first < 50.0, "{first}");
    assert_eq!(window.number("who.nodes[0].costs[6]"), live(first));
    // What came since then, in the colours of changes.
    window.click("#who-compare");
    assert!(window.text("#who-compare").contains("Compared with event"));
    assert!(table().contains("+2.86 MiB"), "{}", table());
    assert!(window.number("document.querySelector('#flame-legend').offsetWidth") > 50.0);
    window.click("#who-compare");
    // By size and by tag.
    let choose = |nth: u32, value: &str| {
        window.value(&format!(
            "(s => {{ s.value = [...s.options].find(o => o.textContent.startsWith({value:?})).value; \
             s.dispatchEvent(new Event('change')); }})(document.querySelectorAll('#who-filters select')[{nth}])"
        ));
    };
    window.click("#who-measures button:nth-child(4)");
    assert!(table().contains("early") && table().contains("late"), "{}", table());
    choose(0, "64 B to under 128 B");
    assert!(table().contains("early") && !table().contains("late"), "{}", table());
    choose(0, "All");
    choose(1, "late");
    assert!(!table().contains("early") && table().contains("late"), "{}", table());
    choose(1, "All");
    // A block says who asked for it, a band who holds its memory.
    let named = "document.querySelector('#tip').textContent.includes('Block')";
    window.value("document.querySelector('#map').focus()");
    window.hover_until("#map", named);
    window.key("Enter");
    let said = window.text("#map-chosen");
    assert!(said.contains("Age") && said.contains("serve.c:"), "{said}");
    let place = window.place("#tags", 0.9, 0.7);
    window.drag(place, place);
    let said = window.text("#tags-chosen");
    assert!(said.contains("late") && said.contains("serve.c:10"), "{said}");
    assert_eq!(window.complaints(), [""; 0]);
}

/// A page that compares two runs: what has grown is first, and red.
#[test]
fn two_runs_are_compared() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let run = |name: &str, sizes: [u64; 3], line: u32| {
        let [same, grown, gone] = sizes;
        let path = folder.join(name);
        let text = format!(
            "#^n 0 0 1\n#^n 1 0 2\n#^n 1 0 3\n#^n 1 0 4\n#^2\na 1 {same} 8\n#^3\na 2 {grown} 8 #cache\n#^4\na 3 {gone} 8\n\
             #^s main\n#^s same\n#^s grown\n#^s gone\n#^s src/serve.c\n\
             #^f 0 1 1 5 {line}\n#^f 0 2 2 5 2{line}\n#^f 0 3 3 5 3{line}\n#^f 0 4 4 5 4{line}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let (before, after) =
        (run("before.trace", [5000, 1000, 3000], 7), run("after.trace", [5000, 4000, 0], 8));
    let html = folder.join("compared.html");
    allotment_cli::view::write_comparison(Some(&before), &after, &html).unwrap();
    for scheme in ["light", "dark"] {
        let Some(window) = Window::open(&html, 1400, 1000, scheme) else { return };
        let first = "document.querySelector('#changes tbody tr').textContent";
        let row = window.value(first);
        assert!(
            row.as_str().unwrap().contains("+2.93 KiB") && row.as_str().unwrap().contains("grown"),
            "{row}"
        );
        let all = window.text("#changes tbody");
        assert!(all.contains("−2.93 KiB") && !all.contains("same"), "{all}");
        let about = window.text("#changes-about");
        assert!(about.contains("from before.trace to after.trace: 8.79 KiB to 8.79 KiB"), "{about}");
        // What is gone still has its place in the flame graph, and each its colour.
        let shades = window.value(
            "Object.fromEntries(who.flame.boxes.map(box => [functionName(who.nodes[box.node].frame), who.flame.shade(who.nodes[box.node]).match(/\\d+/g).map(Number)]))",
        );
        let channel =
            |name: &str, n: usize| shades[name][n].as_f64().unwrap_or_else(|| panic!("{name} in {shades}"));
        assert!(channel("grown", 0) > channel("grown", 2) + 40.0, "{shades}");
        assert!(channel("gone", 2) > channel("gone", 0) + 40.0, "{shades}");
        assert!((channel("same", 0) - channel("same", 2)).abs() < 30.0, "{shades}");
        window.click("#changes-lists button:last-child");
        assert!(window.text("#changes tbody").contains("cache"));
        look(&format!("compared-{scheme}"), &window.screenshot());
        // Without the comparison, colours tell functions apart, and what is gone is gone.
        window.click("#who-compare");
        assert_eq!(window.value("document.querySelector('#flame-legend').offsetWidth"), Value::from(0));
        assert!(!window.text("#calls tbody").contains("gone"));
        assert_eq!(window.complaints(), [""; 0]);
    }
}

/// Pages with all that can be opened, in both colour schemes: the rules of axe-core.
#[test]
fn everybody_can_read_it() {
    let Some(axe) = std::env::var_os(AXE) else {
        eprintln!("skipped: no {AXE}, so accessibility is not checked");
        return;
    };
    let axe = std::fs::read_to_string(axe).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (before, after, html) =
        (folder.join("axe-before.trace"), folder.join("axe-after.trace"), folder.join("axe.html"));
    for (path, size) in [(&before, 500), (&after, 900)] {
        let text = format!(
            "#^n 0 0 1\n#^n 1 0 2\n#^2\na 1 {size} 8 #tag\n#^1\na 2 90 8\n#^s main\n#^s serve\n#^f 0 1 1 0 3\n#^f 0 2 2 0 2\n"
        );
        std::fs::write(path, text).unwrap();
    }
    allotment_cli::view::write_comparison(Some(&before), &after, &html).unwrap();
    for page in [firmware("axe-firmware", 5000, "net"), html] {
        for (scheme, width) in [("light", 1400), ("dark", 390)] {
            let Some(window) = Window::open(&page, width, 900, scheme) else { return };
            window.run(&axe);
            window.run("document.querySelectorAll('details').forEach(each => (each.open = true))");
            window.run("if (who) { who.at(0); showStack(framesOf(parts[0].call), who.nodes[0]); }");
            window.run("point(1); charts.find(chart => chart.canvas.id === 'memory').pick()");
            window.run("axe.run(document).then(found => (window.found = found))");
            window.wait("window.found !== undefined");
            assert!(window.number("found.passes.length") > 20.0);
            let violations =
                window.value("found.violations.map(each => [each.id, each.nodes.map(node => node.html)])");
            assert_eq!(violations, Value::Array(vec![]), "{scheme}");
            assert_eq!(window.complaints(), [""; 0]);
        }
    }
}
