// Numbers for people, and elements.

const whole = new Intl.NumberFormat('en');

/** A number with separators. */
const count = number => whole.format(Math.round(number));

/** So many of something. */
const some = (number, what) => `${count(number)} ${what}${number === 1 ? '' : 's'}`;

/** Bytes in the unit that fits. */
function bytes(number) {
  if (number < 1024) return `${count(number)} B`;
  let unit = -1;
  do { number /= 1024; unit++; } while (number >= 1024 && unit < 5);
  return `${number.toFixed(number < 10 ? 2 : number < 100 ? 1 : 0)} ${['Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'][unit]}B`;
}

/** The same without zeros at the end, for axes. */
const briefly = number => bytes(number).replace(/(\.\d*?)0+ /, '$1 ').replace('. ', ' ');

/** Bytes in the unit that fits, and exactly. */
const exactly = number => number < 1024 ? bytes(number) : `${bytes(number)} (${count(number)} B)`;

/** Permille as percent. */
const percent = permille => `${(permille / 10).toFixed(1)} %`;

/** An address in the arena. */
const address = at => `0x${Math.round(at).toString(16)}`;

/** Ticks from `low` to `high`, about `wanted` of them, at round numbers; with `binary` at powers of two. */
function ticks(low, high, wanted, binary) {
  const rough = (high - low) / Math.max(wanted, 1);
  if (!(rough > 0)) return [low];
  let step;
  if (binary) {
    step = 2 ** Math.ceil(Math.log2(rough));
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = power * [1, 2, 5, 10].find(n => n * power >= rough);
  }
  step = Math.max(step, binary || high - low > wanted ? 1 : step);
  const all = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) all.push(tick);
  return all;
}

/** An element with text. Text from the trace becomes text, whatever it looks like. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'class') element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const colours = new Map();

/** A colour of the theme. */
function colour(name) {
  const known = colours.get(name);
  if (known) return known;
  const found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  colours.set(name, found);
  return found;
}
