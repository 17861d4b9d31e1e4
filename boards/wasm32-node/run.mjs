// Runs the module that is named on the command line, checks that the statistics on the page are those of its heap, and exits with
// its status.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";
import { Blocks } from "./heap.mjs";

let memory;
const host = {
  print(text, length) {
    let line = new TextDecoder().decode(new Uint8Array(memory.buffer, text, length));
    if (line.startsWith("summary ")) {
      // The variables lie between these; the file itself does not tell their size.
      line += ` static_ram=${exported.__data_end.value - exported.__global_base.value}`;
    }
    console.log(line);
  },
};

const { instance } = await WebAssembly.instantiate(await readFile(argv[2]), { host });
const exported = instance.exports;
memory = exported.memory;

const started = performance.now();
const status = exported.run();
console.log(`${(performance.now() - started).toFixed(0)} ms`);

const blocks = new Blocks(exported);
const before = blocks.statistics();
for (let n = 0; n < 500; n++) assert(blocks.allocate(1 + ((n * 37) % 3000)));
assert(blocks.allocate(1 << 20), "the memory grows");
let now = blocks.statistics();
assert.equal(now.liveBlocks - before.liveBlocks, 501);
// Blocks of a page count as a whole, so more may be in use than was requested, but never less.
assert(now.used - before.used >= now.requested && now.used - before.used < 1.3 * now.requested, JSON.stringify(now));
assert(now.capacity - before.capacity >= 1 << 20 && now.memory >= now.capacity && now.memory > before.memory);
assert(now.peak >= now.used && now.largestFree <= now.free && now.used + now.free === now.capacity);
assert.equal(now.fragmentation, Math.floor(((now.free - now.largestFree) * 1000) / now.free));
for (let n = 0; n < 250; n++) blocks.free(n);
now = blocks.statistics();
assert(now.fragmentation > 0 && now.liveBlocks - before.liveBlocks === 251, JSON.stringify(now));
while (blocks.live.length > 0) blocks.free(0);
now = blocks.statistics();
assert.deepEqual([now.used, now.liveBlocks, now.requested], [before.used, before.liveBlocks, 0]);

// A block of 1 GiB, and all of 4 GiB, most of which other code takes here. What is refused leaves the memory as it was.
assert(blocks.allocate(2 ** 30) && blocks.statistics().memory < 1.1 * 2 ** 30);
const refused = () => {
  const { memory } = blocks.statistics();
  for (const size of [2 ** 31 - 8, 3 * 2 ** 30]) assert(!blocks.allocate(size));
  assert.equal(blocks.statistics().memory, memory);
};
for (let n = 0; n < 20; n++) {
  exported.memory.grow(n === 9 ? 43000 : 3);
  assert(blocks.allocate(300000 * (n + 1)), `after ${n} times that other code let the memory grow`);
  if (n > 9) refused();
}
for (const size of [1 << 26, 1 << 20, 1000]) {
  while (blocks.allocate(size));
  refused();
}
assert.equal(blocks.statistics().memory, 2 ** 32);
assert(blocks.statistics().free < 2 ** 20, JSON.stringify(blocks.statistics()));
while (blocks.live.length > 0) blocks.free(blocks.live.length - 1);
assert.equal(blocks.statistics().used, before.used);
exit(status);
