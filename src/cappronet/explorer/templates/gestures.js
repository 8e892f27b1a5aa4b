"use strict";
// Pointer, wheel and keys on the plane.

// The visible image nearest to a point of the canvas, within reach; -1 where there is none.
function nearestPlace(x, y, reach = 12) {
  let [best, nearest] = [-1, reach];
  for (let j = 0; j < plane.images.length; j++) {
    if (!plane.visible[plane.group[j]]) continue;
    const [px, py] = locate(j);
    const distance = Math.hypot(px - x, py - y) + 0.01 * plane.group[j]; // marks on top win
    if (distance < nearest) [best, nearest] = [j, distance];
  }
  return best;
}

function showPlaceCard(place) {
  const box = byId("plane").getBoundingClientRect();
  const [x, y] = locate(place);
  showCard(plane.images[place], box.left + x, box.top + y);
}

function startGestures() {
  const canvas = byId("plane");
  const pointers = new Map();
  let moved = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const point = (x, y) => {
    const place = nearestPlace(x, y);
    hover(place < 0 ? null : plane.images[place]);
    if (place < 0) hideCard();
    else showPlaceCard(place);
    canvas.style.cursor = place < 0 ? "grab" : "pointer";
  };

  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, at(event));
    if (pointers.size === 1) moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") point(x, y);
      return;
    }
    const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    if (others.length) {
      const [ox, oy] = others[0];
      zoomPlane(Math.hypot(x - ox, y - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy)), ox, oy);
      moved = Infinity;
    } else {
      moved += Math.hypot(x - before[0], y - before[1]);
      if (moved > 4) {
        hideCard();
        hover(null);
        panPlane(x - before[0], y - before[1]);
      }
    }
    pointers.set(event.pointerId, [x, y]);
  });
  canvas.addEventListener("pointerup", (event) => {
    pointers.delete(event.pointerId);
    if (moved <= 4) clickPlane(...at(event));
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => {
    if (pointers.size) return;
    hover(null);
    hideCard();
  });
  // A page that scrolls must not get stuck on the plane: the wheel alone zooms only once the plane has the focus.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoomPlane(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0015)), ...at(event));
  }, { passive: false });
  canvas.addEventListener("keydown", onPlaneKey);
  canvas.addEventListener("blur", () => { hover(null); hideCard(); });
  byId("zoom-in").addEventListener("click", () => zoomPlane(1.4));
  byId("zoom-out").addEventListener("click", () => zoomPlane(1 / 1.4));
  byId("zoom-fit").addEventListener("click", () => { fitPlane(); plane.redraw(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideCard();
    hover(null);
    if (state.pinned !== null) pin(null);
  });
}

// On an image: pin it. Beside all of them: choose that orientation.
function clickPlane(x, y) {
  const place = nearestPlace(x, y, 14);
  if (place >= 0) {
    pin(plane.images[place]);
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
  } else return;
  event.preventDefault();
}

// The next image counter-clockwise, starting from the one in view; a view that has lost it moves along.
function stepImage(step) {
  const order = plane.order.filter((place) => plane.visible[plane.group[place]]);
  if (!order.length) return;
  const current = state.hovered ?? state.pinned;
  const position = current === null ? -1 : order.findIndex((place) => plane.images[place] === current);
  const next = position < 0 ? 0 : (position + step + order.length * 10) % order.length;
  const place = order[next];
  const [x, y] = locate(place);
  if (x < 0 || y < 0 || x > plane.width || y > plane.height) panPlane(plane.width / 2 - x, plane.height / 2 - y);
  hover(plane.images[place]);
  showPlaceCard(place);
}
