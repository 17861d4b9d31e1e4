// The heap of a module, as the page shows it and `run.mjs` checks it.
const NAMES = ["capacity", "used", "peak", "free", "largestFree", "liveBlocks", "fragmentation"];

export class Blocks {
  constructor(exported) {
    this.exported = exported;
    this.live = [];
    this.requested = 0;
  }

  // Allocates a block; false if the heap has no room and cannot grow.
  take(size) {
    const block = this.exported.take(size);
    if (block === 0) return false;
    this.live.push([block, size]);
    this.requested += size;
    return true;
  }

  // Frees a block, the `n`th from the start.
  give(n) {
    const [block, size] = this.live[n];
    this.live[n] = this.live.at(-1);
    this.live.pop();
    this.requested -= size;
    this.exported.give(block, size);
  }

  // The figures of the heap now, in bytes; fragmentation in permille. `memory` is what the module has altogether.
  figures() {
    const at = this.exported.figures();
    const buffer = this.exported.memory.buffer;
    const values = new Uint32Array(buffer, at, NAMES.length);
    const figures = Object.fromEntries(NAMES.map((name, n) => [name, values[n]]));
    return { ...figures, memory: buffer.byteLength, requested: this.requested };
  }
}
