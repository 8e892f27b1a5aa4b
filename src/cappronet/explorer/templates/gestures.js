"use strict";
// Pointer, wheel and keyboard input on the plane.

// The position of the visible image nearest to a point of the canvas, within reach, or -1.
function nearestPosition(x, y, reach = 12) {
  let [best, nearest] = [-1, reach];
  for (let j = 0; j < plane.images.length; j++) {
    if (!plane.visible[plane.group[j]]) continue;
    const [px, py] = locate(j);
    if (py > plane.height) continue; // below the plane are the numbers of the rings
    const distance = Math.hypot(px - x, py - y) + 0.01 * plane.group[j]; // of overlapping marks, the one on top
    if (distance < nearest) [best, nearest] = [j, distance];
  }
  return best;
}

// The card is in the corner of the plane in which it covers the fewest marks, away from the mark itself.
function showPositionCard(position) {
  showCard(plane.images[position], byId("plane"), (width, height) => {
    const canvas = byId("plane").getBoundingClientRect();
    const low = { x: 10, y: Math.max(10, byId("class").parentElement.getBoundingClientRect().bottom + 8 - canvas.top) };
    const high = { x: plane.width - 10 - width, y: Math.min(plane.height - 10, innerHeight - 8 - canvas.top) - height };
    const corners = [[high.x, low.y], [high.x, high.y], [low.x, low.y], [low.x, high.y]];
    const over = (left, top, [x, y], margin) =>
      x > left - margin && x < left + width + margin && y > top - margin && y < top + height + margin;
    const cost = ([left, top]) => {
      let marks = over(left, top, locate(position), 16) ? 1e9 : 0;
      for (let j = 0; j < plane.images.length; j++) {
        if (plane.visible[plane.group[j]] && over(left, top, locate(j), 4)) marks += 1;
      }
      return marks;
    };
    const costs = corners.map(cost);
    const [left, top] = corners[costs.indexOf(Math.min(...costs))];
    return [canvas.left + left, canvas.top + top];
  });
}

const pointIn = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

function hoverPoint(canvas, x, y) {
  const position = nearestPosition(x, y);
  hover(position < 0 ? null : plane.images[position]);
  if (position < 0) hideCard();
  else showPositionCard(position);
  canvas.style.cursor = position < 0 ? "grab" : "pointer";
}

function startGestures() {
  const canvas = byId("plane");
  startPointers(canvas);
  // Scrolling the page must not get stuck on the plane: the wheel alone zooms only while the plane has the focus.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoomPlane(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0015)), ...pointIn(canvas, event));
  }, { passive: false });
  canvas.addEventListener("keydown", onPlaneKey);
  canvas.addEventListener("blur", endHover);
  byId("zoom-in").addEventListener("click", () => zoomPlane(1.4));
  byId("zoom-out").addEventListener("click", () => zoomPlane(1 / 1.4));
  byId("zoom-fit").addEventListener("click", () => { fitPlane(); plane.redraw(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    endHover();
    if (state.pinned !== null) pin(null);
  });
}

// One pointer hovers, pans or clicks; two of them zoom.
function startPointers(canvas) {
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, pointIn(canvas, event));
    if (pointers.size === 1) moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = pointIn(canvas, event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") hoverPoint(canvas, x, y);
      return;
    }
    const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, location]) => location);
    if (others.length) {
      const [ox, oy] = others[0];
      zoomPlane(Math.hypot(x - ox, y - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy)), ox, oy);
      moved = Infinity;
    } else {
      moved += Math.hypot(x - before[0], y - before[1]);
      if (moved > 4) {
        endHover();
        panPlane(x - before[0], y - before[1]);
      }
    }
    pointers.set(event.pointerId, [x, y]);
  });
  canvas.addEventListener("pointerup", (event) => {
    pointers.delete(event.pointerId);
    if (moved <= 4) clickPlane(...pointIn(canvas, event));
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => {
    if (!pointers.size) endHover();
  });
}

// A click on an image pins it; a click on an empty spot selects that orientation.
function clickPlane(x, y) {
  const position = nearestPosition(x, y, 14);
  if (position >= 0) {
    pin(plane.images[position]);
    hideCard();
    return;
  }
  const [x0, y0] = toScreen(0, 0);
  if (C === 1) setOrientation(x < x0 ? 180 : 0);
  else setOrientation((Math.atan2(y0 - y, x - x0) * 180) / Math.PI);
}

function onPlaneKey(event) {
  const key = event.key;
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (arrows[key] && event.shiftKey) panPlane(-60 * arrows[key][0], -60 * arrows[key][1]);
  else if (arrows[key]) stepImage({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: 10, ArrowDown: -10 }[key]);
  else if (key === "+" || key === "=") zoomPlane(1.4);
  else if (key === "-") zoomPlane(1 / 1.4);
  else if (key === "0") {
    fitPlane();
    plane.redraw();
  } else if (key === "Enter" || key === " ") {
    if (state.hovered === null) return;
    pin(state.hovered);
    hideCard();
  } else return;
  event.preventDefault();
}

// Steps counter-clockwise from the hovered or pinned image, and pans if the next one is outside the view.
function stepImage(step) {
  const order = plane.order.filter((position) => plane.visible[plane.group[position]]);
  if (!order.length) return;
  const current = state.hovered ?? state.pinned;
  const rank = current === null ? -1 : order.findIndex((position) => plane.images[position] === current);
  const next = order[rank < 0 ? 0 : (rank + step + order.length * 10) % order.length];
  const [x, y] = locate(next);
  if (x < 0 || y < 0 || x > plane.width || y > plane.height) panPlane(plane.width / 2 - x, plane.height / 2 - y);
  hover(plane.images[next]);
  showPositionCard(next);
}
