'use strict';
// The report, and levels of it: each half as fine as the one before, so that no more is drawn than there are pixels.

const report = JSON.parse(document.getElementById('data').textContent);
const totals = report.totals;
const events = totals.events;
const buckets = report.buckets;
const eventsPerBucket = buckets ? events / buckets : 1;

/** Element by id. */
const $ = id => document.getElementById(id);

/** The levels of a `{min, max}`, the finest first. */
function levelsOf(range) {
  const levels = [range];
  for (let fine = range; fine.min.length > 256; fine = levels[levels.length - 1]) {
    const coarse = { min: [], max: [] };
    for (let i = 0; i < fine.min.length; i += 2) {
      const next = Math.min(i + 1, fine.min.length - 1);
      coarse.min.push(Math.min(fine.min[i], fine.min[next]));
      coarse.max.push(Math.max(fine.max[i], fine.max[next]));
    }
    levels.push(coarse);
  }
  return levels;
}

/** The levels of the stack: of two buckets, the one in which more was live. */
function stackLevelsOf(stack, live) {
  const levels = [stack.live];
  for (let k = 1; k < live.length; k++) {
    const fine = levels[k - 1], most = live[k - 1].max;
    const picks = live[k].max.map((_, i) => 2 * i + 1 < most.length && most[2 * i + 1] > most[2 * i] ? 2 * i + 1 : 2 * i);
    levels.push(fine.map(line => picks.map(i => line[i])));
  }
  return levels;
}

const series = {};
for (const name of Object.keys(report.series)) series[name] = levelsOf(report.series[name]);

// The high-water mark: the most that was live up to here.
let most = 0;
const mark = report.series.live.max.map(value => (most = Math.max(most, value)));
series.mark = levelsOf({ min: mark, max: mark });

const stackLevels = report.stack && stackLevelsOf(report.stack, series.live);

/** The level to draw when a pixel stands for `perPixel` events: about one bucket a pixel. */
function levelFor(perPixel) {
  const level = Math.floor(Math.log2(Math.max(perPixel / eventsPerBucket, 1)));
  return Math.min(level, series.live.length - 1);
}

/** Bucket of the finest level that holds an event. */
const bucketAt = event => Math.max(0, Math.min(buckets - 1, Math.floor(event / eventsPerBucket + 1e-9)));

/** The first event of a bucket, and the one behind its last. */
const bucketEvents = bucket => [Math.floor(bucket * eventsPerBucket + 1e-9), Math.floor((bucket + 1) * eventsPerBucket + 1e-9)];

/** A tag's name. */
const tagName = tag => report.tags[tag] || 'no tag';

/** How full each cell of the map is, 0 to 63. */
const cells = (() => {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  const value = new Uint8Array(128);
  for (let i = 0; i < 64; i++) value[letters.charCodeAt(i)] = i;
  return Uint8Array.from(report.map.cells, letter => value[letter.charCodeAt(0)]);
})();
