"use strict";
const { how, rows, plans } = JSON.parse(document.getElementById("data").textContent);
const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const seconds = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));
const peer = (result) => {
  if (!result) return "–";
  const words = { "out-of-time": "none in time", failed: "failed", unsuited: "not for it" };
  return words[result.result] ?? `${number(result.peak)} in ${seconds(result.seconds)} s`;
};
const peerKey = (result) => (result && result.result === "planned" ? result.seconds : Infinity);

// Title, text of a cell, and what it is sorted by.
const columns = [
  ["instance", (row) => row.name, (row) => row.name],
  ["plan", () => "", (row) => row.buffers],
  ["buffers", (row) => number(row.buffers), (row) => row.buffers],
  ["bound, B", (row) => number(row.bound), (row) => row.bound],
  ["peak, B", (row) => number(row.peak), (row) => row.peak],
  ["gap", (row) => (row.peak === row.bound ? "optimal" : `+${row.gap_percent.toFixed(3)} %`), (row) => row.gap_percent],
  ["found by", (row) => row.found_by, (row) => row.found_by],
];
if (rows.some((row) => row.seconds !== null)) {
  columns.push(["best known, B", (row) => number(row.known), (row) => row.known ?? Infinity]);
  columns.push(["found, s", (row) => seconds(row.found), (row) => row.found ?? Infinity]);
  columns.push(["search, s", (row) => seconds(row.seconds), (row) => row.seconds ?? Infinity]);
}
for (const [key, title] of [["minimalloc", "MiniMalloc, to our peak"], ["idealloc", "idealloc"]]) {
  if (rows.some((row) => row[key])) columns.push([title, (row) => peer(row[key]), (row) => peerKey(row[key])]);
}

// The extent of a plan: first and last step, and the peak.
const extent = (plan, row) => {
  let [start, end] = [Infinity, -Infinity];
  for (let n = 0; n < plan.length; n += 4) {
    start = Math.min(start, plan[n]);
    end = Math.max(end, plan[n + 1]);
  }
  return start < end ? { start, end, top: Math.max(row.peak, 1) } : { start: 0, end: 1, top: 1 };
};

// Draws a plan, and returns how a place on the canvas becomes a step and a byte.
const draw = (canvas, index) => {
  const [plan, row] = [plans[index], rows[index]];
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  const { start, end, top } = extent(plan, row);
  const x = (step) => ((step - start) / (end - start)) * width;
  const y = (byte) => height - (byte / top) * height;
  paint.fillStyle = "#9994";
  paint.fillRect(0, 0, width, height);
  const borders = height > 100;
  for (let n = 0; n < plan.length; n += 4) {
    const [left, right, low, high] = [x(plan[n]), x(plan[n + 1]), y(plan[n + 2]), y(plan[n + 3])];
    // The golden angle keeps neighbours apart.
    paint.fillStyle = `hsl(${(n * 34.377) % 360} 60% 62%)`;
    paint.fillRect(left, high, Math.max(right - left, 0.2), Math.max(low - high, 0.2));
    if (borders && right - left > 3 && low - high > 3) {
      paint.strokeStyle = "#0006";
      paint.lineWidth = 0.5;
      paint.strokeRect(left, high, right - left, low - high);
    }
  }
  if (borders && row.bound < row.peak) {
    paint.strokeStyle = "#c00";
    paint.setLineDash([6, 4]);
    paint.beginPath();
    paint.moveTo(0, y(row.bound));
    paint.lineTo(width, y(row.bound));
    paint.stroke();
  }
  return (px, py) => ({ step: start + (px / width) * (end - start), byte: (1 - py / height) * top });
};

document.getElementById("how").textContent = how;
const head = document.getElementById("head");
const body = document.getElementById("body");
const large = document.getElementById("plan");
const said = document.getElementById("said");
let sorted = { column: -1, up: true };
let shown = 0;
let place = null;

const select = (index) => {
  shown = index;
  const row = rows[index];
  const gap = row.peak === row.bound ? "optimal" : `${number(row.peak - row.bound)} B above the bound`;
  document.getElementById("name").textContent = `${row.name}: ${number(row.peak)} B, ${gap}`;
  for (const line of body.children) line.setAttribute("aria-selected", String(Number(line.dataset.index) === index));
  place = draw(large, index);
  said.textContent = "Point at a buffer.";
};

for (const [index, row] of rows.entries()) {
  const line = body.insertRow();
  line.dataset.index = index;
  line.tabIndex = 0;
  for (const [title, text] of columns) {
    const cell = line.insertCell();
    if (title === "plan") {
      cell.append(document.createElement("canvas"));
    } else {
      cell.textContent = text(row);
    }
    if (title === "found by") cell.className = "text";
    if (title === "gap") cell.className = row.peak === row.bound ? "optimal" : "open";
  }
  line.addEventListener("click", () => select(index));
  line.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      select(index);
    }
  });
}

const sort = (column) => {
  const up = sorted.column === column ? !sorted.up : true;
  sorted = { column, up };
  const key = columns[column][2];
  const before = (a, b) => {
    const [p, q] = [key(rows[a.dataset.index]), key(rows[b.dataset.index])];
    const order = p < q ? -1 : p > q ? 1 : a.dataset.index - b.dataset.index;
    return up ? order : -order;
  };
  body.append(...[...body.children].sort(before));
  for (const [n, cell] of [...head.children].entries()) {
    if (n === column) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
    else cell.removeAttribute("aria-sort");
  }
};

for (const [n, [title]] of columns.entries()) {
  const cell = document.createElement("th");
  cell.scope = "col";
  if (title === "found by") cell.className = "text";
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = title;
  button.addEventListener("click", () => sort(n));
  cell.append(button);
  head.append(cell);
}

large.addEventListener("pointermove", (event) => {
  if (!place) return;
  const { step, byte } = place(event.offsetX, event.offsetY);
  const plan = plans[shown];
  let found = null;
  for (let n = 0; n < plan.length && !found; n += 4) {
    if (plan[n] <= step && step < plan[n + 1] && plan[n + 2] <= byte && byte < plan[n + 3]) found = plan.slice(n, n + 4);
  }
  said.textContent = found
    ? `${number(found[3] - found[2])} B at ${number(found[2])}, steps ${number(found[0])} to ${number(found[1])}`
    : `free: step ${number(Math.floor(step))}, byte ${number(Math.floor(byte))}`;
});
window.addEventListener("resize", () => select(shown));
if (rows.length > 0) {
  select(0);
  for (const line of body.children) draw(line.querySelector("canvas"), Number(line.dataset.index));
}
