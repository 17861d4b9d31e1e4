// Runs modules in turns; in Node by `run.mjs`, in a browser by the page that `cargo xtask wasm` writes. Returns a line for each: bytes of the
// module, and for two mixes the requests that were served, the median nanoseconds of a request and the memory at the end in KiB.
const ROUNDS = 400_000;
const TURNS = 9;
const MIXES = [8, 15];

function measure(modules) {
  const all = modules.map((bytes) => ({
    size: bytes.length,
    module: new WebAssembly.Module(bytes),
    figures: MIXES.map(() => ({ times: [] })),
  }));
  for (let turn = 0; turn < TURNS; turn++) {
    for (const { module, figures } of all) {
      for (const [n, most] of MIXES.entries()) {
        const { exports } = new WebAssembly.Instance(module, {});
        exports.run(20_000, 7, most);
        const started = performance.now();
        const served = exports.run(ROUNDS, 1, most);
        figures[n].times.push(((performance.now() - started) * 1e6) / ROUNDS);
        figures[n].served = served;
        figures[n].memory = exports.memory.buffer.byteLength / 1024;
      }
    }
  }
  return all.map(({ size, figures }) => {
    const parts = figures.map(({ times, served, memory }) => {
      const median = times.sort((a, b) => a - b)[(TURNS - 1) / 2];
      return `${served},${median.toFixed(1)},${memory}`;
    });
    return [size, ...parts].join(",");
  });
}
