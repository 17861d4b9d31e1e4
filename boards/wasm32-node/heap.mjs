// The heap of a module, as the page shows it and `run.mjs` checks it.
const NAMES = ["capacity", "used", "peak", "free", "largestFree", "liveBlocks", "fragmentation"];

export class Blocks {
  constructor(exported) {
    this.exported = exported;
    this.live = [];
    this.requested = 0;
  }

  // Allocates a block; false if the heap has no room and cannot grow.
  allocate(size) {
    const block = this.exported.allocate(size);
    if (block === 0) return false;
    this.live.push([block, size]);
    this.requested += size;
    return true;
  }

  // Frees a block, the `n`th from the start.
  free(n) {
    const [block, size] = this.live[n];
    this.live[n] = this.live.at(-1);
    this.live.pop();
    this.requested -= size;
    this.exported.free(block, size);
  }

  // The statistics of the heap now, in bytes; fragmentation in permille. `memory` is what the module has altogether.
  statistics() {
    const at = this.exported.statistics();
    const buffer = this.exported.memory.buffer;
    const values = new Uint32Array(buffer, at, NAMES.length);
    const statistics = Object.fromEntries(NAMES.map((name, n) => [name, values[n]]));
    return { ...statistics, memory: buffer.byteLength, requested: this.requested };
  }
}
