// Who asked for memory: the tree of calls as a flame graph that hangs down, as tables, and a stack in full; at any moment, by size and
// tag, and compared with another run or moment.

/** What can be counted: the place among a call's costs, the unit, the words. */
const measures = [
  { at: 0, label: 'Live at the end', say: bytes },
  { at: 1, label: 'At the peak', say: bytes },
  { at: 6, label: 'At a moment', say: bytes },
  { at: 2, label: 'Allocated', say: bytes },
  { at: 3, label: 'Requests', say: count },
  { at: 4, label: 'Temporary blocks', say: count },
];
const MOMENT = 2;

/** What is asked for, as objects: the call, what it is filtered by, and the costs here and in the run before. */
const parts = report.who ? report.who.parts.map(([call, tag, size, ...costs]) => ({ call, by: { tag, size }, costs: [...costs, 0], before: [0, 0, 0, 0, 0, 0, 0] })) : [];
if (report.who) {
  // What the run before had at a moment is what it had at its end.
  for (const [part, ...costs] of report.who.before) parts[part].before = [...costs, costs[0]];
}

/** Live bytes of each part at a moment, by its number. */
function liveAt(moment) {
  const live = new Float64Array(parts.length);
  for (let n = 0; n <= moment; n++) {
    const changes = report.who.changes[n];
    for (let i = 0, part = 0; i < changes.length; i += 2) live[part += changes[i]] = changes[i + 1];
  }
  return live;
}

/** A function's name, and where it stands. */
const functionName = frame => report.who.frames[frame][0];
const functionPlace = frame => {
  const [, number, line] = report.who.frames[frame], file = report.who.files[number];
  return file ? `${file.split('/').slice(-2).join('/')}${line ? `:${line}` : ''}` : '';
};

/** A tree of calls from those who call down, or from those who allocate up, and for each call the nodes that its costs count for. */
function callTree(up) {
  const calls = report.who.nodes, nodes = [], ways = calls.map(() => []);
  const add = (parent, frame) => {
    nodes.push({ parent, frame, costs: [], before: [], wide: 0, children: [] });
    if (parent >= 0) nodes[parent].children.push(nodes.length - 1);
    return nodes.length - 1;
  };
  if (!up) {
    calls.forEach(([parent, frame], number) => {
      add(number ? parent : -1, frame);
      ways[number] = number ? [...ways[parent], number] : [0];
    });
    return { nodes, ways };
  }
  const known = [new Map()];
  add(-1, 0);
  for (const number of new Set(parts.map(part => part.call))) {
    ways[number] = [0];
    for (let call = number, at = 0; call; call = calls[call][0]) {
      const frame = calls[call][1];
      let next = known[at].get(frame);
      if (next === undefined) {
        known[at].set(frame, next = add(at, frame));
        known.push(new Map());
      }
      ways[number].push(at = next);
    }
  }
  return { nodes, ways };
}

/** Counts what passes the filters for each node of a tree. */
function fill({ nodes, ways }) {
  for (const node of nodes) {
    node.costs = [0, 0, 0, 0, 0, 0, 0];
    node.before = [0, 0, 0, 0, 0, 0, 0];
    node.wide = 0;
  }
  const { at } = measures[who.measure];
  for (const part of parts) {
    if (!who.passes(part)) continue;
    const before = who.beforeOf(part), wide = who.compares ? Math.max(part.costs[at], before[at]) : part.costs[at];
    for (const way of ways[part.call]) {
      const node = nodes[way];
      for (let n = 0; n < 7; n++) {
        node.costs[n] += part.costs[n];
        node.before[n] += before[n];
      }
      node.wide += wide;
    }
  }
}

/** A change in words, with its sign. */
const changed = (node, { at, say }) => {
  const grown = node.costs[at] - node.before[at];
  return `${grown > 0 ? '+' : grown < 0 ? '−' : ''}${say(Math.abs(grown))}`;
};

/** The flame graph. */
class Flame {
  constructor() {
    this.canvas = $('flame');
    this.rows = 0;
    this.boxes = [];
    this.search = '';
    this.hovered = null;
    const at = event => {
      const box = this.canvas.getBoundingClientRect();
      return this.boxAt(event.clientX - box.left, event.clientY - box.top);
    };
    this.canvas.addEventListener('pointermove', event => this.hover(at(event), event));
    this.canvas.addEventListener('pointerleave', () => this.hover(null));
    this.canvas.addEventListener('click', event => {
      const box = at(event);
      if (box) this.choose(box.node);
    });
    this.canvas.addEventListener('keydown', event => {
      const node = who.nodes[who.top], largest = this.sorted(node)[0];
      const beside = by => {
        const all = node.parent < 0 ? [] : this.sorted(who.nodes[node.parent]);
        return all[all.indexOf(who.top) + by];
      };
      const to = { ArrowDown: largest, ArrowUp: node.parent, ArrowLeft: beside(-1), ArrowRight: beside(1), Escape: 0 }[event.key];
      if (to === undefined || to < 0) return;
      event.preventDefault();
      this.choose(to);
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  /** The children that count, the largest first. */
  sorted(node) {
    const cost = n => who.nodes[n].wide;
    return node.children.filter(n => cost(n) > 0).sort((a, b) => cost(b) - cost(a));
  }

  /** Shows a node over the whole width, and its stack. */
  choose(node) {
    who.top = node;
    who.show();
    showStack(who.path(node), who.nodes[node]);
  }

  boxAt(x, y) {
    return this.boxes.find(box => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + ROW) ?? null;
  }

  hover(box, event) {
    if (this.hovered !== box) {
      this.hovered = box;
      this.draw();
    }
    tip.hidden = !box;
    if (!box) return;
    const node = who.nodes[box.node];
    const rows = measures.filter(told).map(each => make('div', {}, make('span', {}, who.label(each)),
      make('span', {}, each.say(node.costs[each.at]) + (who.tellsChange(each) ? ` (${changed(node, each)})` : ''))));
    tip.replaceChildren(make('p', {}, functionName(node.frame)), make('div', {}, make('span', {}, functionPlace(node.frame))), ...rows);
    const { width, height } = tip.getBoundingClientRect();
    const x = Math.max(8, Math.min(event.clientX + 16, innerWidth - width - 8));
    const y = event.clientY + 20 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 20;
    tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(Math.max(8, y))}px)`;
  }

  /** Lays boxes out: the way to what is on top, then what it calls. */
  layOut(width) {
    this.boxes = [];
    const way = who.path(who.top, true);
    way.forEach((node, n) => this.boxes.push({ node, x: 0, y: n * ROW, width, above: n < way.length - 1 }));
    const queue = [[who.top, 0, width, way.length]];
    while (queue.length) {
      const [number, x, room, row] = queue.pop();
      const node = who.nodes[number], whole = node.wide;
      let at = x;
      for (const child of this.sorted(node)) {
        const wide = room * who.nodes[child].wide / whole;
        if (wide < 0.6) break;
        this.boxes.push({ node: child, x: at, y: row * ROW, width: wide });
        queue.push([child, at, wide, row + 1]);
        at += wide;
      }
    }
    return Math.max(...this.boxes.map(box => box.y)) + ROW;
  }

  /** The colour of a change: the more of the larger figure it is, the stronger. */
  shade({ costs, before }, hovered) {
    const { at } = measures[who.measure];
    const grown = costs[at] - before[at], share = Math.abs(grown) / Math.max(costs[at], before[at], 1);
    const [same, full] = ['same', grown < 0 ? 'shrunk' : 'grown'].map(name => parseColour(colour(name)));
    const strength = share && 0.2 + 0.8 * share;
    const mixed = same.map((part, n) => Math.round(part + (full[n] - part) * strength));
    return `rgb(${mixed.map(part => hovered ? Math.round(part * 0.9) : part).join(' ')})`;
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
    const height = Math.max(this.layOut(width), 6 * ROW);
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext('2d');
    context.scale(ratio, ratio);
    context.font = '12px system-ui, sans-serif';
    context.textBaseline = 'middle';
    const dark = document.documentElement.dataset.theme === 'dark';
    for (const box of this.boxes) {
      const { frame } = who.nodes[box.node];
      const name = functionName(frame), found = matches(frame, this.search);
      const hue = [...name.replace(/[<(].*/, '')].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 997, 7) % 60;
      const light = (dark ? 32 : 80) + (this.hovered === box ? (dark ? 10 : -8) : 0);
      context.fillStyle = this.search && found ? (dark ? '#a33fae' : '#e58cf0')
        : who.compares ? this.shade(who.nodes[box.node], this.hovered === box)
        : `hsl(${10 + hue} ${this.search ? 12 : 62}% ${light}%)`;
      context.globalAlpha = box.above ? 0.6 : 1;
      context.fillRect(box.x, box.y, Math.max(box.width - 1, 0.5), ROW - 1);
      context.globalAlpha = 1;
      if (box.width < 28) continue;
      context.fillStyle = colour('text');
      context.save();
      context.beginPath();
      context.rect(box.x, box.y, box.width - 3, ROW);
      context.clip();
      context.fillText(box.node === 0 ? `all: ${who.total()}` : name, box.x + 4, box.y + ROW / 2);
      context.restore();
    }
  }
}

const ROW = 19;

/** Whether a function has the searched text in its name or file. */
const matches = (frame, text) => {
  const [name, file] = report.who.frames[frame];
  return text !== '' && (name.toLowerCase().includes(text) || report.who.files[file].toLowerCase().includes(text));
};

/** Whether a measure is worth a word: a moment is once one was chosen. */
const told = each => measures.indexOf(each) !== MOMENT || view.moment !== null;

/** A list of functions, the innermost first. */
const stackList = frames => make('ol', { class: 'stack' },
  ...frames.map(frame => make('li', {}, make('span', {}, functionName(frame)), ' ', make('small', {}, functionPlace(frame)))));

/** A stack in full. */
function showStack(frames, node) {
  const cost = node ? measures.filter(told).map(each => `${who.label(each).toLowerCase()} ${each.say(node.costs[each.at])}`
    + (who.tellsChange(each) ? ` (${changed(node, each)})` : '')).join(', ') : '';
  // The stack may be the end of longer ones.
  const ends = call => framesOf(call).slice(-frames.length).join() === frames.join();
  const help = frames.length ? helps((tag, size, call) => call > 0 && ends(call)) : null;
  $('stack').replaceChildren(make('p', { class: 'quiet' }, cost), ...help ? [help] : [], stackList(frames));
  $('stack-details').open = true;
}

/** The frames of a call of the report, the innermost first. */
function framesOf(call) {
  const frames = [];
  for (; call > 0; call = report.who.nodes[call][0]) frames.push(report.who.nodes[call][1]);
  return frames;
}

/** What parts can be filtered by: the words of all, and of each. */
const kinds = report.who && {
  size: { all: 'All sizes', label: size => size < 2 ? `${size} B` : `${briefly(2 ** (size - 1))} to under ${briefly(2 ** size)}` },
  tag: { all: 'All tags and threads', label: tag => report.who.tags[tag] || 'no tag, or the first thread' },
};

/** What is shown: the direction, what is counted, which node is on top, the filters, and what it is compared with. */
const who = report.who && {
  up: false,
  measure: 0,
  top: 0,
  filters: {},
  /** The run before (`true`), the live bytes of each part at a moment, or nothing (`null`). */
  base: null,
  baseMoment: null,
  trees: {},
  get tree() { return (this.trees[this.up] ??= callTree(this.up)); },
  get nodes() { return this.tree.nodes; },
  get compares() { return this.base === true || (this.base !== null && this.measure === MOMENT); },
  tellsChange(each) { return this.base === true || (this.base !== null && measures.indexOf(each) === MOMENT); },
  passes(part, but) { return Object.entries(this.filters).every(([kind, value]) => kind === but || part.by[kind] === value); },
  beforeOf(part) {
    if (this.base === true) return part.before;
    return this.base ? part.costs.with(6, this.base[part.number]) : part.costs;
  },
  label(each) {
    return measures.indexOf(each) === MOMENT && view.moment !== null ? `After event ${count(view.moment)}` : each.label;
  },
  /** The whole in words. */
  total() {
    const each = measures[this.measure], node = this.nodes[0];
    return each.say(node.costs[each.at]) + (this.compares ? `, ${changed(node, each)}` : '');
  },
  /** The nodes from the whole to one (`outermost`), or the frames of one, the innermost first. */
  path(node, outermost = false) {
    const nodes = [];
    for (; node >= 0; node = this.nodes[node].parent) nodes.unshift(node);
    if (outermost) return nodes;
    const frames = nodes.slice(1).map(n => this.nodes[n].frame);
    return this.up ? frames : frames.reverse();
  },
  /** Counts anew, and shows. */
  show() {
    fill(this.tree);
    this.flame.draw();
    fillCalls();
    for (const select of document.querySelectorAll('#who-filters select')) fillFilter(select);
    $('found').textContent = this.flame.search ? foundShare() : '';
    $('flame-legend').hidden = !this.compares;
    buttonsOf('who-measures').forEach((button, n) => {
      button.setAttribute('aria-pressed', String(n === this.measure));
      button.textContent = this.label(measures[n]);
    });
  },
  /** Shows a moment: a number of `moments`. */
  at(moment) {
    const live = liveAt(moment);
    parts.forEach((part, n) => (part.costs[6] = live[n]));
    view.moment = report.who.moments[moment];
    this.measure = MOMENT;
    $('who-moment').value = moment;
    tellMoment(moment);
    this.show();
    redraw();
  },
};

const buttonsOf = id => [...$(id).querySelectorAll('button')];

/** A moment in words. */
function momentWords(moment) {
  const at = report.who.moments[moment];
  return `event ${count(at)}${report.times ? `, time ${count(report.times[bucketAt(at - 1)])}` : ''}`;
}

function tellMoment(moment) {
  $('who-at').textContent = moment + 1 === report.who.moments.length ? 'at the end' : `after ${momentWords(moment)}`;
  $('who-moment').setAttribute('aria-valuetext', $('who-at').textContent);
}

/** Shows who held the memory at an event, as near as there is a moment. */
function showMoment(event) {
  if (!who) return;
  const { moments } = report.who;
  let after = moments.findIndex(at => at > event);
  if (after < 0) after = moments.length - 1;
  who.at(after > 0 && event - moments[after - 1] < moments[after] - event ? after - 1 : after);
}

/** Writes what a filter can be, with what each is of what is counted. */
function fillFilter(select) {
  const kind = select.dataset.kind, { all, label } = kinds[kind], { at, say } = measures[who.measure];
  const sums = new Map();
  for (const part of parts) {
    if (who.passes(part, kind)) sums.set(part.by[kind], (sums.get(part.by[kind]) ?? 0) + part.costs[at]);
    else sums.set(part.by[kind], sums.get(part.by[kind]) ?? 0);
  }
  const values = [...sums.keys()].sort((a, b) => a - b);
  const options = values.map(value => make('option', { value: String(value) }, `${label(value)}: ${say(sums.get(value))}`));
  select.replaceChildren(make('option', { value: '' }, all), ...options);
  select.value = who.filters[kind] ?? '';
  select.hidden = values.length < 2;
}

/** Who held the most at the moment that is shown, of one tag or of all: buttons that show their stacks. */
function holdersNow(tag) {
  const most = new Map();
  for (const part of parts) {
    if (!part.costs[6] || (tag !== undefined && report.who.tags[part.by.tag] !== tag)) continue;
    const frame = asker(part), known = most.get(frame) ?? { bytes: 0, most: 0, call: part.call };
    known.bytes += part.costs[6];
    if (part.costs[6] > known.most) Object.assign(known, { most: part.costs[6], call: part.call });
    most.set(frame, known);
  }
  const rows = [...most].sort(([, a], [, b]) => b.bytes - a.bytes).slice(0, 5);
  return make('ol', { class: 'stack' }, ...rows.map(([frame, { bytes: number, call }]) => {
    const button = make('button', { type: 'button', class: 'link' }, functionName(frame));
    button.addEventListener('click', () => {
      showStack(framesOf(call));
      $('who-card').scrollIntoView({ block: 'start' });
    });
    return make('li', {}, button, ` ${bytes(number)} `, make('small', {}, functionPlace(frame)));
  }));
}

/** How much of what is counted is below functions that were searched. */
function foundShare() {
  const { at, say } = measures[who.measure];
  let sum = 0, calls = 0;
  const walk = [0];
  while (walk.length) {
    const node = who.nodes[walk.pop()];
    if (matches(node.frame, who.flame.search)) {
      sum += node.costs[at];
      calls++;
    } else {
      walk.push(...node.children);
    }
  }
  const whole = who.nodes[0].costs[at];
  return `${some(calls, 'call')} found: ${say(sum)}${whole ? `, ${percent(1000 * sum / whole)}` : ''}`;
}

/** The table of calls: what is on top, and what it calls, opened as far as asked. */
function fillCalls() {
  const body = make('tbody');
  const chosen = measures[who.measure], whole = Math.max(who.nodes[0].costs[chosen.at], 1), shown = measures.filter(told);
  const rowsOf = (number, depth) => {
    const node = who.nodes[number], children = who.flame.sorted(node);
    const toggle = make('button', { type: 'button', class: 'link' }, children.length ? '▸' : '·');
    toggle.setAttribute('aria-label', `Calls of ${functionName(node.frame)}`);
    toggle.disabled = children.length === 0;
    const name = make('button', { type: 'button', class: 'link' }, functionName(node.frame));
    name.addEventListener('click', () => showStack(who.path(number), node));
    const costs = shown.map(each => make('td', { class: 'number' }, each.say(node.costs[each.at])));
    if (who.compares) {
      const grown = node.costs[chosen.at] - node.before[chosen.at];
      costs.unshift(make('td', { class: `number${grown > 0 ? ' grown' : grown < 0 ? ' shrunk' : ''}` }, changed(node, chosen)));
    }
    const row = make('tr', {}, make('td', { class: 'call', style: `padding-left:${depth * 14}px` }, toggle, ' ', name),
      make('td', { class: 'tag', title: functionPlace(node.frame) }, functionPlace(node.frame)),
      make('td', { class: 'number' }, percent(1000 * node.costs[chosen.at] / whole)), ...costs);
    let below = null;
    const flip = () => {
      if (below) {
        // What was opened below goes as well.
        const inner = [row.nextSibling];
        while (inner[0] && Number(inner[0].dataset.depth) > depth) {
          const next = inner[0].nextSibling;
          inner[0].remove();
          inner[0] = next;
        }
        below = null;
      } else {
        below = children.slice(0, 60).map(child => rowsOf(child, depth + 1));
        row.after(...below);
        // A way without a fork is opened as a whole.
        if (children.length === 1) below[0].flip();
      }
      toggle.textContent = below ? '▾' : '▸';
      toggle.setAttribute('aria-expanded', String(Boolean(below)));
    };
    row.dataset.depth = depth;
    row.flip = () => children.length && flip();
    toggle.addEventListener('click', row.flip);
    return row;
  };
  const first = rowsOf(who.top, 0);
  body.append(first);
  const head = [who.up ? 'Function and its callers' : 'Function and its calls', 'Place', 'Share', ...who.compares ? ['Change'] : [], ...shown.map(each => who.label(each))];
  $('calls').replaceChildren(make('div', { class: 'scroll', tabIndex: -1 }, make('table', {},
    make('thead', {}, make('tr', {}, ...head.map((label, n) => make('th', { scope: 'col', class: n > 1 ? 'number' : '' }, label)))), body)));
  first.flip();
}

if (who) {
  parts.forEach((part, number) => (part.number = number));
  const pressed = (buttons, chosen) => buttons.forEach((button, n) => button.setAttribute('aria-pressed', String(n === chosen)));
  const choices = measures.map((each, n) => {
    const button = make('button', { type: 'button' }, each.label);
    button.addEventListener('click', () => {
      who.measure = n;
      if (n === MOMENT && view.moment === null) who.at(report.who.moments.length - 1);
      else who.show();
    });
    return button;
  });
  const ways = ['Top down', 'Bottom up'].map((label, n) => {
    const button = make('button', { type: 'button' }, label);
    button.addEventListener('click', () => {
      who.up = n === 1;
      who.top = 0;
      pressed(ways, n);
      who.show();
    });
    return button;
  });
  $('who-measures').replaceChildren(...choices);
  $('who-ways').replaceChildren(...ways);
  pressed(ways, 0);
  for (const kind of Object.keys(kinds)) {
    const select = make('select', { 'aria-label': kinds[kind].all });
    select.dataset.kind = kind;
    select.addEventListener('change', () => {
      if (select.value === '') delete who.filters[kind];
      else who.filters[kind] = Number(select.value);
      who.show();
    });
    $('who-filters').append(select);
  }
  const slider = $('who-moment'), last = report.who.moments.length - 1;
  slider.max = last;
  slider.value = last;
  tellMoment(last);
  slider.addEventListener('input', () => who.at(Number(slider.value)));
  const compare = $('who-compare');
  const tellBase = () => {
    compare.setAttribute('aria-pressed', String(who.base !== null));
    compare.textContent = who.base === true ? `Compared with ${report.before.name}`
      : who.base ? `Compared with event ${count(who.baseMoment)}`
      : report.before ? `Compare with ${report.before.name}` : 'Compare with this moment';
  };
  compare.addEventListener('click', () => {
    if (who.base !== null) {
      who.base = null;
    } else if (report.before) {
      who.base = true;
    } else {
      who.base = liveAt(Number(slider.value));
      who.baseMoment = report.who.moments[slider.value];
      who.at(last);
    }
    tellBase();
    who.show();
  });
  if (report.before) who.base = true;
  tellBase();
  // What is all zero is not shown first.
  who.measure = parts.some(part => part.costs[0] || part.before[0]) ? 0 : 1;
  $('who-search').addEventListener('input', event => {
    who.flame.search = event.target.value.trim().toLowerCase();
    who.show();
  });
  $('who-all').addEventListener('click', () => who.flame.choose(0));
  who.flame = new Flame();
  charts.push(who.flame);
  who.show();
} else {
  $('who-card').remove();
}

// What has changed since the run before: the figures of `allotment diff`.
if (report.before) {
  const { name, scale, changes } = report.before;
  const counted = measures.filter((_, n) => n !== MOMENT);
  const lists = [['lines', 'By function'], ['stacks', 'By stack'], ['sizes', 'By size'], ['tags', 'By tag or thread']]
    .filter(([list]) => changes.some(each => each[list].length > 0));
  let measure = who ? counted.indexOf(measures[who.measure]) : 0, list = lists[0]?.[0];
  const buttons = (id, all, isChosen, choose) => $(id).replaceChildren(...all.map((each, n) => {
    const button = make('button', { type: 'button', 'aria-pressed': String(isChosen(each, n)) }, each.label ?? each[1]);
    button.addEventListener('click', () => { choose(each, n); showChanges(); });
    return button;
  }));
  const showChanges = () => {
    buttons('changes-measures', counted, (_, n) => n === measure, (_, n) => (measure = n));
    buttons('changes-lists', lists, ([each]) => each === list, ([each]) => (list = each));
    const { say } = counted[measure], { total } = changes[measure];
    const signed = grown => `${grown > 0 ? '+' : '−'}${say(Math.abs(grown))}`;
    $('changes-about').textContent = `${counted[measure].label}, from ${name} to ${report.name}: ${say(total.before)} to ${say(total.after)}`
      + `${total.grown ? ` (${signed(total.grown)})` : ''}${scale === 1 ? '' : `; the first run is scaled by ${scale.toFixed(3)}`}. `
      + 'What grew most and what shrank most:';
    const rows = list ? changes[measure][list] : [];
    if (rows.length === 0) {
      $('changes').replaceChildren(make('p', { class: 'quiet' }, 'Nothing has changed.'));
      return;
    }
    table('changes', [
      { label: 'Change', value: row => row.grown, number: true,
        cell: row => make('span', { class: row.grown > 0 ? 'grown' : 'shrunk' }, signed(row.grown)) },
      { label: 'Before', value: row => row.before, cell: row => say(row.before), number: true },
      { label: 'After', value: row => row.after, cell: row => say(row.after), number: true },
      { label: 'What', value: row => row.what, cell: row => make('span', { class: 'what' }, row.what) },
    ], rows);
  };
  showChanges();
} else {
  $('changes-card').remove();
}
