// Runs the module that is named on the command line on one, two and four workers at once, and checks that no block changes, that blocks
// freed by another worker come back, and that nothing is in use at the end. Prints a line for each heap: nanoseconds of a round on one, two
// and four workers.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

const STACK = 256 * 1024;
const HEAPS = ["Cached<WasmHeap>", "WasmHeap", "dlmalloc"];

const instantiate = async (module, memory) => (await WebAssembly.instantiate(module, { env: { memory } })).exports;

if (isMainThread) {
  const module = await WebAssembly.compile(await readFile(argv[2]));
  const rounds = Number(argv[3] ?? 300_000);
  const memory = new WebAssembly.Memory({ initial: 32, maximum: 16384, shared: true });
  // The first instance has the stack and thread-local storage that the linker made.
  const exports = await instantiate(module, memory);
  assert(exports.collections(1));
  const workers = [];
  for (let n = 0; n < 4; n++) {
    const stack = exports.reserve(STACK, 16);
    const storage = exports.reserve(exports.__tls_size.value, exports.__tls_align.value);
    assert(stack && storage);
    const worker = new Worker(new URL(import.meta.url), { workerData: { module, memory, stack, storage } });
    workers.push(worker);
  }
  const failure = Promise.race(workers.map((worker) => new Promise((_, reject) => worker.once("error", reject))));
  const ask = (worker, task) =>
    Promise.race([failure, new Promise((resolve) => (worker.once("message", resolve), worker.postMessage(task)))]);
  const all = (count, task) => Promise.all(workers.slice(0, count).map((worker, n) => ask(worker, { ...task, seed: n + 1 })));

  assert.deepEqual(await all(4, { call: "collections" }), [true, true, true, true]);
  await all(4, { call: "flush" });
  exports.flush();
  const before = exports.used();
  for (const [heap, name] of HEAPS.entries()) {
    const figures = [];
    for (const count of [1, 2, 4]) {
      const times = [];
      for (let turn = 0; turn < 5; turn++) {
        const started = performance.now();
        const wrong = await all(count, { call: "work", heap, rounds });
        times.push(((performance.now() - started) * 1e6) / rounds / count);
        assert.deepEqual(wrong, wrong.map(() => 0), `${name}: requests failed or blocks changed`);
        assert.equal(exports.settle(heap), 0, `${name}: a block that was passed on changed`);
      }
      figures.push(times.sort((a, b) => a - b)[2].toFixed(1));
    }
    await all(4, { call: "flush" });
    exports.flush();
    assert.equal(exports.used(), before, `${name}: blocks were lost`);
    console.log([name, ...figures].join(","));
  }
  await Promise.all(workers.map((worker) => worker.terminate()));
} else {
  const { module, memory, stack, storage } = workerData;
  const exports = await instantiate(module, memory);
  // A stack and thread-local storage of its own, before anything of the module runs.
  exports.__stack_pointer.value = stack + STACK;
  exports.__wasm_init_tls(storage);
  parentPort.on("message", ({ call, heap, seed, rounds }) => {
    const calls = {
      work: () => exports.work(heap, seed, rounds),
      collections: () => exports.collections(seed) === 1,
      flush: () => exports.flush(),
    };
    parentPort.postMessage(calls[call]());
  });
}
