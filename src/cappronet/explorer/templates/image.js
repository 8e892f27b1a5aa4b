"use strict";
// The pinned image, or the most doubtful one until an image is pinned: its length in every class, its residual, and the
// images with the most similar orientation.

const MOST_BARS = 20;

function startImage() {
  on("pin", showImage);
  showImage();
}

// The image that a wrong class claims most strongly; with no errors, the closest call.
const doubtful = { image: null };
function mostDoubtful() {
  if (doubtful.image === null) {
    const margins = Float64Array.from(everyImage, (image) =>
      lengthOf(image, longestWrong(image)) - lengthOf(image, arrays.labels[image]));
    doubtful.image = everyImage.reduce((best, image) => (margins[image] > margins[best] ? image : best), 0);
  }
  return doubtful.image;
}

function showImage() {
  const host = byId("image-content");
  const image = state.pinned ?? mostDoubtful();
  document.querySelectorAll("button.image.pinned").forEach((button) => button.classList.remove("pinned"));
  showDock(state.pinned);
  if (state.pinned !== null) document.querySelectorAll(`button.image[data-image="${image}"]`).forEach((button) => button.classList.add("pinned"));
  byId("image-why").textContent = state.pinned === null ? `Most doubtful ${NOUN}` : `Pinned ${NOUN}`;
  byId("image-title").textContent = meta.paths.length ? nameOf(image) : capitalized(nameOf(image));
  byId("image-panel").dataset.index = arrays.index[image];
  const other = note(`Click a mark in the plane, or any ${meta.tile ? "thumbnail" : NOUN}, to see that ${NOUN} here.`);
  host.replaceChildren(...(state.pinned === null ? [other] : []), imageHead(image), imageBars(image), imageNeighbours(image));
}

function imageHead(image) {
  const [label, predicted] = [arrays.labels[image], arrays.predictions[image]];
  const toClass = (other, kind) => make("button", { type: "button", class: `link ${kind}`, title: "Show the plane of this class",
    onclick: () => chooseClass(other) }, className(other));
  const facts = [
    ["True class", toClass(label, "true")],
    ["Predicted", toClass(predicted, "predicted")],
    ["Residual |x − v| / |x|", make("span", { class: "residual" }, number(arrays.residuals[image]))],
    [isWrong(image) ? "Residual, true class" : null, number(residualIn(image, label))],
    [meta.normalize ? null : "|x|", number(arrays.norms[image])], // of unit features it is 1
  ];
  const rows = facts.filter(([name]) => name).map(([name, value]) => fact(name, value));
  const unpin = make("button", { type: "button", class: "plain unpin", onclick: () => pin(null) }, "Unpin");
  return make("div", { class: "image-head" }, meta.tile || meta.texts.length ? thumbnail(image, 128) : null,
    make("dl", { class: "facts" }, ...rows),
    meta.paths.length ? make("p", { class: "small path" }, meta.paths[image]) : null,
    make("span", { class: "buttons" }, state.pinned === null ? null : unpin,
      meta.paths.length ? copyButton(() => [image], "Copy path") : null));
}

function imageBars(image) {
  const [label, predicted] = [arrays.labels[image], arrays.predictions[image]];
  const shown = longestClasses(image, MOST_BARS, [label]);
  const rows = shown.map((other) => {
    const length = lengthOf(image, other);
    const tags = [other === label ? "true" : null, other === predicted ? "predicted" : null].filter(Boolean).join(", ");
    const tone = other === label ? "own" : other === predicted ? "other" : "rest";
    const row = barRow(other, length / (arrays.norms[image] || 1), tone, number(length), tags);
    row.dataset.length = length;
    return row;
  });
  const many = L > shown.length ? ` Showing the ${shown.length} longest of ${whole(L)}.` : "";
  return make("div", {}, make("h3", {}, "Length in every class"), note(`${meta.normalize ? "A full bar is a length of 1." : "A full bar is the feature norm |x|."}${many}`),
    make("div", { class: "bars" }, ...rows));
}

function imageNeighbours(image) {
  const predicted = arrays.predictions[image];
  const caption = ({ image: other, cosine }) =>
    C > 1 ? `${((Math.acos(Math.min(1, cosine)) * 180) / Math.PI).toFixed(1)}°` : number(lengthOf(other, predicted));
  const box = make("div", { class: "thumbs" });
  const items = neighboursOf(image, 12).map((neighbour) => ({ image: neighbour.image, caption: caption(neighbour) }));
  fillImages(box, items, { size: 48 });
  return make("div", { class: "neighbours" }, make("h3", {}, "Most similar orientation"),
    note(`${capitalized(NOUN)}s in the subspace of ${className(predicted)} whose capsules are at least half as long, with ` +
      `${C > 1 ? "the angle between the capsules" : "their lengths"}.`), box);
}

// On narrow screens, where the panel is further down, a bar at the bottom shows what is pinned and links to it.
function showDock(image) {
  byId("dock")?.remove();
  if (image === null || WIDE.matches) return;
  const label = arrays.labels[image];
  const words = make("p", {}, make("b", {}, className(label)),
    isWrong(image) ? ` predicted as ${className(arrays.predictions[image])}` : " (correct)",
    make("span", { class: "muted small" }, `${nameOf(image)}, length ${number(lengthOf(image, label))}`));
  const details = make("a", { href: "#image", class: "plain" }, "Details");
  const unpin = { type: "button", class: "plain", "aria-label": "Unpin", onclick: () => pin(null) };
  document.body.append(make("div", { id: "dock" }, thumbnail(image, 48), words, details, make("button", unpin, "×")));
}
