// Runs the modules that are named on the command line in turns, and prints one line for each: bytes of the module, requests that were
// served, and for two mixes the median nanoseconds of a request and the memory at the end in KiB.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";

const ROUNDS = 400_000;
const TURNS = 9;
const mixes = [
  ["small", 8],
  ["mixed", 15],
];

const modules = [];
for (const path of argv.slice(2)) {
  const bytes = await readFile(path);
  modules.push({ path, size: bytes.length, module: await WebAssembly.compile(bytes), figures: mixes.map(() => ({ times: [] })) });
}
for (let turn = 0; turn < TURNS; turn++) {
  for (const one of modules) {
    for (const [n, [, most]] of mixes.entries()) {
      const { exports } = await WebAssembly.instantiate(one.module, {});
      exports.run(20_000, 7, most);
      const started = performance.now();
      const served = exports.run(ROUNDS, 1, most);
      one.figures[n].times.push(((performance.now() - started) * 1e6) / ROUNDS);
      one.figures[n].served = served;
      one.figures[n].memory = exports.memory.buffer.byteLength / 1024;
    }
  }
}
for (const { path, size, figures } of modules) {
  const parts = figures.map(({ times, served, memory }) => {
    const median = times.sort((a, b) => a - b)[(times.length - 1) / 2];
    return `${served},${median.toFixed(1)},${memory}`;
  });
  console.log([path, size, ...parts].join(","));
}
