// Charts of figures over time, on canvases.

/** What all charts over time have in common: an axis of events, a cursor, a selection. */
class Chart {
  constructor(id) {
    this.canvas = $(id);
    this.context = this.canvas.getContext('2d');
    this.drag = null;
    this.margin = { left: 74, right: 14, top: 10, bottom: 24 };
    charts.push(this);
    new ResizeObserver(redraw).observe(this.canvas);
  }

  /** Fits the canvas to its place on the screen, and clears it. */
  begin() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const context = this.context;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, box.width, box.height);
    context.font = '12px system-ui, sans-serif';
    this.margin.left = box.width < 520 ? 58 : 74;
    this.width = Math.max(box.width - this.margin.left - this.margin.right, 10);
    this.height = Math.max(box.height - this.margin.top - this.margin.bottom, 10);
    return context;
  }

  x(event) { return this.margin.left + (event - view.from) / (view.to - view.from) * this.width; }

  eventAt(x) {
    const share = Math.max(0, Math.min((x - this.margin.left) / this.width, 1));
    return Math.min(view.from + share * (view.to - view.from), view.to);
  }

  /** The axis of values, from `low` to `high`. */
  valueAxis(low, high, all, label) {
    const { context, margin, width, height } = this;
    this.y = value => margin.top + height - (value - low) / Math.max(high - low, 1e-9) * height;
    context.strokeStyle = colour('grid');
    context.fillStyle = colour('quiet');
    context.lineWidth = 1;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (const tick of all) {
      const y = Math.round(this.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(margin.left, y);
      context.lineTo(margin.left + width, y);
      context.stroke();
      context.fillText(label(tick), margin.left - 8, y);
    }
  }

  /** The axis of events. */
  eventAxis() {
    const { context, margin, width, height } = this;
    context.fillStyle = colour('quiet');
    context.strokeStyle = colour('line');
    context.textBaseline = 'top';
    const y = margin.top + height;
    context.beginPath();
    context.moveTo(margin.left, y + 0.5);
    context.lineTo(margin.left + width, y + 0.5);
    context.stroke();
    for (const tick of ticks(view.from, view.to, width / (width < 420 ? 75 : 110))) {
      const x = this.x(tick);
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, y);
      context.lineTo(Math.round(x) + 0.5, y + 4);
      context.stroke();
      const label = count(tick), half = context.measureText(label).width / 2;
      context.textAlign = 'left';
      context.fillText(label, Math.max(margin.left, Math.min(x - half, margin.left + width - 2 * half)), y + 7);
    }
  }

  /** Keeps what follows inside of the axes. */
  clip(draw) {
    const { context, margin, width, height } = this;
    context.save();
    context.beginPath();
    context.rect(margin.left, margin.top - 4, width, height + 4);
    context.clip();
    draw();
    context.restore();
  }

  /** The cursor, and what a drag would show. */
  finish() {
    const { context, margin, width, height } = this;
    if (view.cursor !== null && view.cursor >= view.from && view.cursor <= view.to) {
      const x = Math.round(this.x(view.cursor)) + 0.5;
      context.strokeStyle = colour('quiet');
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(x, margin.top);
      context.lineTo(x, margin.top + height);
      context.stroke();
      context.setLineDash([]);
    }
    if (view.moment !== null && view.moment >= view.from && view.moment <= view.to) {
      context.fillStyle = colour('accent');
      context.fillRect(Math.round(this.x(view.moment)), margin.top, 1.5, height);
    }
    if (this.drag && !this.drag.moves) {
      const { x, y, wide, high } = this.selection();
      context.fillStyle = colour('accent');
      context.globalAlpha = 0.18;
      context.fillRect(x, y, wide, high);
      context.globalAlpha = 1;
      context.strokeStyle = colour('accent');
      context.strokeRect(x + 0.5, y + 0.5, wide, high);
    }
  }

  /** Answers a click at the cursor: who held the memory at that moment. */
  pick() {
    if (!who) return;
    showMoment(view.cursor);
    showChosen(this.canvas.id, this.moment(), this.describe()?.rows ?? [], holdersNow());
  }

  /** Where a drag has led. */
  selection() {
    const inside = x => Math.max(this.margin.left, Math.min(x, this.margin.left + this.width));
    const [x0, x1] = [inside(this.drag.from.x), inside(this.drag.to.x)];
    return { x: Math.min(x0, x1), y: this.margin.top, wide: Math.abs(x1 - x0), high: this.height };
  }

  /** Which level is drawn, its step in buckets, and its first and last element in sight. */
  sight() {
    const level = levelFor((view.to - view.from) / this.width);
    const step = 2 ** level;
    const first = Math.floor(bucketAt(view.from) / step);
    const last = Math.floor(bucketAt(view.to) / step);
    return { level, step, first, last };
  }

  /** Where element `i` of a level begins on the screen. */
  left(i, step) { return this.x(Math.min(i * step * eventsPerBucket, events)); }

  /** The place of the cursor in words. */
  moment() {
    const bucket = bucketAt(view.cursor);
    const [from, to] = bucketEvents(bucket);
    const at = to - from > 1 ? `Events ${count(from)} – ${count(to - 1)}` : `Event ${count(from)}`;
    return report.times ? `${at}, time ${count(report.times[bucket])}` : at;
  }
}

/** `least – most`, or one of them if they are equal. */
const between = (min, max, say) => min === max ? say(min) : `${say(min)} – ${say(max)}`;

/** Lines and areas over time. */
class Lines extends Chart {
  /** Each of `parts` has a name of `series`, a label, and perhaps `area`, `dashed` or `hidden`. */
  constructor(id, parts, { say, limit, binary, label = say }) {
    super(id);
    Object.assign(this, { parts, say, limit, binary, label });
    legend(`${id}-legend`, parts.map(part => ({
      label: part.label, fill: part.name, rule: part.dashed, hidden: part.hidden, toggle: shown => { part.hidden = !shown; redraw(); },
    })));
  }

  draw() {
    const context = this.begin();
    const sight = this.sight();
    const shown = this.parts.filter(part => !part.hidden);
    let high = this.limit ? 0 : 1;
    for (const part of shown) {
      const { max } = series[part.name][sight.level];
      for (let i = sight.first; i <= sight.last && i < max.length; i++) high = Math.max(high, max[i]);
    }
    high = Math.min(high * 1.06, this.limit ?? Infinity) || this.limit;
    this.valueAxis(0, high, ticks(0, high, this.height / 34, this.binary), this.label);
    this.clip(() => { for (const part of shown) this.line(part, sight); });
    this.eventAxis();
    this.finish();
  }

  line(part, { level, step, first, last }) {
    const { context } = this;
    const { min, max } = series[part.name][level];
    const hue = colour(part.name);
    const trace = (values, backwards) => {
      for (let n = first; n <= Math.min(last, values.length - 1); n++) {
        const i = backwards ? Math.min(last, values.length - 1) - (n - first) : n;
        const y = this.y(values[i]);
        const edges = [this.left(i, step), this.left(i + 1, step)];
        if (backwards) edges.reverse();
        context.lineTo(edges[0], y);
        context.lineTo(edges[1], y);
      }
    };
    context.fillStyle = hue;
    if (part.area) {
      context.globalAlpha = 0.16;
      context.beginPath();
      context.moveTo(this.left(first, step), this.y(0));
      trace(max);
      context.lineTo(this.left(Math.min(last, max.length - 1) + 1, step), this.y(0));
      context.fill();
    }
    // From the least to the greatest in each column.
    context.globalAlpha = part.area ? 0.5 : 0.35;
    context.beginPath();
    trace(max);
    trace(min, true);
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = hue;
    context.lineWidth = part.area ? 1.6 : 1.4;
    context.setLineDash(part.dashed ? [6, 4] : []);
    context.beginPath();
    trace(max);
    context.stroke();
    context.setLineDash([]);
  }

  describe() {
    const bucket = bucketAt(view.cursor);
    const rows = this.parts.map(part => {
      const { min, max } = series[part.name][0];
      return [part.label, between(min[bucket], max[bucket], this.say), colour(part.name)];
    });
    return { title: this.moment(), rows };
  }
}

/** Areas on top of each other. */
class Stack extends Chart {
  constructor(id) {
    super(id);
    const { tags, live } = report.stack;
    this.parts = live.map((_, n) => ({ n, label: n < tags.length ? tagName(tags[n]) : 'all others', fill: `tag-${n < tags.length ? n : 8}` }));
    // Without other tags there is nothing to say about them.
    if (live[tags.length].every(value => value === 0)) this.parts.pop();
    legend(`${id}-legend`, this.parts.map(part => ({
      label: part.label, fill: part.fill, toggle: shown => { part.hidden = !shown; redraw(); },
    })));
  }

  draw() {
    const context = this.begin();
    const { level, step, first, last } = this.sight();
    const shown = this.parts.filter(part => !part.hidden);
    const lines = stackLevels[level];
    const end = Math.min(last, lines[0].length - 1);
    const tops = [new Float64Array(Math.max(end - first + 1, 0))];
    for (const part of shown) {
      const below = tops[tops.length - 1];
      tops.push(below.map((value, i) => value + lines[part.n][first + i]));
    }
    const high = Math.max(1, ...tops[tops.length - 1]) * 1.06;
    this.valueAxis(0, high, ticks(0, high, this.height / 44, true), briefly);
    this.clip(() => shown.forEach((part, n) => {
      const [below, above] = [tops[n], tops[n + 1]];
      context.fillStyle = colour(part.fill);
      context.beginPath();
      for (let i = 0; i < above.length; i++) {
        context.lineTo(this.left(first + i, step), this.y(above[i]));
        context.lineTo(this.left(first + i + 1, step), this.y(above[i]));
      }
      for (let i = above.length - 1; i >= 0; i--) {
        context.lineTo(this.left(first + i + 1, step), this.y(below[i]));
        context.lineTo(this.left(first + i, step), this.y(below[i]));
      }
      context.globalAlpha = 0.85;
      context.fill();
      context.globalAlpha = 1;
    }));
    this.eventAxis();
    this.finish();
  }

  /** The part that lies at the cursor. */
  pick(y) {
    const bucket = bucketAt(view.cursor);
    let above = 0;
    const part = this.parts.find(each => !each.hidden && y >= this.y(above += report.stack.live[each.n][bucket]));
    if (!part) return;
    const tag = report.stack.tags[part.n];
    if (who) showMoment(view.cursor);
    const rows = [['Tag', part.label, colour(part.fill)], ['Live', exactly(report.stack.live[part.n][bucket])]];
    showChosen('tags', this.moment(), rows, who && tag !== undefined ? holdersNow(report.tags[tag]) : '');
  }

  describe() {
    const bucket = bucketAt(view.cursor);
    const value = part => report.stack.live[part.n][bucket];
    const rows = this.parts.filter(value).sort((a, b) => value(b) - value(a));
    return { title: this.moment(), rows: rows.map(part => [part.label, bytes(value(part)), colour(part.fill)]) };
  }
}

/** All of the trace in little, and the part that is shown: dragged, it moves; elsewhere, a drag chooses another. */
class Overview extends Chart {
  constructor(id) {
    super(id);
    const { canvas } = this;
    const at = event => {
      const box = canvas.getBoundingClientRect();
      return Math.max(0, Math.min((event.clientX - box.left) / box.width, 1)) * events;
    };
    canvas.addEventListener('pointerdown', event => {
      canvas.setPointerCapture(event.pointerId);
      const here = at(event), edge = events * 10 / canvas.clientWidth;
      const part = view.to - view.from < events * 0.999;
      const near = side => part && Math.abs(here - view[side]) < edge;
      const hold = near('from') ? 'from' : near('to') ? 'to' : part && here > view.from && here < view.to ? 'both' : 'new';
      this.held = { hold, here, from: view.from, to: view.to };
    });
    canvas.addEventListener('pointermove', event => {
      if (!this.held) return;
      const now = at(event), { hold, here, from, to } = this.held;
      if (hold === 'both') show(from + now - here, to + now - here);
      else if (hold === 'from') show(Math.min(now, to - LEAST), to);
      else if (hold === 'to') show(from, Math.max(now, from + LEAST));
      else if (Math.abs(now - here) > events / 300) show(Math.min(now, here), Math.max(now, here));
    });
    const up = () => (this.held = null);
    canvas.addEventListener('pointerup', event => {
      const here = this.held?.here;
      if (here !== undefined && Math.abs(at(event) - here) <= events * 4 / canvas.clientWidth) showMoment(here);
      up();
    });
    canvas.addEventListener('pointercancel', up);
    canvas.addEventListener('dblclick', showAll);
    canvas.addEventListener('wheel', event => {
      event.preventDefault();
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), at(event));
    }, { passive: false });
    canvas.addEventListener('keydown', event => {
      const keys = {
        ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), PageUp: () => move(-0.8), PageDown: () => move(0.8),
        '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: showAll, Escape: showAll,
        Home: () => show(0, view.to - view.from), End: () => show(events - (view.to - view.from), events),
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  draw() {
    const context = this.begin();
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const level = Math.min(levelFor(events / width), series.live.length - 1);
    const { max } = series.live[level];
    const top = Math.max(1, totals.peak) * 1.12;
    context.fillStyle = colour('live');
    context.globalAlpha = 0.55;
    context.beginPath();
    context.moveTo(0, height);
    max.forEach((value, i) => {
      const y = height - value / top * height;
      context.lineTo(i / max.length * width, y);
      context.lineTo((i + 1) / max.length * width, y);
    });
    context.lineTo(width, height);
    context.fill();
    context.globalAlpha = 1;
    const [from, to] = [view.from / Math.max(events, 1) * width, view.to / Math.max(events, 1) * width];
    context.fillStyle = colour('card');
    context.globalAlpha = 0.72;
    context.fillRect(0, 0, from, height);
    context.fillRect(to, 0, width - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = colour('accent');
    context.lineWidth = 2;
    context.strokeRect(from + 1, 1, Math.max(to - from - 2, 2), height - 2);
    context.fillStyle = colour('accent');
    for (const x of [from, to]) context.fillRect(Math.max(0, Math.min(x - 3, width - 6)), height / 2 - 9, 6, 18);
    if (view.moment !== null) {
      context.fillStyle = colour('accent');
      context.fillRect(view.moment / Math.max(events, 1) * width, 0, 1.5, height);
    }
    if (view.cursor !== null) {
      context.fillStyle = colour('text');
      context.fillRect(view.cursor / Math.max(events, 1) * width, 0, 1, height);
    }
  }
}

/** Buttons that show and hide, each with its colour. */
function legend(id, parts) {
  $(id).replaceChildren(...parts.map(({ label, fill, rule, hidden, toggle }) => {
    const swatch = make('i', { class: rule ? 'rule' : '', style: rule ? `border-color:var(--${fill})` : `background:var(--${fill})` });
    const button = make('button', { type: 'button', title: label, 'aria-pressed': String(!hidden) }, swatch, make('span', {}, label));
    button.addEventListener('click', () => {
      const shown = button.getAttribute('aria-pressed') !== 'true';
      button.setAttribute('aria-pressed', String(shown));
      toggle(shown);
    });
    return button;
  }));
}
