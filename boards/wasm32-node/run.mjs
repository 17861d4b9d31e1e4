// Runs the module that is named on the command line, and exits with its status.
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";

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
exit(status);
