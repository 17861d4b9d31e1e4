//! Serves the page on this machine alone, and draws it again while a recording runs.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tiny_http::{Header, Method, Request, Response, Server};

use crate::failure::Failure;

/// The last page drawn.
struct Drawn {
    html: String,
    goes_on: bool,
}

/// The least time between two pages, which a browser asks for as often.
const BETWEEN: Duration = Duration::from_secs(2);

/// Drawing takes at most one part of the time in this many.
const SHARE: u32 = 4;

/// Answers requests with the page that `draw` makes of a trace, until the process ends. `draw` learns whether the recording still runs.
///
/// # Errors
/// If the port is in use, or a complete trace cannot be drawn.
pub fn serve(
    trace: &Path,
    port: u16,
    draw: impl Fn(bool) -> Result<String, Failure> + Sync,
) -> Result<(), Failure> {
    let server = Server::http(("127.0.0.1", port))
        .map_err(|why| Failure::Other(format!("127.0.0.1:{port} cannot be listened to: {why}")))?;
    let goes_on = || !trace.exists() && is_recorded(trace);
    let first = goes_on();
    let waiting = "<!doctype html><title>allotment view</title><p>No events have come yet.".to_owned();
    let html = if first { waiting } else { draw(false)? };
    let drawn = Mutex::new(Drawn { html, goes_on: first });
    let mut out = crate::text::stdout();
    match server.server_addr().to_ip() {
        Some(address) => writeln!(out, "http://{address}/ shows {}; ^C ends it", trace.display())?,
        None => return Err(Failure::Other("the server has no address".into())),
    }
    out.flush()?;
    drop(out);
    thread::scope(|scope| {
        scope.spawn(|| {
            // What is complete was drawn.
            if !first {
                return;
            }
            loop {
                let (begun, now) = (Instant::now(), goes_on());
                // At first there may be no event, and at the end no file for a moment.
                if let Ok(html) = draw(now) {
                    *drawn.lock().unwrap_or_else(PoisonError::into_inner) = Drawn { html, goes_on: now };
                    if !now {
                        return;
                    }
                }
                thread::sleep(BETWEEN.max(begun.elapsed() * SHARE));
            }
        });
        for request in server.incoming_requests() {
            let answer = answer(&request, &drawn.lock().unwrap_or_else(PoisonError::into_inner));
            // A browser that has gone needs none.
            let _ = request.respond(answer);
        }
    });
    Ok(())
}

/// Returns whether a running recording will write a file.
fn is_recorded(trace: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return crate::record::Running::of(trace).is_some();
    #[cfg(not(target_os = "linux"))]
    {
        let _ = trace;
        false
    }
}

fn answer(request: &Request, drawn: &Drawn) -> Response<io::Cursor<Vec<u8>>> {
    let host = request.headers().iter().find(|header| header.field.equiv("Host"));
    let host = host.map_or("", |header| header.value.as_str());
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    // Another site whose name leads here must not read the page.
    let (status, text) = if name != "127.0.0.1" && name != "localhost" {
        (403, "ask for 127.0.0.1\n")
    } else if !matches!(request.method(), Method::Get | Method::Head) {
        (405, "only GET\n")
    } else if request.url() != "/" {
        (404, "the page is at /\n")
    } else {
        (200, &*drawn.html)
    };
    let kind = if status == 200 { "text/html; charset=utf-8" } else { "text/plain" };
    let mut headers = vec![("Content-Type", kind.to_owned()), ("Cache-Control", "no-store".into())];
    if drawn.goes_on {
        headers.push(("Refresh", BETWEEN.as_secs().to_string()));
    }
    let headers = headers.into_iter().filter_map(|(name, value)| Header::from_bytes(name, value).ok());
    headers.fold(Response::from_string(text).with_status_code(status), Response::with_header)
}
