//! A browser to look at pages with.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headless_chrome::browser::default_executable;
use headless_chrome::protocol::cdp::types::{Event, Method};
use headless_chrome::protocol::cdp::{Emulation, Page};
use headless_chrome::{Browser, LaunchOptions, Tab};
use serde::Serialize;
use serde_json::Value;

/// How long a page may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// One browser at a time: they take much of a small machine.
static TURN: Mutex<()> = Mutex::new(());

/// One page, open in a browser.
pub struct Window {
    tab: Arc<Tab>,
    errors: Arc<Mutex<Vec<String>>>,
    _browser: Browser,
    // Dropped last.
    _turn: MutexGuard<'static, ()>,
}

/// A mouse, as the DevTools protocol wants it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mouse {
    r#type: &'static str,
    x: f64,
    y: f64,
    button: &'static str,
    buttons: u32,
    click_count: u32,
    modifiers: u32,
    delta_x: f64,
    delta_y: f64,
}

impl Method for Mouse {
    const NAME: &'static str = "Input.dispatchMouseEvent";
    type ReturnObject = Value;
}

/// Fingers, as the DevTools protocol wants them.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Touch {
    r#type: &'static str,
    touch_points: Vec<Finger>,
}

#[derive(Clone, Debug, Serialize)]
struct Finger {
    x: f64,
    y: f64,
    id: usize,
}

impl Method for Touch {
    const NAME: &'static str = "Input.dispatchTouchEvent";
    type ReturnObject = Value;
}

impl Window {
    /// Opens a page of `allotment view` and waits until its charts are there; for the rest see [`Window::open_when`].
    pub fn open(path: &Path, width: u32, height: u32, scheme: &str) -> Option<Self> {
        let ready = "document.documentElement.dataset.to !== undefined && document.querySelector('#overview').width > 200";
        Self::open_when(path, (width, height), scheme, ready)
    }

    /// Opens a file in a window of this size and waits until `ready` is true; `None`, with a word about it, if no browser is
    /// here. With the variable `CI` or `ALLOTMENT_CI` set, there must be one.
    pub fn open_when(path: &Path, (width, height): (u32, u32), scheme: &str, ready: &str) -> Option<Self> {
        let browser = match default_executable() {
            Ok(browser) => browser,
            Err(error) if ["CI", "ALLOTMENT_CI"].into_iter().all(|name| std::env::var_os(name).is_none()) => {
                eprintln!(
                    "skipped: no Chromium here, so the page is not looked at ({error}); CHROME names one"
                );
                return None;
            }
            Err(error) => panic!("no Chromium: {error}"),
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let options = LaunchOptions::default_builder()
            .path(Some(browser))
            // A container's root user has no sandbox; the page is our own.
            .sandbox(false)
            .window_size(Some((width.max(500), height)))
            .args(vec![OsStr::new("--hide-scrollbars")])
            .idle_browser_timeout(Duration::from_secs(300))
            .build()
            .unwrap();
        let browser = Browser::new(options).unwrap();
        let tab = browser.new_tab().unwrap();
        tab.set_default_timeout(PATIENCE);
        let errors = Arc::new(Mutex::new(vec![]));
        let heard = errors.clone();
        let listen = move |event: &Event| {
            let error = match event {
                Event::RuntimeExceptionThrown(thrown) => {
                    let details = &thrown.params.exception_details;
                    details
                        .exception
                        .as_ref()
                        .and_then(|e| e.description.clone())
                        .unwrap_or(details.text.clone())
                }
                Event::RuntimeConsoleAPICalled(call) => format!("{:?}", call.params),
                Event::LogEntryAdded(entry) => entry.params.entry.text.clone(),
                Event::NetworkRequestWillBeSent(sent) => {
                    let url = &sent.params.request.url;
                    if url.starts_with("file:") || url.starts_with("data:") {
                        return;
                    }
                    format!("a request for {url}")
                }
                _ => return,
            };
            heard.lock().unwrap().push(error);
        };
        tab.add_event_listener(Arc::new(listen)).unwrap();
        tab.enable_runtime().unwrap().enable_log().unwrap();
        let wishes = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", "reduce")];
        let feature =
            |(name, value): (&str, &str)| Emulation::MediaFeature { name: name.into(), value: value.into() };
        let features = Some(wishes.map(feature).into());
        tab.call_method(Emulation::SetEmulatedMedia { media: None, features }).unwrap();
        tab.call_method(Emulation::SetDeviceMetricsOverride {
            width,
            height,
            device_scale_factor: 1.0,
            mobile: width < 500,
            scale: None,
            screen_width: None,
            screen_height: None,
            position_x: None,
            position_y: None,
            dont_set_visible_size: None,
            screen_orientation: None,
            viewport: None,
            display_feature: None,
            device_posture: None,
        })
        .unwrap();
        tab.navigate_to(&format!("file://{}", path.display())).unwrap();
        let window = Self { tab, errors, _browser: browser, _turn: turn };
        window.wait(&format!("document.readyState === 'complete' && {ready}"));
        Some(window)
    }

    /// What an expression yields.
    pub fn value(&self, expression: &str) -> Value {
        let wrapped = format!("JSON.stringify({expression})");
        // A page that is being replaced answers nothing.
        let text = self.tab.evaluate(&wrapped, false).ok().and_then(|answer| answer.value);
        text.and_then(|text| serde_json::from_str(text.as_str()?).ok()).unwrap_or(Value::Null)
    }

    /// Runs a script.
    pub fn run(&self, script: &str) {
        self.tab.evaluate(script, false).unwrap();
    }

    /// The number that an expression yields.
    pub fn number(&self, expression: &str) -> f64 {
        self.value(expression).as_f64().unwrap_or_else(|| panic!("{expression} is no number"))
    }

    /// The text of an element.
    pub fn text(&self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({selector:?}).textContent"));
        text.as_str().unwrap_or_else(|| panic!("{selector} is not there")).into()
    }

    /// Waits until an expression is true.
    pub fn wait(&self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != Value::Bool(true) {
            assert!(start.elapsed() < PATIENCE, "{expression} never came true");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Scrolls an element into sight; the place at these shares of its width and height.
    pub fn place(&self, selector: &str, x: f64, y: f64) -> (f64, f64) {
        let script = format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{ block: 'center' }}); \
             const b = e.getBoundingClientRect(); return [b.left + b.width * {x}, b.top + b.height * {y}]; }})()"
        );
        let place = self.value(&script);
        (place[0].as_f64().unwrap(), place[1].as_f64().unwrap())
    }

    fn mouse(&self, mouse: Mouse) {
        self.tab.call_method(mouse).unwrap();
    }

    /// Moves the mouse.
    pub fn hover(&self, (x, y): (f64, f64)) {
        self.mouse(Mouse { r#type: "mouseMoved", x, y, button: "none", ..Mouse::default() });
    }

    /// Moves the mouse down the middle of an element, from one of 40 rows to the next and then from the top again, until an
    /// expression is true: what is drawn where depends on the heap, and a page that is still drawing has no answer yet.
    pub fn hover_until(&self, selector: &str, expression: &str) {
        let start = Instant::now();
        for row in (0..40).cycle() {
            self.hover(self.place(selector, 0.5, (f64::from(row) + 0.5) / 40.0));
            std::thread::sleep(Duration::from_millis(50));
            if self.value(expression) == Value::Bool(true) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{expression} never came true");
        }
    }

    /// Presses the mouse at one place and lets it go at another.
    pub fn drag(&self, from: (f64, f64), to: (f64, f64)) {
        self.hover(from);
        let mouse = |r#type, (x, y), buttons| Mouse {
            r#type,
            x,
            y,
            button: "left",
            buttons,
            click_count: 1,
            ..Mouse::default()
        };
        self.mouse(mouse("mousePressed", from, 1));
        for step in 1..=4 {
            let share = f64::from(step) / 4.0;
            let at = (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share);
            self.mouse(mouse("mouseMoved", at, 1));
        }
        self.mouse(mouse("mouseReleased", to, 0));
    }

    /// Clicks an element.
    pub fn click(&self, selector: &str) {
        let place = self.place(selector, 0.5, 0.5);
        self.drag(place, place);
    }

    /// Turns the wheel with Ctrl held; above zero is towards the user.
    pub fn wheel(&self, (x, y): (f64, f64), delta_y: f64) {
        let mouse =
            Mouse { r#type: "mouseWheel", x, y, button: "none", modifiers: 2, delta_y, ..Mouse::default() };
        self.mouse(mouse);
    }

    /// Puts fingers down at the first of two places each, moves them to the second, and lifts them.
    pub fn touch(&self, fingers: &[[(f64, f64); 2]]) {
        let at = |share: f64| -> Vec<Finger> {
            let place = |(id, [from, to]): (usize, &[(f64, f64); 2])| Finger {
                x: from.0 + (to.0 - from.0) * share,
                y: from.1 + (to.1 - from.1) * share,
                id,
            };
            fingers.iter().enumerate().map(place).collect()
        };
        let touch = |r#type, touch_points| {
            self.tab.call_method(Touch { r#type, touch_points }).unwrap();
        };
        touch("touchStart", at(0.0));
        (1..=4).for_each(|step| touch("touchMove", at(f64::from(step) / 4.0)));
        touch("touchEnd", vec![]);
    }

    /// Presses a key.
    pub fn key(&self, key: &str) {
        self.tab.press_key(key).unwrap();
    }

    /// A picture of what is in sight, as PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        self.tab.capture_screenshot(Page::CaptureScreenshotFormatOption::Png, None, None, true).unwrap()
    }

    /// What the page complained about, and what it asked the network for.
    pub fn complaints(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }
}
