"use strict";
// Drawing the plane: rings, the selected orientation, marks, the circle of equal length.

const RULER = 22; // pixels below the plane

// The radius of the dashed circle: the length of the hovered or pinned image, or the median of the class's own images.
function circleLength() {
  const image = state.hovered ?? state.pinned;
  const position = image === null ? -1 : positionOf(image, state.label);
  if (position >= 0) return { length: plane.lengths[position], words: `length of ${shortened(nameOf(image), 40)}` };
  return { length: medianLengths[state.label], words: "median length of the class" };
}

function drawPlane(pen, width, height) {
  const resized = plane.width !== width || plane.height !== height - RULER;
  [plane.width, plane.height] = [width, height - RULER];
  plane.lane = plane.height * 0.4;
  if (resized && plane.fitted !== false) fitPlane();
  pen.clearRect(0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, plane.width, plane.height);
  pen.clip();
  const rings = drawGrid(pen);
  drawSector(pen);
  const size = plane.images.length > 4000 ? 2.2 : plane.images.length > 800 ? 3.4 : 4.2;
  for (const group of [2, 1, 0]) {
    if (!plane.visible[group]) continue;
    pen.fillStyle = pen.strokeStyle = colour(GROUPS[group]);
    pen.lineWidth = 1.2;
    for (let j = 0; j < plane.images.length; j++) {
      if (plane.group[j] === group) drawMark(pen, j, group === 2 ? size * 0.72 : size, group === 2 ? 0.5 : 0.85);
    }
  }
  pen.globalAlpha = 1;
  drawCircle(pen);
  for (const [image, ring] of [[state.pinned, 10], [state.hovered, 8]]) {
    const position = image === null ? -1 : positionOf(image, state.label);
    if (position >= 0) drawFocus(pen, position, size * 1.5, ring);
  }
  pen.restore();
  drawRuler(pen, rings);
  showPlaneKey();
}

function markPath(pen, x, y, size, group) {
  pen.beginPath();
  if (group === 0) pen.arc(x, y, size, 0, 2 * Math.PI);
  else if (group === 1) {
    pen.moveTo(x, y - size * 1.25);
    pen.lineTo(x + size * 1.15, y + size * 0.85);
    pen.lineTo(x - size * 1.15, y + size * 0.85);
    pen.closePath();
  } else pen.rect(x - size, y - size, 2 * size, 2 * size);
}

function drawMark(pen, position, size, alpha) {
  const [x, y] = locate(position);
  if (x < -9 || y < -9 || x > plane.width + 9 || y > plane.height + 9) return;
  markPath(pen, x, y, size, plane.group[position]);
  pen.globalAlpha = alpha;
  if (isWrong(plane.images[position])) pen.stroke();
  else pen.fill();
}

function drawFocus(pen, position, size, ring) {
  const [x, y] = locate(position);
  markPath(pen, x, y, size, plane.group[position]);
  pen.fillStyle = colour(GROUPS[plane.group[position]]);
  pen.fill();
  pen.beginPath();
  pen.arc(x, y, ring, 0, 2 * Math.PI);
  pen.strokeStyle = colour("text");
  pen.lineWidth = 2;
  pen.stroke();
}

function drawGrid(pen) {
  const { width, height, view } = plane;
  const [x0, y0] = toScreen(0, 0);
  const farthest = Math.hypot(Math.max(Math.abs(x0), Math.abs(width - x0)), Math.max(Math.abs(y0), Math.abs(height - y0)));
  const rings = ticks(0, farthest / view.scale, Math.max(3, Math.round(farthest / 70))).slice(1);
  pen.strokeStyle = colour("grid");
  pen.lineWidth = 1;
  for (const radius of rings) {
    pen.beginPath();
    if (C > 1) pen.arc(x0, y0, radius * view.scale, 0, 2 * Math.PI);
    else for (const sign of [-1, 1]) {
      pen.moveTo(x0 + sign * radius * view.scale, 0);
      pen.lineTo(x0 + sign * radius * view.scale, height);
    }
    pen.stroke();
  }
  pen.strokeStyle = colour("axis");
  pen.beginPath();
  pen.moveTo(x0, 0);
  pen.lineTo(x0, height);
  if (C > 1) {
    pen.moveTo(0, y0);
    pen.lineTo(width, y0);
  }
  pen.stroke();
  return rings;
}

// The lengths of the rings, below the plane, where they cover no marks.
function drawRuler(pen, rings) {
  const [x0] = toScreen(0, 0);
  pen.strokeStyle = colour("line");
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(0, plane.height + 0.5);
  pen.lineTo(plane.width, plane.height + 0.5);
  pen.stroke();
  pen.fillStyle = colour("muted");
  pen.textAlign = "center";
  for (const radius of rings) {
    for (const sign of C > 1 ? [x0 > plane.width / 2 ? -1 : 1] : [-1, 1]) { // of a ring, where there is more room
      const words = `${C === 1 && sign < 0 ? "−" : ""}${radius}`;
      const [x, half] = [x0 + sign * radius * plane.view.scale, pen.measureText(words).width / 2];
      if (x - half >= 2 && x + half <= plane.width - 2) pen.fillText(words, x, plane.height + 15);
    }
  }
}

// The names of the axes and of the dashed circle, as text below the plane.
function showPlaneKey() {
  const { length, words } = circleLength();
  byId("plane-circle").hidden = !Number.isFinite(length);
  byId("plane-circle").textContent = `|v| = ${number(length)}, ${words}`;
  byId("plane-axes").textContent = C > 1 ? `→ ${axisName(0)}, ↑ ${axisName(1)}` : `→ ${axisName(0)}`;
}

function axisName(axis) {
  const k = plane.axes[axis];
  if (C === 1) return "coordinate";
  if (plane.kind !== "principal") return `coordinate ${k + 1}`;
  return `direction ${k + 1} (${percent(arrays.shares[state.label * meta.directions + k], 0)})`;
}

function drawSector(pen) {
  const [x0, y0] = toScreen(0, 0);
  const [from, to] = [-state.spread, state.spread].map((more) => (-(state.orientation + more) * Math.PI) / 180);
  pen.fillStyle = colour("sector");
  pen.beginPath();
  if (C > 1) {
    pen.moveTo(x0, y0);
    pen.arc(x0, y0, 4 * Math.max(plane.width, plane.height), to, from);
    pen.closePath();
  } else if (state.orientation === 0) pen.rect(x0, 0, plane.width - x0, plane.height);
  else pen.rect(0, 0, x0, plane.height);
  pen.fill();
}

function drawCircle(pen) {
  const { length } = circleLength();
  if (!Number.isFinite(length)) return;
  const [x0, y0] = toScreen(0, 0);
  const radius = length * plane.view.scale;
  pen.strokeStyle = colour("text");
  pen.lineWidth = 1.4;
  pen.setLineDash([6, 4]);
  pen.beginPath();
  if (C > 1) pen.arc(x0, y0, radius, 0, 2 * Math.PI);
  else for (const x of [x0 - radius, x0 + radius]) {
    pen.moveTo(x, 0);
    pen.lineTo(x, plane.height);
  }
  pen.stroke();
  pen.setLineDash([]);
}
