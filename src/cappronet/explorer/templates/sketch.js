"use strict";
// How the plane is drawn: rings, the chosen orientation, marks, the circle of equal length.

// The length that the emphasized circle has: that of the image in view, or the middle one of the own images.
function circleLength() {
  const image = state.hovered ?? state.pinned;
  const place = image === null ? -1 : placeOf(image, state.label);
  if (place >= 0) return { length: plane.lengths[place], words: `length of image ${arrays.index[image]}` };
  return { length: medianLengths[state.label], words: "median length of the own" };
}

function drawPlane(pen, width, height) {
  const resized = plane.width !== width || plane.height !== height;
  [plane.width, plane.height] = [width, height];
  plane.lane = height * 0.4;
  if (resized && plane.fitted !== false) fitPlane();
  pen.clearRect(0, 0, width, height);
  drawGrid(pen);
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
  drawAxisNames(pen);
  drawCircle(pen);
  for (const [image, ring] of [[state.pinned, 10], [state.hovered, 8]]) {
    const place = image === null ? -1 : placeOf(image, state.label);
    if (place >= 0) drawFocus(pen, place, size * 1.5, ring);
  }
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

function drawMark(pen, place, size, alpha) {
  const [x, y] = locate(place);
  if (x < -9 || y < -9 || x > plane.width + 9 || y > plane.height + 9) return;
  markPath(pen, x, y, size, plane.group[place]);
  pen.globalAlpha = alpha;
  if (isWrong(plane.images[place])) pen.stroke();
  else pen.fill();
}

function drawFocus(pen, place, size, ring) {
  const [x, y] = locate(place);
  markPath(pen, x, y, size, plane.group[place]);
  pen.fillStyle = colour(GROUPS[plane.group[place]]);
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
  pen.fillStyle = colour("muted");
  pen.lineWidth = 1;
  pen.textAlign = "center";
  for (const radius of rings) {
    pen.beginPath();
    if (C > 1) pen.arc(x0, y0, radius * view.scale, 0, 2 * Math.PI);
    else for (const sign of [-1, 1]) {
      pen.moveTo(x0 + sign * radius * view.scale, 0);
      pen.lineTo(x0 + sign * radius * view.scale, height);
    }
    pen.stroke();
    for (const sign of C > 1 ? [1] : [-1, 1]) {
      pen.fillText(`${sign < 0 ? "−" : ""}${radius}`, x0 + sign * radius * view.scale, height - 6);
    }
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
}

function drawAxisNames(pen) {
  const [x0, y0] = toScreen(0, 0);
  const wide = pen.measureText(axisName(0)).width;
  const height = C > 1 ? Math.min(Math.max(y0 - 8, 18), plane.height - 26) : 18;
  plate(pen, axisName(0), plane.width - wide - 12, height, "muted");
  if (C > 1) plate(pen, axisName(1), Math.min(Math.max(x0 + 8, 12), plane.width - 130), 18, "muted");
}

// Words on a ground of their own, readable over the marks.
function plate(pen, text, x, y, tone) {
  pen.textAlign = "left";
  pen.globalAlpha = 0.85;
  pen.fillStyle = colour("surface");
  pen.fillRect(x - 5, y - 13, pen.measureText(text).width + 10, 18);
  pen.globalAlpha = 1;
  pen.fillStyle = colour(tone);
  pen.fillText(text, x, y);
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
  const { length, words } = circleLength();
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
  plate(pen, `|v| = ${number(length)}, ${words}`, 14, plane.height - 28, "text");
}
