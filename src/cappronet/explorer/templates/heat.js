"use strict";
// Heat maps over pairs of classes: a table of buttons while there are few, one canvas where there are many.

const MOST_CELLS = 30; // classes a table is readable with
const MOST_BINS = 250; // rows of the canvas, beyond which several classes share one

// A map says of classes (k, l): `share`, how strong from 0 to 1, or NaN for no cell; `tone`, which colour; `text` for
// the cell; `words` for the reader; `pick`, what a click does. Besides its `label`, and what are `rows` and `columns`.
function heatMap(host, map) {
  host.replaceChildren(L <= MOST_CELLS ? heatTable(map) : heatCanvas(map));
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

// One stop of the Tab key for the whole table; arrows go from cell to cell.
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

// Several classes may share a bin: it shows, and a click takes, the strongest pair in it.
function heatCanvas(map) {
  const bins = Math.min(L, MOST_BINS);
  const binOf = (k) => Math.floor((k * bins) / L);
  const strongest = new Float32Array(bins * bins); // of each bin,
  const pairs = new Uint32Array(bins * bins); // and which pair it is
  for (let k = 0; k < L; k++) {
    for (let l = 0; l < L; l++) {
      const bin = binOf(k) * bins + binOf(l);
      const share = map.share(k, l);
      if (share > strongest[bin]) [strongest[bin], pairs[bin]] = [share, k * L + l];
    }
  }
  const canvas = make("canvas", { class: "heat-canvas", role: "img",
    "aria-label": `${map.label}; the list beside it has the strongest pairs` });
  const words = make("p", { class: "small muted heat-words" }, "Point at a dot to read it.");
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
    const found = under(event);
    if (found) words.textContent = map.words(...found);
  });
  canvas.addEventListener("click", (event) => {
    const found = under(event);
    if (found) map.pick(...found);
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
