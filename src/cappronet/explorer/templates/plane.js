"use strict";
// The capsule plane of the selected class: its images, axes, view and controls.

const GROUPS = ["own", "other", "rest"];
const plane = {
  kind: "principal", axes: [0, 1], visible: [true, true, true],
  partner: null, images: everyImage, x: [], y: [], group: [], lengths: [], // one entry for each image
  order: [], share: NaN, view: { scale: 1, x: 0, y: 0 }, width: 0, height: 0, redraw: () => {},
};

const groupOf = (image) => {
  const at = [state.label, plane.partner.label].indexOf(arrays.labels[image]);
  return at < 0 ? 2 : at;
};

// The unit vector of axis k: a principal direction of the class's own capsules, or a coordinate axis.
function axisVector(k) {
  if (plane.kind === "principal") {
    const start = (state.label * meta.directions + k) * C;
    return arrays.directions.subarray(start, start + C);
  }
  return Float32Array.from({ length: C }, (_, j) => (j === k ? 1 : 0));
}

// A fixed pseudorandom number between 0 and 1 for each image, to spread the images of a line vertically.
const scatter = (image) => ((image * 2654435761) % 4294967296) / 4294967296;

function projectPlane() {
  const members = membersOf(state.label);
  const y = coordinatesOf(state.label);
  const unit = arrays.coordinateScale[state.label];
  const vectors = plane.axes.slice(0, Math.min(2, C)).map(axisVector);
  const at = [new Float32Array(members.length), new Float32Array(members.length)];
  let [shownSquared, allSquared] = [0, 0];
  for (let j = 0; j < members.length; j++) {
    let squared = 0;
    for (let k = 0; k < C; k++) squared += y[j * C + k] ** 2;
    vectors.forEach((vector, axis) => {
      let value = 0;
      for (let k = 0; k < C; k++) value += y[j * C + k] * vector[k];
      at[axis][j] = value * unit;
      if (arrays.labels[members[j]] === state.label) shownSquared += value * value;
    });
    if (arrays.labels[members[j]] === state.label) allSquared += squared;
  }
  plane.images = members;
  [plane.x, plane.y] = at;
  plane.share = allSquared > 0 ? shownSquared / allSquared : NaN;
  plane.group = Uint8Array.from(members, groupOf);
  plane.lengths = Float32Array.from(members, (image) => lengthOf(image, state.label));
  const angles = Float32Array.from(members, (_, j) => angleOf(j));
  plane.order = Array.from(members, (_, j) => j).sort((a, b) => angles[a] - angles[b] || plane.x[a] - plane.x[b]);
}

// The orientation of a capsule in the plane, from -180 to 180 degrees; on a line 0 or 180.
const angleOf = (position) => (Math.atan2(C > 1 ? plane.y[position] : 0, plane.x[position]) * 180) / Math.PI;
const apart = (a, b) => Math.abs(((a - b + 540) % 360) - 180);

// On a line, each group of images has its own lane; the height has no other meaning.
function heightOf(position) {
  if (C > 1) return plane.y[position];
  return ((1 - plane.group[position]) * 0.62 + (scatter(plane.images[position]) - 0.5) * 0.46) * plane.lane;
}

function toScreen(x, y) {
  const { view, width, height } = plane;
  return [width / 2 + (x - view.x) * view.scale, height / 2 - (y - view.y) * view.scale];
}

function locate(position) {
  if (C > 1) return toScreen(plane.x[position], plane.y[position]);
  return [toScreen(plane.x[position], 0)[0], plane.height / 2 - heightOf(position)];
}

function fitPlane() {
  const reach = { x: 1e-9, y: 1e-9 };
  const low = { x: 0, y: 0 };
  const high = { x: 0, y: 0 };
  for (let j = 0; j < plane.images.length; j++) {
    for (const axis of ["x", "y"]) {
      low[axis] = Math.min(low[axis], plane[axis][j]);
      high[axis] = Math.max(high[axis], plane[axis][j]);
    }
  }
  for (const axis of ["x", "y"]) reach[axis] = Math.max(high[axis] - low[axis], 1e-9);
  const [width, height] = [plane.width || 600, plane.height || 450];
  plane.view.scale = 0.86 * (C > 1 ? Math.min(width / reach.x, height / reach.y) : width / reach.x);
  plane.view.x = (low.x + high.x) / 2;
  plane.view.y = C > 1 ? (low.y + high.y) / 2 : 0;
  plane.fitted = true;
}

function zoomPlane(factor, x = plane.width / 2, y = plane.height / 2) {
  const { view } = plane;
  const before = [(x - plane.width / 2) / view.scale + view.x, -(y - plane.height / 2) / view.scale + view.y];
  view.scale *= factor;
  view.x = before[0] - (x - plane.width / 2) / view.scale;
  view.y = C > 1 ? before[1] + (y - plane.height / 2) / view.scale : 0;
  plane.fitted = false;
  plane.redraw();
}

function panPlane(dx, dy) {
  plane.view.x -= dx / plane.view.scale;
  if (C > 1) plane.view.y += dy / plane.view.scale;
  plane.fitted = false;
  plane.redraw();
}

// The controls around the plane and its description.
function startPlane() {
  if (C <= 2) plane.kind = "coordinates";
  byId("axes-controls").hidden = C === 1;
  for (const [kind, words] of [["principal", "principal directions"], ["coordinates", "coordinates"]]) {
    byId("axes-kind").append(make("option", { value: kind }, words));
  }
  byId("axes-kind").value = plane.kind;
  plane.redraw = sharp(byId("plane"), drawPlane);
  byId("plane").classList.toggle("line", C === 1);
  const update = () => {
    projectPlane();
    state.orientation = usualOrientation();
    fitPlane();
    showPlaneWords();
    changed("plane");
    plane.redraw();
  };
  byId("axes-kind").addEventListener("change", (event) => {
    plane.kind = event.target.value;
    plane.axes = [0, 1];
    showAxisChoices();
    update();
  });
  ["axis-x", "axis-y"].forEach((id, axis) => byId(id).addEventListener("change", (event) => {
    const before = plane.axes[axis];
    plane.axes[axis] = Number(event.target.value);
    if (plane.axes[1 - axis] === plane.axes[axis]) plane.axes[1 - axis] = before;
    showAxisChoices();
    update();
  }));
  on("class", () => {
    plane.partner = state.against === null ? partnerOf(state.label) : { label: state.against };
    plane.axes = [0, 1];
    showAxisChoices();
    update();
  });
  for (const name of ["hover", "pin", "orientation"]) on(name, () => plane.redraw());
  GROUPS.forEach((group, k) => {
    const button = make("button", { type: "button", class: "plain key-button", "aria-pressed": "true" },
      make("span", { class: `mark ${group}`, "aria-hidden": "true" }), make("span", { class: "words" }));
    button.addEventListener("click", () => {
      plane.visible[k] = !plane.visible[k];
      button.setAttribute("aria-pressed", String(plane.visible[k]));
      plane.redraw();
    });
    byId("legend").append(button);
  });
}

function showAxisChoices() {
  const count = plane.kind === "principal" ? meta.directions : C;
  ["axis-x", "axis-y"].forEach((id, axis) => {
    const options = Array.from({ length: count }, (_, k) => {
      const share = plane.kind === "principal" ? ` · ${percent(arrays.shares[state.label * meta.directions + k], 0)}` : "";
      return make("option", { value: k }, `${k + 1}${share}`);
    });
    byId(id).replaceChildren(...options);
    byId(id).value = plane.axes[axis];
  });
}

function showPlaneWords() {
  const own = imagesOf[state.label].length;
  const { label, confused } = plane.partner;
  const words = byId("legend").querySelectorAll(".words");
  words[0].textContent = `${className(state.label)} (${whole(own)})`;
  words[1].textContent = `${className(label)} (${whole(imagesOf[label].length)})`;
  words[2].textContent = "other classes";
  byId("planes-title").textContent = `The capsule ${C === 1 ? "line" : "plane"} of ${className(state.label)}`;
  const times = confusionsOf(state.label, label);
  const why = state.against !== null ? "selected for comparison" : confused ? "it is most often confused with" : "closest to it";
  byId("planes-note").textContent =
    `${counted(own)}, ${whole(errorsOf(state.label))} misclassified. ` +
    `${className(label)} is the class ${why}: ${counted(times)} of one predicted as the other. ` +
    `Hollow marks are misclassified ${NOUN}s.`;
  const space = [
    "Each subspace is a line: the coordinate is the signed length. Lanes only separate the groups.",
    "Each subspace is a plane, shown completely.",
    `The plane shows two of ${C} dimensions, which keep ${percent(plane.share)} of the squared length of the class’s own capsules.`,
  ][Math.min(C, 3) - 1];
  const few = SHOWN === N ? "" : `Shown are the ${whole(SHOWN)} most relevant ${NOUN}s: ` +
    "the class’s own, those predicted as it, and the longest others.";
  const none = own ? "" : `This page has no ${NOUN} of this class; the directions are those of all ${NOUN}s.`;
  const circle = `The dashed ${C === 1 ? "lines mark" : "circle marks"} equal length.`;
  byId("plane-share").textContent = [space, few, none, circle].filter(Boolean).join(" ");
  byId("plane").setAttribute("aria-label",
    `Capsules of ${counted(plane.images.length)} in the subspace of ${className(state.label)}`);
}

// The orientation with the most squared length of the class's own images, in steps of 15 degrees.
function usualOrientation() {
  if (C === 1) {
    let sum = 0;
    plane.x.forEach((x, j) => { if (plane.group[j] === 0) sum += x * Math.abs(x); });
    return sum < 0 ? 180 : 0;
  }
  const bins = new Float64Array(24);
  for (let j = 0; j < plane.images.length; j++) {
    if (plane.group[j] === 0) bins[Math.round((angleOf(j) + 360) / 15) % 24] += plane.x[j] ** 2 + plane.y[j] ** 2;
  }
  const best = bins.indexOf(Math.max(...bins)) * 15;
  return best > 180 ? best - 360 : best;
}
