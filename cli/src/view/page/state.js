// What is shown: a range of events, a range of addresses, a cursor, a theme. Charts are told when it changes.

const view = { from: 0, to: Math.max(events, 1), low: 0, high: report.map.bytes, cursor: null, place: null, moment: null };
const charts = [];
let waiting = false;

/** Draws all charts before the next frame. */
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const chart of charts) chart.draw();
  });
}

/** Events that are shown at least. */
const LEAST = Math.min(16, Math.max(events, 1));

/** Shows the events from `from` to `to`, as far as there are any. */
function show(from, to) {
  const length = Math.min(Math.max(to - from, LEAST), Math.max(events, 1));
  const middle = (from + to) / 2;
  view.from = Math.max(0, Math.min(middle - length / 2, Math.max(events, 1) - length));
  view.to = view.from + length;
  tellRange();
  redraw();
}

/** Shows the addresses from `low` to `high`. */
function showAddresses(low, high) {
  const all = report.map.bytes;
  const length = Math.min(Math.max(high - low, Math.min(8 * totals.granule, all)), all);
  view.low = Math.max(0, Math.min((low + high) / 2 - length / 2, all - length));
  view.high = view.low + length;
  redraw();
}

/** Shows everything. */
function showAll() {
  showAddresses(0, report.map.bytes);
  show(0, events);
}

/** Zooms by `factor` (below 1: in) around `event`. */
function zoom(factor, event = (view.from + view.to) / 2) {
  const length = Math.min(Math.max((view.to - view.from) * factor, LEAST), Math.max(events, 1));
  const share = (event - view.from) / (view.to - view.from);
  show(event - share * length, event - share * length + length);
}

/** Moves by a share of what is shown. */
function move(share) {
  const by = (view.to - view.from) * share;
  show(view.from + by, view.to + by);
}

/** Shows the life of a block, or what happens around an event. */
function showAround(from, to) {
  const margin = Math.max((to - from) * 0.15, events / 200, LEAST);
  show(from - margin, to + margin);
  $('memory').closest('section').scrollIntoView({ block: 'start' });
}

/** Says the range in words, and in attributes for those who drive the page. */
function tellRange() {
  const [from, to] = [Math.floor(view.from), Math.ceil(view.to)];
  const part = (view.to - view.from) / Math.max(events, 1);
  const share = part > 0.999 ? 'all' : `${(part * 100).toPrecision(2)} %`;
  $('range').textContent = `Events ${count(from)} – ${count(to)} (${share})`;
  document.documentElement.dataset.from = from;
  document.documentElement.dataset.to = to;
}

/** Puts the cursor on an event, or takes it away. */
function point(event, place = null) {
  view.cursor = event === null ? null : Math.max(0, Math.min(event, events - 1));
  view.place = place;
  redraw();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  colours.clear();
  redraw();
}

const dark = matchMedia('(prefers-color-scheme: dark)');
let chosen = null;
// A page from a file may have no storage.
try { chosen = localStorage.getItem('allotment-theme'); } catch {}
setTheme(chosen || (dark.matches ? 'dark' : 'light'));
dark.addEventListener('change', () => chosen || setTheme(dark.matches ? 'dark' : 'light'));
$('theme').addEventListener('click', () => {
  chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('allotment-theme', chosen); } catch {}
  setTheme(chosen);
});
