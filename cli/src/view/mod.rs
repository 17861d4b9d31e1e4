//! `allotment view`: a recorded trace as one self-contained page.
//!
//! The way of a trace is one direction: [`trace`] reads its events, [`place`] gives its blocks addresses, [`recording`]
//! gathers what is drawn in a fixed number of buckets, [`report`] puts that together, and [`page`] makes a page of
//! it. The page holds no more than that, however long the trace was.

mod lists;
mod map;
mod page;
mod place;
mod recording;
mod report;
mod series;
mod spread;
mod suggest;
mod trace;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;

pub use page::page;
pub use place::{PlaceError, Placing};
pub use report::{Report, report};
pub use trace::{ReadError, Trace};

/// Arguments of `allotment view`.
#[derive(Args, Debug)]
pub struct ViewArgs {
    /// The trace: text, plain or as .zst or .gz
    trace: PathBuf,
    /// Where the page goes
    #[arg(short, long, value_name = "HTML", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// Print what the page draws as JSON
    #[arg(long)]
    json: bool,
    /// Which placement gives the blocks their addresses
    #[arg(long, value_enum, default_value_t)]
    placement: Placing,
    /// The arena, such as 64KiB; without it the smallest that serves every request
    #[arg(long, value_name = "BYTES", value_parser = crate::plan::parse_bytes)]
    arena: Option<u64>,
    /// Read no more than this many events
    #[arg(long, value_name = "EVENTS")]
    events: Option<usize>,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The trace was refused.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The blocks got no addresses.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The page cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Standard output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs `allotment view`.
///
/// # Errors
/// See [`ViewError`].
pub fn view(args: &ViewArgs) -> Result<(), ViewError> {
    let bar = match args.quiet || !io::stderr().is_terminal() {
        true => ProgressBar::hidden(),
        false => ProgressBar::new_spinner(),
    };
    bar.set_message("reading");
    let trace = Trace::read(&args.trace, args.events)?;
    bar.set_message("placing");
    bar.tick();
    let report = report(&trace, args.placement, args.arena)?;
    bar.finish_and_clear();
    let mut out = io::stdout().lock();
    if let Some(path) = &args.output {
        let page = page(&report)?;
        std::fs::write(path, &page).map_err(|source| ViewError::Write { path: path.into(), source })?;
        if !args.json {
            summary(&mut out, path, &report)?;
        }
    }
    if args.json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

fn summary(out: &mut impl Write, path: &Path, report: &Report) -> io::Result<()> {
    let totals = &report.totals;
    writeln!(
        out,
        "{}: {} events, peak {} B, {} in an arena of {} B, {} blocks ({} B) live at the end",
        path.display(),
        totals.events,
        totals.peak,
        report.placement,
        totals.arena,
        totals.live_blocks,
        totals.live_bytes,
    )
}
