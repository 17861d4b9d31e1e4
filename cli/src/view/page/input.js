// Pointer, wheel and keys on a chart; the tooltip.

const tip = $('tip');

/** Shows what `chart` says about the cursor, beside the pointer. */
function tell(chart, clientX, clientY) {
  const told = view.cursor === null ? null : chart.describe();
  tip.hidden = !told;
  if (!told) return;
  const rows = told.rows.map(([label, value, fill]) => {
    const name = make('span', {}, label);
    if (fill) name.prepend(make('i', { style: `background:${fill}` }));
    return make('div', {}, name, make('span', {}, value));
  });
  tip.replaceChildren(make('p', {}, told.title), ...rows);
  const { width, height } = tip.getBoundingClientRect();
  const x = clientX + 16 + width > innerWidth ? clientX - width - 16 : clientX + 16;
  const y = Math.min(Math.max(clientY - height / 2, 8), innerHeight - height - 8);
  tip.style.transform = `translate(${Math.round(Math.max(8, Math.min(x, innerWidth - width - 8)))}px, ${Math.round(y)}px)`;
}

/** What was clicked, below its chart, until it is closed. */
function showChosen(chart, title, rows, ...more) {
  const place = $(`${chart}-chosen`);
  if (!place) return;
  const close = make('button', { type: 'button', class: 'icon', 'aria-label': 'Close' }, '×');
  close.addEventListener('click', () => place.replaceChildren());
  const list = make('dl', {}, ...rows.map(([label, value]) => make('div', {}, make('dt', {}, label), make('dd', {}, value))));
  place.replaceChildren(make('div', { class: 'chosen' }, make('div', { class: 'row' }, make('p', {}, title), close), list, ...more));
}

let saying = 0;

/** The same for those who listen, once the keys rest. */
function say(chart) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    const told = chart.describe();
    if (told) $('say').textContent = [told.title, ...told.rows.map(([label, value]) => `${label} ${value}`)].join(', ');
  }, 250);
}

function leave(chart) {
  tip.hidden = true;
  chart.drag = null;
  point(null);
}

/** Makes a chart answer. */
function listen(chart) {
  const canvas = chart.canvas;
  const pointers = new Map();
  let pinch = null;
  const at = event => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const hover = event => {
    const { x, y } = at(event);
    point(chart.eventAt(x), chart.addressAt?.(y) ?? null);
    tell(chart, event.clientX, event.clientY);
  };

  canvas.addEventListener('pointerdown', event => {
    if (event.button > 0) return;
    canvas.setPointerCapture(event.pointerId);
    hover(event);
    pointers.set(event.pointerId, at(event));
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      pinch = { apart: Math.max(Math.abs(a.x - b.x), 1), length: view.to - view.from, event: chart.eventAt((a.x + b.x) / 2) };
      chart.drag = null;
      return;
    }
    const moves = event.shiftKey || event.pointerType === 'touch';
    chart.drag = { from: at(event), to: at(event), moves, start: { ...view } };
  });

  canvas.addEventListener('pointermove', event => {
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, at(event));
    if (pinch && pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      const length = pinch.length * pinch.apart / Math.max(Math.abs(a.x - b.x), 1);
      zoom(length / (view.to - view.from), pinch.event);
      return;
    }
    const drag = chart.drag;
    if (drag) {
      drag.to = at(event);
      if (drag.moves) {
        const by = (drag.from.x - drag.to.x) / chart.width * (drag.start.to - drag.start.from);
        show(drag.start.from + by, drag.start.to + by);
        chart.moveAddresses?.(drag);
      }
    }
    hover(event);
  });

  const up = event => {
    pointers.delete(event.pointerId);
    if (pointers.size < 2) pinch = null;
    const drag = chart.drag;
    chart.drag = null;
    const still = drag && Math.hypot(drag.to.x - drag.from.x, drag.to.y - drag.from.y) <= 4;
    if (still && event.type === 'pointerup' && view.cursor !== null) chart.pick(drag.to.y);
    if (drag && !drag.moves && event.type === 'pointerup') {
      const [x0, x1] = [drag.from.x, drag.to.x].sort((a, b) => a - b);
      if (x1 - x0 > 4) {
        chart.selectAddresses?.(drag);
        show(chart.eventAt(x0), chart.eventAt(x1));
      }
    }
    redraw();
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', up);
  canvas.addEventListener('pointerleave', event => pointers.size || event.pointerType === 'touch' || leave(chart));
  canvas.addEventListener('blur', () => leave(chart));
  canvas.addEventListener('dblclick', showAll);

  canvas.addEventListener('wheel', event => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (sideways) move(event.deltaX / chart.width);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), chart.eventAt(at(event).x));
    hover(event);
  }, { passive: false });

  canvas.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (view.to - view.from) / chart.width * (event.shiftKey ? 20 : 2);
    const cursor = view.cursor ?? (view.from + view.to) / 2;
    const keys = {
      ArrowLeft: () => goTo(cursor - Math.max(step, 1)),
      ArrowRight: () => goTo(cursor + Math.max(step, 1)),
      ArrowUp: chart.addressAt && (() => goTo(cursor, 1)),
      ArrowDown: chart.addressAt && (() => goTo(cursor, -1)),
      Home: () => goTo(view.from),
      End: () => goTo(view.to),
      PageUp: () => move(-0.8),
      PageDown: () => move(0.8),
      '+': () => zoom(0.6, cursor),
      '=': () => zoom(0.6, cursor),
      '-': () => zoom(1 / 0.6, cursor),
      0: showAll,
      Escape: showAll,
      Enter: view.cursor !== null && (() => chart.pick(chart.margin.top + chart.height)),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  function goTo(event, up = 0) {
    event = Math.max(0, Math.min(event, events - 1));
    if (event < view.from || event > view.to) move(event < view.from ? -0.5 : 0.5);
    let place = null;
    if (chart.addressAt) {
      const rows = (view.high - view.low) / 40;
      place = Math.max(view.low, Math.min((view.place ?? view.low) + up * rows, view.high - 1));
    }
    point(event, place);
    const box = canvas.getBoundingClientRect();
    tell(chart, box.left + chart.x(event), box.top + (place === null ? box.height / 3 : chart.y(place)));
    say(chart);
  }
}
