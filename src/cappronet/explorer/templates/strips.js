"use strict";
// Length and orientation: the histogram, the images around the plane, and those along one orientation.

const MOST_IN_STRIP = 240;

function startStrips() {
  const slider = byId("orientation");
  Object.assign(slider, C === 1 ? { min: 0, max: 180, step: 180 } : { min: -180, max: 180, step: 5 });
  for (const spread of [5, 10, 15, 30, 45]) byId("spread").append(make("option", { value: spread }, `± ${spread}°`));
  byId("spread").value = state.spread;
  byId("spread").parentElement.hidden = C === 1;
  slider.addEventListener("input", () => setOrientation(Number(slider.value)));
  byId("spread").addEventListener("change", (event) => {
    state.spread = Number(event.target.value);
    changed("orientation");
  });
  const redraw = sharp(byId("histogram"), drawHistogram);
  on("plane", () => {
    redraw();
    showAround();
    showAlong();
  });
  on("orientation", showAlong);
  on("pin", redraw);
}

function setOrientation(angle) {
  state.orientation = angle;
  changed("orientation");
}

// At most this many items of a list, evenly spaced.
function evenly(items, most) {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, k) => items[Math.round((k * (items.length - 1)) / (most - 1))]);
}

function showAround() {
  const own = plane.order.filter((position) => plane.group[position] === 0);
  const items = evenly(own, MOST_IN_STRIP).map((position) => ({
    image: plane.images[position],
    caption: C === 1 ? number(plane.x[position]) : degrees(angleOf(position)),
  }));
  const part = items.length < own.length ? ` Showing ${whole(items.length)} of ${whole(own.length)}, evenly spaced.` : "";
  const [way, order] = C === 1 ? ["from one end of the line to the other", "sorted by coordinate"]
    : ["around the plane", "sorted by angle in the plane above, counter-clockwise from −180°"];
  byId("around-title").textContent = `Orientation: ${way}`;
  byId("around-note").textContent =
    `${capitalized(NOUN)}s of ${className(state.label)}, ${order}: the changes along the strip show what orientation encodes.${part}`;
  if (C === 1) items.sort((a, b) => plane.x[positionOf(a.image, state.label)] - plane.x[positionOf(b.image, state.label)]);
  fillImages(byId("around"), items);
}

function showAlong() {
  const slider = byId("orientation");
  slider.value = state.orientation;
  const sign = state.orientation === 0 ? "positive" : "negative";
  byId("orientation-value").textContent = C === 1 ? sign : degrees(state.orientation);
  const spread = C === 1 ? 90 : state.spread;
  const near = plane.order.filter((position) => apart(angleOf(position), state.orientation) <= spread);
  near.sort((a, b) => plane.lengths[b] - plane.lengths[a]);
  const items = evenly(near, MOST_IN_STRIP / 2).map((position) => ({
    image: plane.images[position], caption: number(plane.lengths[position]), group: plane.group[position],
  }));
  byId("along-note").textContent =
    `${counted(near.length)} of all classes with this orientation, from the longest capsule to the shortest: ` +
    `the changes along the strip show what length encodes. Marks show the class of each ${NOUN}, as in the plane.`;
  fillImages(byId("along"), items);
}

function drawHistogram(pen, width, height) {
  const own = [];
  const other = [];
  for (let i = 0; i < N; i++) (arrays.labels[i] === state.label ? own : other).push(lengthOf(i, state.label));
  const most = Math.max(...own, ...other.length ? [other.reduce((a, b) => Math.max(a, b), 0)] : [], 1e-9);
  const bins = Math.max(12, Math.min(48, Math.floor(width / 16)));
  const count = (values) => {
    const shares = new Float64Array(bins);
    for (const value of values) shares[Math.min(bins - 1, Math.floor((value / most) * bins))] += 1 / values.length;
    return shares;
  };
  const [ownShares, otherShares] = [count(own), count(other)];
  const high = Math.max(...ownShares, ...otherShares);
  const [left, right, top, bottom] = [38, 10, 22, 24];
  const x = (value) => left + (value / most) * (width - left - right);
  const y = (share) => height - bottom - (share / high) * (height - top - bottom);
  pen.clearRect(0, 0, width, height);
  pen.fillStyle = colour("muted");
  pen.strokeStyle = colour("grid");
  pen.textAlign = "right";
  for (const mark of ticks(0, 100 * high, 3)) {
    pen.beginPath();
    pen.moveTo(left, y(mark / 100));
    pen.lineTo(width - right, y(mark / 100));
    pen.stroke();
    pen.fillText(`${mark} %`, left - 5, y(mark / 100) + 4);
  }
  pen.textAlign = "center";
  for (const mark of ticks(0, most, Math.max(3, width / 90))) pen.fillText(String(mark), x(mark), height - 7);
  pen.fillStyle = colour("own");
  pen.globalAlpha = 0.75;
  const bar = (width - left - right) / bins;
  ownShares.forEach((share, k) => pen.fillRect(left + k * bar + 1, y(share), bar - 2, height - bottom - y(share)));
  pen.globalAlpha = 1;
  pen.strokeStyle = colour("text");
  pen.lineWidth = 1.6;
  pen.beginPath();
  otherShares.forEach((share, k) => {
    pen.lineTo(x((k * most) / bins), y(share));
    pen.lineTo(x(((k + 1) * most) / bins), y(share));
  });
  if (other.length) pen.stroke();
  if (state.pinned !== null) markPinned(pen, x(lengthOf(state.pinned, state.label)), top, height - bottom);
  const medians = [median(own), median(other)];
  byId("histogram-note").textContent = `Bars: ${counted(own.length)} of the class, median ${number(medians[0])}. ` +
    `Line: ${counted(other.length)} of other classes, median ${number(medians[1])}. Each as a share of its group.`;
  byId("histogram").setAttribute("aria-label", byId("histogram-note").textContent);
}

function markPinned(pen, x, top, bottom) {
  pen.strokeStyle = colour("text");
  pen.setLineDash([3, 3]);
  pen.beginPath();
  pen.moveTo(x, top);
  pen.lineTo(x, bottom);
  pen.stroke();
  pen.setLineDash([]);
  pen.fillStyle = colour("text");
  pen.textAlign = x > 80 ? "right" : "left";
  pen.fillText("pinned", x + (x > 80 ? -4 : 4), top + 8);
}
