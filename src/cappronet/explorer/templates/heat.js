"use strict";
// Heat maps over pairs of classes: a table of buttons for few classes, a canvas for many.

const MOST_TABLE_CLASSES = 30; // a larger table is not readable
const MOST_BINS = 250; // rows of the canvas; with more classes, several share one

// A map gives for classes (k, l): `share`, the strength from 0 to 1, or NaN for no cell; `tone`, the colour; `text` in
// the cell; `words` as its description; `pick`, what a click does. It also has a `label` and names of `rows` and `columns`.
function heatMap(host, map) {
  host.replaceChildren(L <= MOST_TABLE_CLASSES ? heatTable(map) : heatCanvas(map));
}

function heatTable(map) {
  const { rows, columns, label } = map;
  const short = meta.classes.every((name) => name.length <= 3);
  const sides = rows ? [`${rows} ↓`, `${columns} →`] : [];
  const corner = make("td", { class: "corner" }, ...sides.map((side) => make("span", {}, side)));
  const head = make("tr", {}, corner,
    ...meta.classes.map((name) => make("th", { scope: "col", title: name }, make("span", {}, name))));
  const body = meta.classes.map((name, k) =>
    make("tr", {}, make("th", { scope: "row", title: name }, make("span", {}, name)),
      ...meta.classes.map((_, l) => heatCell(map, k, l))));
  const table = make("table", { class: `heat${short ? " short" : ""}`, "aria-label": label },
    make("thead", {}, head), make("tbody", {}, ...body));
  table.style.setProperty("--cells", L);
  table.style.setProperty("--label", `${0.42 * Math.max(...meta.classes.map((name) => name.length))}rem`); // about the longest
  roveCells(table);
  return make("div", { class: "heat-host" }, table);
}

function heatCell(map, k, l) {
  const share = map.share(k, l);
  if (Number.isNaN(share)) return make("td");
  const words = map.words(k, l);
  const button = make("button", { type: "button", tabindex: "-1", "data-row": k, "data-column": l, "aria-label": words,
    title: words, class: share > 0.9 ? "strongest" : share > 0.62 ? "strong" : "", onclick: () => map.pick(k, l) },
    map.text(k, l));
  button.style.setProperty("background-color",
    `color-mix(in srgb, var(--${map.tone(k, l)}) ${Math.round(100 * Math.min(1, share))}%, transparent)`);
  return make("td", {}, button);
}

// The whole table is one tab stop; arrow keys move between cells.
function roveCells(table) {
  const cells = [...table.querySelectorAll("button")];
  const at = (k, l) => cells.find((cell) => Number(cell.dataset.row) === k && Number(cell.dataset.column) === l);
  if (cells.length) cells[0].tabIndex = 0;
  table.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const from = event.target.closest("button");
    if (!step || !from) return;
    event.preventDefault();
    let [k, l] = [Number(from.dataset.row), Number(from.dataset.column)];
    do {
      k += step[0];
      l += step[1];
    } while (k >= 0 && l >= 0 && k < L && l < L && !at(k, l));
    const next = at(k, l);
    if (!next) return;
    from.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

// Several classes may share a bin, which then shows and selects the strongest pair in it.
function heatCanvas(map) {
  const bins = Math.min(L, MOST_BINS);
  const binOf = (k) => Math.floor((k * bins) / L);
  const strongest = new Float32Array(bins * bins); // the largest share in each bin
  const pairs = new Uint32Array(bins * bins); // and its pair
  for (let k = 0; k < L; k++) {
    for (let l = 0; l < L; l++) {
      const bin = binOf(k) * bins + binOf(l);
      const share = map.share(k, l);
      if (share > strongest[bin]) [strongest[bin], pairs[bin]] = [share, k * L + l];
    }
  }
  const canvas = make("canvas", { class: "heat-canvas", role: "img",
    "aria-label": `${map.label}; the strongest pairs are also in the list` });
  const words = make("p", { class: "small muted heat-words" }, "Hover over a dot to read it.");
  const under = (event) => {
    const x = Math.floor((event.offsetX / canvas.clientWidth) * bins);
    const y = Math.floor((event.offsetY / canvas.clientHeight) * bins);
    for (const [dx, dy] of [[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]]) {
      const bin = (y + dy) * bins + x + dx;
      if (x + dx >= 0 && x + dx < bins && strongest[bin] > 0) return [Math.floor(pairs[bin] / L), pairs[bin] % L];
    }
    return null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const pair = under(event);
    if (pair) words.textContent = map.words(...pair);
  });
  canvas.addEventListener("click", (event) => {
    const pair = under(event);
    if (pair) map.pick(...pair);
  });
  sharp(canvas, (pen, width, height) => {
    pen.clearRect(0, 0, width, height);
    const tones = { own: colour("own"), other: colour("other") };
    for (let bin = 0; bin < bins * bins; bin++) {
      if (!strongest[bin]) continue;
      pen.fillStyle = tones[map.tone(Math.floor(pairs[bin] / L), pairs[bin] % L)];
      pen.globalAlpha = Math.min(1, 0.05 + 0.95 * strongest[bin]);
      const [x, y] = [bin % bins, Math.floor(bin / bins)];
      pen.fillRect((x * width) / bins, (y * height) / bins, width / bins + 0.5, height / bins + 0.5);
    }
  })();
  return make("div", {}, canvas, words);
}
