// Puts the page together.

$('name').textContent = report.name;
document.title = `${report.name} – allotment view`;
$('about').textContent = [
  `${some(events, 'event')}, ${some(totals.blocks, 'block')}`,
  `addresses by ${report.placement} in granules of ${totals.granule} B`,
  ...totals.ordered ? [] : ['a profile: the order of its events is made up, so charts, addresses and lifetimes mean nothing'],
  ...totals.closing ? [`without ${some(totals.closing, 'free')} by the recorder at the end`] : [],
  ...totals.sample ? [`a sample of one block per ${bytes(totals.sample)}, each drawn as large as what it stands for`] : [],
  ...totals.lost ? [`${some(totals.lost, 'event')} lost by the recorder`] : [],
  ...totals.refused ? [`${some(totals.refused, 'request')} refused when it was recorded`] : [],
].join(' · ');

const ordered = totals.ordered ? [
  ['Peak live', bytes(totals.peak), `after event ${count(totals.peak_event)}`],
  [totals.smallest ? 'Smallest arena' : 'Arena', bytes(totals.arena),
    `${(totals.arena / Math.max(totals.peak, 1)).toFixed(3)} × the peak`],
  ['Median lifetime', some(totals.median_lifetime, 'event'), 'half live longer'],
  ['External fragmentation', percent(totals.external), 'at the peak, of free bytes'],
  ['Internal fragmentation', percent(totals.internal), 'at the peak, of taken bytes'],
] : [];
const figures = [
  ...ordered,
  ['Requested in all', bytes(totals.requested), `in ${some(totals.blocks, 'block')}`],
  ['Live at the end', bytes(totals.live_bytes), some(totals.live_blocks, 'block')],
  ...totals.failed ? [['Failed requests', count(totals.failed), 'in this arena', 'bad']] : [],
];
$('totals').replaceChildren(...figures.map(([label, figure, note, kind = '']) => make('div', { class: kind },
  make('dt', {}, label), make('dd', { class: 'figure' }, figure), make('dd', { class: 'note' }, note))));

// Between backquotes is code.
const words = text => text.replace(/\d{4,}/g, count).split('`').map((part, n) => n % 2 ? make('code', {}, part) : part);

const suggestion = each => {
  const [figure, note] = each.saves ? [bytes(each.saves), each.calls ? `and ${some(each.calls, 'call')}` : 'could be saved']
    : each.traffic ? [bytes(each.traffic), 'of traffic'] : [some(each.calls, 'call'), 'could be saved'];
  const badge = make('b', {}, figure, make('small', {}, note));
  const tag = each.tag === null ? '' : `, tag ${tagName(each.tag)}`;
  const item = make('li', { class: each.saves ? 'memory' : 'time' }, badge, make('span', { class: 'what' }, ...words(each.what), tag));
  if (each.event === null) {
    item.append(make('span'));
  } else {
    const button = make('button', { type: 'button' }, 'Show');
    button.addEventListener('click', () => showAround(each.event, each.event));
    item.append(button);
  }
  item.append(make('span', { class: 'advice' }, ...words(each.advice)));
  return item;
};
const few = report.suggestions.slice(0, 6).map(suggestion);
if (few.length === 0) few.push(make('li', { class: 'none' }, 'Nothing stands out.'));
$('suggestions').replaceChildren(...few);
if (report.suggestions.length > 6) {
  const more = make('button', { type: 'button', class: 'more' }, `Show all ${report.suggestions.length}`);
  more.addEventListener('click', () => {
    $('suggestions').append(...report.suggestions.slice(6).map(suggestion));
    more.remove();
  });
  $('suggestions').after(more);
}

new Overview('overview');
const memory = new Lines('memory', [
  { name: 'span', label: 'Reserved, up to the last block' },
  { name: 'taken', label: 'Taken by blocks' },
  { name: 'live', label: 'Live', area: true },
  { name: 'mark', label: 'High-water mark', dashed: true },
], { say: exactly, label: briefly, binary: true });
memory.canvas.setAttribute('aria-label',
  `Chart of bytes over ${count(events)} events: live, taken by blocks, reserved. Peak ${bytes(totals.peak)} after event ${count(totals.peak_event)}.`);

const map = new AddressMap('map');
map.canvas.setAttribute('aria-label',
  `Heat map of an arena of ${bytes(totals.arena)} over ${count(events)} events: how full each part of it is.`);

const fragmentation = new Lines('fragmentation', [
  { name: 'external', label: 'External' },
  { name: 'internal', label: 'Internal' },
], { say: percent, limit: 1000, label: permille => `${Math.round(permille / 10)} %` });
fragmentation.canvas.setAttribute('aria-label', 'Chart of external and internal fragmentation in percent over time.');

if (report.stack) {
  const tags = new Stack('tags');
  tags.canvas.setAttribute('aria-label', `Stacked chart of live bytes by tag: ${tags.parts.map(part => part.label).join(', ')}.`);
  table('tag-table', [
    tagColumn,
    { label: 'Blocks', value: row => row.blocks, cell: row => count(row.blocks), number: true },
    { label: 'Peak', value: row => row.peak, cell: row => exactly(row.peak), number: true },
    { label: 'Live at the end', value: row => row.live, cell: row => exactly(row.live), number: true },
  ], report.by_tag);
} else {
  $('tags-card').remove();
}
for (const chart of charts) if (chart instanceof Overview === false) listen(chart);

const span = (low, high, say) => high - low <= 1 ? say(low) : `${say(low)} – ${say(high - 1)}`;
bars('sizes', report.sizes, each => `${span(each.from, each.to, count)} B`, [
  { label: 'Requests', value: each => each.count, say: count },
  { label: 'Bytes', value: each => each.bytes, say: bytes },
], 'live at the end');
bars('lifetimes', report.lifetimes, each => span(each.from, each.to, count), [
  { label: 'Blocks', value: each => each.count, say: count },
  { label: 'Bytes', value: each => each.bytes, say: bytes },
], 'live at the end');

table('exact', [
  { label: 'Size', value: row => row.size, cell: row => exactly(row.size), number: true },
  { label: 'Requests', value: row => row.count, cell: row => count(row.count), number: true },
  { label: 'Most at once', value: row => row.most, cell: row => count(row.most), number: true },
], report.exact_sizes);

if (totals.live_blocks === 0) {
  $('live-about').textContent = 'Nothing: every block was freed.';
  $('live-details').remove();
} else {
  $('live-about').textContent = `${some(totals.live_blocks, 'block')}, ${exactly(totals.live_bytes)}: leaks, or what is meant to stay. `
    + 'By size, those with the most bytes first.';
  table('live-groups', [
    ...tagged,
    { label: 'Blocks', value: row => row.count, cell: row => count(row.count), number: true },
    { label: 'Size', value: row => row.size, cell: row => exactly(row.size), number: true },
    { label: 'Together', value: row => row.count * row.size, cell: row => exactly(row.count * row.size), number: true },
    { label: 'First', value: row => row.first, cell: row => link(row.first), number: true },
    { label: 'Last', value: row => row.last, cell: row => link(row.last), number: true },
  ], report.live_groups, 10, row => helps((tag, size) => tag === row.tag && size === row.size));
  table('live', blockColumns, report.live);
}
table('largest', blockColumns, report.largest);

for (const [id, act] of [['in', () => zoom(0.5)], ['out', () => zoom(2)], ['earlier', () => move(-0.5)], ['later', () => move(0.5)], ['all', showAll]]) {
  $(id).addEventListener('click', act);
}
tellRange();
redraw();
