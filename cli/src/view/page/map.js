// The address space over time: cells from afar, blocks from near.

/** Pixels that a column of cells must have before blocks are drawn one by one. */
const NEAR = 2.5;

class AddressMap extends Chart {
  constructor(id) {
    super(id);
    this.picture = document.createElement('canvas');
    this.picture.width = report.map.columns;
    this.picture.height = report.map.rows;
    $(`${id}-legend`).replaceChildren(make('span', { class: 'ramp' }, 'free', make('i'), 'full'));
  }

  /** The cells in the theme's colours; the lowest address at the bottom. */
  paint() {
    const { columns, rows } = report.map;
    const context = this.picture.getContext('2d');
    const image = context.createImageData(columns, rows);
    const pixels = new Uint8ClampedArray(4);
    const pixel = new Uint32Array(pixels.buffer), all = new Uint32Array(image.data.buffer);
    const ramp = [0, 1, 2, 3].map(n => parseColour(colour(`cell-${n}`)));
    const shades = Array.from({ length: 64 }, (_, level) => {
      const place = level === 0 ? 0 : 0.35 + level / 63 * 2.65;
      const [low, share] = [Math.min(Math.floor(place), 2), place - Math.min(Math.floor(place), 2)];
      pixels.set([...ramp[low].map((part, n) => part + (ramp[low + 1][n] - part) * share), 255]);
      return pixel[0];
    });
    for (let row = 0; row < rows; row++) {
      const line = (rows - 1 - row) * columns;
      for (let column = 0; column < columns; column++) all[line + column] = shades[cells[row * columns + column]];
    }
    context.putImageData(image, 0, 0);
    this.painted = document.documentElement.dataset.theme;
  }

  draw() {
    if (this.painted !== document.documentElement.dataset.theme) this.paint();
    const context = this.begin();
    const { columns, rows, bytes: arena } = report.map;
    const { margin, width, height } = this;
    this.valueAxis(view.low, view.high, ticks(view.low, view.high, height / 44, true), briefly);
    const [left, right] = [view.from, view.to].map(event => event / Math.max(events, 1) * columns);
    const [top, bottom] = [view.high, view.low].map(at => rows - at / arena * rows);
    // Shrunk, cells are averaged; enlarged, they stay cells.
    context.imageSmoothingEnabled = right - left > width;
    context.imageSmoothingQuality = 'high';
    context.drawImage(this.picture, left, top, right - left, bottom - top, margin.left, margin.top, width, height);
    if (width / (right - left) > NEAR) this.clip(() => this.blocks());
    this.eventAxis();
    this.finish();
  }

  /** The pieces in sight. */
  blocks() {
    const { context } = this;
    context.lineWidth = 1;
    for (const [block, at, length, from, to] of report.pieces) {
      if (to <= view.from || from >= view.to || at + length <= view.low || at >= view.high) continue;
      const [x0, x1, y0, y1] = [this.x(from), this.x(to), this.y(at + length), this.y(at)];
      if (y1 - y0 < 2) continue;
      const tag = report.stack ? report.stack.tags.indexOf(report.piece_blocks[block][2]) : -1;
      context.fillStyle = tag < 0 ? colour('cell-2') : colour(`tag-${tag}`);
      context.globalAlpha = 0.85;
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
      context.globalAlpha = 1;
      if (x1 - x0 < 3 || y1 - y0 < 4) continue;
      context.strokeStyle = colour('cell-0');
      context.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
    }
  }

  addressAt(y) {
    const share = Math.max(0, Math.min((this.margin.top + this.height - y) / this.height, 1));
    return view.low + share * (view.high - view.low);
  }

  selection() {
    const box = super.selection();
    const { from, to } = this.drag;
    if (Math.abs(to.y - from.y) < 12) return box;
    const inside = y => Math.max(this.margin.top, Math.min(y, this.margin.top + this.height));
    const [y0, y1] = [inside(from.y), inside(to.y)];
    return { ...box, y: Math.min(y0, y1), high: Math.abs(y1 - y0) };
  }

  selectAddresses({ from, to }) {
    if (Math.abs(to.y - from.y) < 12) return;
    const [low, high] = [this.addressAt(Math.max(from.y, to.y)), this.addressAt(Math.min(from.y, to.y))];
    showAddresses(low, high);
  }

  moveAddresses({ from, to, start }) {
    const by = (to.y - from.y) / this.height * (start.high - start.low);
    if (start.high - start.low < report.map.bytes) showAddresses(start.low + by, start.high + by);
  }

  describe() {
    if (view.place === null) return null;
    const { columns, rows, bytes: arena } = report.map;
    const column = Math.min(Math.floor(view.cursor / Math.max(events, 1) * columns), columns - 1);
    const row = Math.min(Math.floor(view.place / arena * rows), rows - 1);
    const full = cells[row * columns + column];
    const result = [
      ['Offset', address(view.place)],
      ['Cell', `${bytes(arena / rows)} × ${count(Math.max(events / columns, 1))} events`],
      ['Full', full === 0 ? 'empty' : full === 63 ? 'full' : `${Math.round((full - 0.5) / 62 * 100)} %`],
    ];
    const piece = this.piece();
    return { title: this.moment(), rows: [...result, ...piece ? this.about(piece) : []] };
  }

  /** The block at the cursor, if it is one of those that are drawn one by one. */
  piece() {
    const holds = ([, at, length, from, to]) =>
      at <= view.place && view.place < at + length && from <= view.cursor && view.cursor < to;
    return report.pieces.find(holds);
  }

  /** What is known of a block at one address. */
  about([block, at, length, from, to]) {
    const [id, size, tag] = report.piece_blocks[block];
    const rows = [['Block', String(id)], ['Size', exactly(size)], ['At', `${address(at)}, ${bytes(length)}`]];
    rows.push(['Lies there', `${count(from)} – ${to === events ? 'the end' : count(to)}`]);
    if (report.stack) rows.push(['Tag', tagName(tag)]);
    return rows;
  }

  /** The block at the cursor and the stack that asked for it; else who held the memory at that moment. */
  pick() {
    const piece = this.piece();
    if (!piece) {
      super.pick();
      return;
    }
    const call = report.piece_blocks[piece[0]][3];
    const rows = [...this.about(piece), ['Age', some(Math.round(view.cursor - piece[3]), 'event')]];
    showChosen('map', this.moment(), rows, who && call ? stackList(framesOf(call)) : '');
  }
}

/** Red, green and blue of a `#rrggbb`. */
const parseColour = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
