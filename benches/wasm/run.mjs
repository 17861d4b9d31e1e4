// Measures the modules that are named on the command line, and prints a line for each.
import { readFileSync } from "node:fs";
import { argv } from "node:process";
import { runInThisContext } from "node:vm";

// A script, not a module, because a page has to contain it.
const measure = runInThisContext(`${readFileSync(new URL("measure.js", import.meta.url), "utf8")}; measure`);
console.log(measure(argv.slice(2).map((path) => readFileSync(path))).join("\n"));
