// Who asked for memory: the tree of calls as a flame graph that hangs down, as tables, and a stack in full.

/** What can be counted: the place in a node, the unit, the words. */
const measures = [
  { at: 2, label: 'Live at the end', say: bytes },
  { at: 3, label: 'At the peak', say: bytes },
  { at: 4, label: 'Allocated', say: bytes },
  { at: 5, label: 'Requests', say: count },
  { at: 6, label: 'Temporary blocks', say: count },
];

/** A function's name, and where it stands. */
const functionName = frame => report.who.frames[frame][0];
const functionPlace = frame => {
  const [, file, line] = report.who.frames[frame];
  return file ? `${file.split('/').slice(-2).join('/')}${line ? `:${line}` : ''}` : '';
};

/** A tree of calls from those who call down, or from those who allocate up. Nodes: parent, frame, sums of what is counted, children. */
function callTree(up) {
  const calls = report.who.nodes;
  if (!up) {
    const nodes = calls.map(([parent, frame, ...costs], number) => ({ parent: number ? parent : -1, frame, costs, children: [] }));
    for (let n = nodes.length - 1; n > 0; n--) {
      const parent = nodes[nodes[n].parent];
      parent.children.push(n);
      nodes[n].costs.forEach((cost, at) => (parent.costs[at] += cost));
    }
    return nodes;
  }
  const nodes = [{ parent: -1, frame: 0, costs: [0, 0, 0, 0, 0, 0], children: [], known: new Map() }];
  for (const [number, [, , ...costs]] of calls.entries()) {
    if (costs.every(cost => cost === 0)) continue;
    let at = 0;
    for (let call = number; ; call = calls[call][0]) {
      costs.forEach((cost, n) => (nodes[at].costs[n] += cost));
      if (call === 0) break;
      const frame = calls[call][1];
      let next = nodes[at].known.get(frame);
      if (next === undefined) {
        next = nodes.length;
        nodes.push({ parent: at, frame, costs: [0, 0, 0, 0, 0, 0], children: [], known: new Map() });
        nodes[at].known.set(frame, next);
        nodes[at].children.push(next);
      }
      at = next;
    }
  }
  return nodes;
}

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
    const cost = n => who.nodes[n].costs[who.measure];
    return node.children.filter(n => cost(n) > 0).sort((a, b) => cost(b) - cost(a));
  }

  /** Shows a node over the whole width, and its stack. */
  choose(node) {
    who.top = node;
    who.show();
    showStack(who.path(node), who.nodes[node].costs);
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
    const rows = measures.map((each, n) => make('div', {}, make('span', {}, each.label), make('span', {}, each.say(node.costs[n]))));
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
      const node = who.nodes[number], whole = node.costs[who.measure];
      let at = x;
      for (const child of this.sorted(node)) {
        const wide = room * who.nodes[child].costs[who.measure] / whole;
        if (wide < 0.6) break;
        this.boxes.push({ node: child, x: at, y: row * ROW, width: wide });
        queue.push([child, at, wide, row + 1]);
        at += wide;
      }
    }
    return Math.max(...this.boxes.map(box => box.y)) + ROW;
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
      context.fillStyle = this.search && found ? (dark ? '#a33fae' : '#e58cf0') : `hsl(${10 + hue} ${this.search ? 12 : 62}% ${light}%)`;
      context.globalAlpha = box.above ? 0.6 : 1;
      context.fillRect(box.x, box.y, Math.max(box.width - 1, 0.5), ROW - 1);
      context.globalAlpha = 1;
      if (box.width < 28) continue;
      context.fillStyle = colour('text');
      context.save();
      context.beginPath();
      context.rect(box.x, box.y, box.width - 3, ROW);
      context.clip();
      context.fillText(box.node === 0 ? `all: ${measures[who.measure].say(who.nodes[0].costs[who.measure])}` : name, box.x + 4, box.y + ROW / 2);
      context.restore();
    }
  }
}

const ROW = 19;

/** Whether a function has the searched text in its name or file. */
const matches = (frame, text) => {
  const [name, file] = report.who.frames[frame];
  return text !== '' && (name.toLowerCase().includes(text) || file.toLowerCase().includes(text));
};

/** A stack in full, the innermost function first. */
function showStack(frames, costs) {
  const lines = frames.map(frame => make('li', {}, make('span', {}, functionName(frame)), ' ', make('small', {}, functionPlace(frame))));
  const cost = costs ? measures.map((each, n) => `${each.label.toLowerCase()} ${each.say(costs[n])}`).join(', ') : '';
  $('stack').replaceChildren(make('p', { class: 'quiet' }, cost), make('ol', { class: 'stack' }, ...lines));
  $('stack-details').open = true;
}

/** The frames of a call of the report, the innermost first. */
function framesOf(call) {
  const frames = [];
  for (; call > 0; call = report.who.nodes[call][0]) frames.push(report.who.nodes[call][1]);
  return frames;
}

/** What is shown: the direction, what is counted, which node is on top. */
const who = report.who && {
  up: false,
  measure: 0,
  top: 0,
  trees: {},
  get nodes() { return (this.trees[this.up] ??= callTree(this.up)); },
  /** The nodes from the whole to one (`outermost`), or the frames of one, the innermost first. */
  path(node, outermost = false) {
    const nodes = [];
    for (; node >= 0; node = this.nodes[node].parent) nodes.unshift(node);
    if (outermost) return nodes;
    const frames = nodes.slice(1).map(n => this.nodes[n].frame);
    return this.up ? frames : frames.reverse();
  },
  show() {
    this.flame.draw();
    fillCalls();
    const found = this.flame.search ? foundShare() : '';
    $('found').textContent = found;
  },
};

/** How much of what is counted is below functions that were searched. */
function foundShare() {
  let sum = 0, calls = 0;
  const walk = [0];
  while (walk.length) {
    const node = who.nodes[walk.pop()];
    if (matches(node.frame, who.flame.search)) {
      sum += node.costs[who.measure];
      calls++;
    } else {
      walk.push(...node.children);
    }
  }
  const whole = who.nodes[0].costs[who.measure];
  return `${some(calls, 'call')} found: ${measures[who.measure].say(sum)}${whole ? `, ${percent(1000 * sum / whole)}` : ''}`;
}

/** The table of calls: what is on top, and what it calls, opened as far as asked. */
function fillCalls() {
  const body = make('tbody');
  const whole = Math.max(who.nodes[0].costs[who.measure], 1);
  const rowsOf = (number, depth) => {
    const node = who.nodes[number], children = who.flame.sorted(node);
    const toggle = make('button', { type: 'button', class: 'link' }, children.length ? '▸' : '·');
    toggle.setAttribute('aria-label', `Calls of ${functionName(node.frame)}`);
    toggle.disabled = children.length === 0;
    const name = make('button', { type: 'button', class: 'link' }, functionName(node.frame));
    name.addEventListener('click', () => showStack(who.path(number), node.costs));
    const costs = measures.map((each, n) => make('td', { class: 'number' }, each.say(node.costs[n])));
    const row = make('tr', {}, make('td', { class: 'call', style: `padding-left:${depth * 14}px` }, toggle, ' ', name),
      make('td', { class: 'tag', title: functionPlace(node.frame) }, functionPlace(node.frame)),
      make('td', { class: 'number' }, percent(1000 * node.costs[who.measure] / whole)), ...costs);
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
  const head = [who.up ? 'Function and its callers' : 'Function and its calls', 'Place', 'Share', ...measures.map(each => each.label)];
  $('calls').replaceChildren(make('div', { class: 'scroll', tabIndex: -1 }, make('table', {},
    make('thead', {}, make('tr', {}, ...head.map((label, n) => make('th', { scope: 'col', class: n > 1 ? 'number' : '' }, label)))), body)));
  first.flip();
}

if (who) {
  const pressed = (buttons, chosen) => buttons.forEach((button, n) => button.setAttribute('aria-pressed', String(n === chosen)));
  const choices = measures.map((each, n) => {
    const button = make('button', { type: 'button' }, each.label);
    button.addEventListener('click', () => {
      who.measure = n;
      pressed(choices, n);
      who.show();
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
  // What is all zero is not shown first.
  who.measure = report.who.nodes.some(node => node[2] > 0) ? 0 : 1;
  pressed(choices, who.measure);
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
