// Histograms and lists: tables, so that they can be read without seeing them.

/** Bars of classes; `units` are what their length can stand for. */
function bars(id, classes, name, units, leftOver) {
  let unit = units[0];
  const buttons = units.map(each => make('button', { type: 'button', 'aria-pressed': String(each === unit) }, each.label));
  const draw = () => {
    const most = Math.max(1, ...classes.map(unit.value));
    const rows = classes.map(each => {
      const value = unit.value(each);
      const live = each.count ? each.live / each.count : 0;
      const bar = make('div', { class: 'bar' },
        make('i', { style: `width:${value * (1 - live) / most * 100}%` }),
        make('i', { class: 'left', style: `width:${value * live / most * 100}%` }));
      const left = each.live ? `, ${count(each.live)} ${leftOver}` : '';
      const title = `${name(each)}: ${count(each.count)} (${bytes(each.bytes)})${left}`;
      return make('tr', { title }, make('th', { scope: 'row' }, name(each)), make('td', {}, bar), make('td', { class: 'number' }, unit.say(value)));
    });
    $(id).replaceChildren(make('table', { class: 'bars' }, make('tbody', {}, ...rows)));
  };
  buttons.forEach((button, n) => button.addEventListener('click', () => {
    unit = units[n];
    buttons.forEach(each => each.setAttribute('aria-pressed', String(each === button)));
    draw();
  }));
  $(`${id}-unit`).replaceChildren(...buttons);
  draw();
}

/** A link to what happened around an event, or in a block's life. */
function link(from, to = from) {
  const button = make('button', { type: 'button', class: 'link', title: 'Show it in the charts' }, count(from));
  button.addEventListener('click', () => showAround(from, to));
  return button;
}

/**
 * A table. A column has a label, `value` (by which it is sorted), and `cell` (what is shown; the value if absent);
 * `number` sets it flush right. `below` returns what stands under a row, if anything.
 */
function table(id, columns, rows, first = 10, below = () => null) {
  let shown = first, sorted = null, order = rows;
  const head = columns.map((column, n) => {
    const button = make('button', { type: 'button' }, column.label);
    const cell = make('th', { class: column.number ? 'number' : '', scope: 'col' }, button);
    button.addEventListener('click', () => {
      const down = sorted?.n === n ? !sorted.down : Boolean(column.number);
      sorted = { n, down };
      order = [...rows].sort((a, b) => {
        const [x, y] = [column.value(a), column.value(b)];
        return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
      });
      head.forEach(each => each.removeAttribute('aria-sort'));
      cell.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      fill();
    });
    return cell;
  });
  const body = make('tbody');
  const more = make('button', { type: 'button', class: 'more' }, `Show all ${count(rows.length)}`);
  more.addEventListener('click', () => { shown = rows.length; fill(); });
  const fill = () => {
    body.replaceChildren(...order.slice(0, shown).flatMap(row => {
      const cells = columns.map(column => {
        const content = column.cell ? column.cell(row) : column.value(row);
        const cell = make('td', { class: column.number ? 'number' : column.tag ? 'tag' : '' }, content);
        if (column.tag) cell.title = content;
        return cell;
      });
      const note = below(row);
      const under = note && make('tr', { class: 'below' }, make('td', { colSpan: columns.length }, note));
      return [make('tr', {}, ...cells), ...under ? [under] : []];
    }));
    more.hidden = shown >= rows.length;
  };
  fill();
  const whole = make('table', {}, make('thead', {}, make('tr', {}, ...head)), body);
  $(id).replaceChildren(make('div', { class: 'scroll', tabIndex: -1 }, whole), more);
}

const tagColumn = { label: 'Tag', value: row => tagName(row.tag), tag: true };
const tagged = report.stack ? [tagColumn] : [];

/** The suggestions that were tried for blocks live at the end whose tag, size and call `is` accepts, as a list; nothing if there are none. */
function helps(is) {
  const items = report.suggestions.flatMap(each => {
    const blocks = each.left.filter(([tag, size, call]) => is(tag, size, call)).reduce((sum, row) => sum + row[3], 0);
    return blocks ? [make('li', {}, `${each.what}: ${each.saves ? `saves ${bytes(each.saves)}` : `saves ${some(each.calls, 'call')}`}`,
      make('small', {}, `, concerns ${some(blocks, 'block')} here`))] : [];
  });
  return items.length ? make('ul', { class: 'helps' }, ...items) : null;
}

/** Who asked for a block: the first function that does not allocate for others. */
const asker = row => {
  const frames = row.call === null ? [] : framesOf(row.call);
  const own = frames.find(frame => !/^(void )?<?(alloc|core|std|hashbrown)::|^__rust|^operator new/.test(functionName(frame)));
  return own ?? frames[0] ?? 0;
};

const askers = report.who ? [{
  label: 'Asked for by',
  value: row => functionName(asker(row)),
  cell: row => {
    const button = make('button', { type: 'button', class: 'link', title: functionPlace(asker(row)) }, functionName(asker(row)));
    button.addEventListener('click', () => {
      showStack(framesOf(row.call));
      $('who-card').scrollIntoView({ block: 'start' });
    });
    return button;
  },
}] : [];

const blockColumns = [
  { label: 'Block', value: row => row.id, cell: row => String(row.id), number: true },
  ...tagged,
  { label: 'Size', value: row => row.size, cell: row => exactly(row.size), number: true },
  { label: 'Alignment', value: row => row.align, cell: row => count(row.align), number: true },
  { label: 'Offset', value: row => row.at ?? -1, cell: row => row.at === null ? 'none' : address(row.at), number: true },
  { label: 'Allocated', value: row => row.from, cell: row => link(row.from, row.to ?? events), number: true },
  { label: 'Freed', value: row => row.to ?? Infinity, cell: row => row.to === null ? 'never' : count(row.to), number: true },
  ...askers,
];
