"use strict";
// One image: how long it is in every class, what no subspace explains, and which images point where it does.

const MOST_BARS = 20;

function startImage() {
  on("pin", showImage);
  showImage();
}

function showImage() {
  const host = byId("image-content");
  const image = state.pinned;
  document.querySelectorAll("button.image.pinned").forEach((button) => button.classList.remove("pinned"));
  showDock(image);
  if (image === null) {
    byId("image-title").textContent = "An image";
    host.replaceChildren(make("p", { class: "muted" }, "Click a point of a plane, or any small image, to see it here."));
    return;
  }
  document.querySelectorAll(`button.image[data-image="${image}"]`).forEach((button) => button.classList.add("pinned"));
  byId("image-title").textContent = `Image ${arrays.index[image]}`;
  byId("image-panel").dataset.index = arrays.index[image];
  host.replaceChildren(imageHead(image), imageBars(image), imageNeighbours(image));
}

function imageHead(image) {
  const [label, found] = [arrays.labels[image], arrays.predictions[image]];
  const toClass = (other, kind) => make("button", { type: "button", class: `link ${kind}`, title: "Show its plane",
    onclick: () => chooseClass(other) }, className(other));
  const facts = [
    ["True class", toClass(label, "true")],
    ["Predicted", toClass(found, "predicted")],
    ["Residual |x⊥| / |x|", make("span", { class: "residual" }, number(arrays.residuals[image]))],
    [isWrong(image) ? "… of its true class" : null, number(residualIn(image, label))],
    ["|x|", number(arrays.norms[image])],
    [meta.paths.length ? "File" : null, make("span", { class: "path" }, meta.paths[image] ?? "")],
  ];
  const rows = facts.filter(([name]) => name).map(([name, value]) => fact(name, value));
  return make("div", { class: "image-head" }, thumbnail(image, 128), make("dl", { class: "facts" }, ...rows),
    make("button", { type: "button", class: "plain unpin", onclick: () => pin(null) }, "Unpin"));
}

function imageBars(image) {
  const [label, found] = [arrays.labels[image], arrays.predictions[image]];
  const shown = longestClasses(image, MOST_BARS, [label]);
  const rows = shown.map((other) => {
    const length = lengthOf(image, other);
    const tags = [other === label ? "true" : null, other === found ? "predicted" : null].filter(Boolean).join(", ");
    const tone = other === label ? "own" : other === found ? "other" : "rest";
    const row = barRow(other, length / (arrays.norms[image] || 1), tone, number(length), tags);
    row.dataset.length = length;
    return row;
  });
  const many = L > shown.length ? ` The ${shown.length} longest of ${whole(L)}.` : "";
  return make("div", {}, make("h3", {}, "Length in every class"), note(`A full bar is |x|.${many}`),
    make("div", { class: "bars" }, ...rows));
}

function imageNeighbours(image) {
  const found = arrays.predictions[image];
  const caption = ({ image: other, cosine }) =>
    C > 1 ? `${((Math.acos(Math.min(1, cosine)) * 180) / Math.PI).toFixed(1)}°` : number(lengthOf(other, found));
  const box = make("div", { class: "thumbs" });
  const items = neighboursOf(image, 12).map((neighbour) => ({ image: neighbour.image, caption: caption(neighbour) }));
  fillImages(box, items, { size: 48 });
  return make("div", { class: "neighbours" }, make("h3", {}, "Nearest by orientation"),
    note(`Capsules at least half as long that point the same way in the subspace of ${className(found)}, and ` +
      `${C > 1 ? "the angle to them" : "their lengths"}.`), box);
}

// Where the panel is not beside the page, a bar at the bottom says what is pinned and leads there.
function showDock(image) {
  byId("dock")?.remove();
  if (image === null || WIDE.matches) return;
  const label = arrays.labels[image];
  const words = make("p", {}, make("b", {}, className(label)),
    isWrong(image) ? ` taken for ${className(arrays.predictions[image])}` : " recognized",
    make("span", { class: "muted small" }, `image ${arrays.index[image]}, length ${number(lengthOf(image, label))}`));
  const details = make("a", { href: "#image", class: "plain" }, "Details");
  const unpin = { type: "button", class: "plain", "aria-label": "Unpin", onclick: () => pin(null) };
  document.body.append(make("div", { id: "dock" }, thumbnail(image, 48), words, details, make("button", unpin, "×")));
}
