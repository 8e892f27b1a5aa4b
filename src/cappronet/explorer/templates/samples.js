"use strict";
// What the reader sees of an image or a sample: its name, its thumbnail or text, a button, and the card next to the pointer.

const capitalized = (words) => words[0].toUpperCase() + words.slice(1);
const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);
const shortened = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

// The name of its file, or its position in the split.
const nameOf = (image) => (meta.paths.length ? baseName(meta.paths[image]) : `${NOUN} ${arrays.index[image]}`);

function describe(image) {
  const which = meta.paths.length ? `${NOUN} ${meta.paths[image]}` : nameOf(image);
  const text = meta.texts.length ? `, “${shortened(meta.texts[image], 120)}”` : "";
  const verdict = isWrong(image) ? `predicted as ${className(arrays.predictions[image])}` : "correct";
  return `${which}${text}: ${className(arrays.labels[image])}, ${verdict}`;
}

let sheets = [];
async function decodeSheets() {
  const names = Array.from({ length: meta.tile?.sheets ?? 0 }, (_, i) => `sheet${i}`);
  const blobs = names.map((name) => new Blob([bytesOf(name)], { type: "image/webp" }));
  sheets = await Promise.all(blobs.map((blob) => createImageBitmap(blob)));
}

// The image at a size in pixels; of a feature vector its text, or else its name.
function thumbnail(image, size) {
  if (!meta.tile) return make("span", { class: "excerpt", dir: "auto" }, make("span", {}, meta.texts[image] ?? nameOf(image)));
  const { width, height, pitchX, pitchY, columns, tilesPerSheet } = meta.tile;
  const factor = size / Math.max(width, height);
  const canvas = make("canvas", { width, height, class: "thumbnail", role: "img", "aria-label": describe(image) });
  canvas.style.width = `${Math.round(width * factor)}px`;
  canvas.style.height = `${Math.round(height * factor)}px`;
  canvas.classList.toggle("pixelated", factor >= 3 || Math.max(width, height) <= 16);
  const tile = image % tilesPerSheet;
  const [x, y] = [(tile % columns) * pitchX, Math.floor(tile / columns) * pitchY];
  canvas.getContext("2d").drawImage(sheets[Math.floor(image / tilesPerSheet)], x, y, width, height, 0, 0, width, height);
  return canvas;
}

// A thumbnail that can be hovered over and pinned, with a caption.
function imageButton(image, caption, { size = 44, group = null } = {}) {
  const mark = group === null ? null : make("span", { class: `mark ${GROUPS[group]}`, "aria-hidden": "true" });
  const words = caption === null ? null : make("span", { class: "caption" }, mark, caption);
  const button = make("button", { type: "button", class: `image${isWrong(image) ? " wrong" : ""}`, "data-image": image,
    "data-index": arrays.index[image], "aria-label": `${describe(image)}${caption ? `, ${caption}` : ""}` },
    thumbnail(image, size), words);
  const show = () => {
    hover(image);
    showCard(image, button, nextTo(button.getBoundingClientRect()));
  };
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show());
  button.addEventListener("focus", () => button.matches(":focus-visible") && show());
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, endHover);
  button.addEventListener("click", () => { hideCard(); pin(image); });
  return button;
}

// Fills a box with image buttons in steps: more are added when its end is scrolled into view, or on a click.
const filling = new WeakMap();
function fillImages(host, items, options = {}, step = 48) {
  filling.get(host)?.disconnect();
  host.replaceChildren();
  let shown = 0;
  const more = make("button", { type: "button", class: "plain more" });
  const extend = () => {
    const part = items.slice(shown, shown + step);
    end.unobserve(more);
    more.remove();
    host.append(...part.map(({ image, caption, group = null }) => imageButton(image, caption, { ...options, group })));
    shown += part.length;
    more.textContent = `${whole(items.length - shown)} more`;
    if (shown === items.length) return;
    host.append(more);
    requestAnimationFrame(() => end.observe(more));
  };
  more.addEventListener("click", () => {
    const next = shown;
    extend();
    host.children[next]?.focus();
  });
  const near = { root: host, rootMargin: "100px" };
  const end = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && extend(), near);
  filling.set(host, end);
  if (!items.length) host.append(make("p", { class: "muted small" }, `No ${NOUN}s.`));
  extend();
}

// The classes to list for an image: those with the longest capsules, and always the given ones.
function longestClasses(image, count, always = []) {
  const order = Array.from({ length: L }, (_, label) => label).sort((a, b) => lengthOf(image, b) - lengthOf(image, a));
  const top = order.slice(0, count);
  return [...top, ...order.slice(count).filter((label) => always.includes(label))];
}

// The card shows an image while the pointer or the focus is on it. `place` gives its position from its width and height.
const anchor = { element: null, left: 0, top: 0 }; // what the card belongs to, and where that was

function showCard(image, element, place) {
  if (image === state.pinned && WIDE.matches) return hideCard(); // the panel shows it already
  const card = byId("card");
  const label = arrays.labels[image];
  const rows = longestClasses(image, 4, [label, state.label]).map((other) =>
    make("div", { class: "card-length", "data-class": other, "data-length": lengthOf(image, other) },
      make("span", { class: "name" }, className(other)),
      make("span", { class: "value" }, number(lengthOf(image, other)))));
  card.replaceChildren(
    meta.tile || meta.texts.length ? thumbnail(image, 84) : "",
    make("div", { class: "card-words" },
      make("p", { class: "card-title path" }, nameOf(image)),
      make("p", {}, "true ", make("b", { class: "true" }, className(label))),
      make("p", {}, "predicted ", make("b", { class: "predicted" }, className(arrays.predictions[image])),
        isWrong(image) ? make("span", { class: "tag wrong" }, "wrong") : null),
      make("p", { class: "muted small lengths-title" }, "capsule lengths"), ...rows));
  card.dataset.image = image;
  card.dataset.index = arrays.index[image];
  card.hidden = false;
  const { width, height } = card.getBoundingClientRect();
  const [left, top] = place(width, height);
  card.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  card.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
  const box = element.getBoundingClientRect();
  Object.assign(anchor, { element, left: box.left, top: box.top });
}

// Below a box or above it: the boxes to its left and right stay visible. The image panel is never covered.
const nextTo = (box) => (width, height) => {
  const end = WIDE.matches ? Math.max(box.right, byId("image").getBoundingClientRect().left) : innerWidth;
  const below = box.bottom + 8 + height <= innerHeight;
  return [Math.min(box.left, end - 14 - width), below ? box.bottom + 8 : box.top - 8 - height];
};

function hideCard() {
  byId("card").hidden = true;
}

function endHover() {
  hover(null);
  hideCard();
}

// The card does not stay behind when the page or a strip scrolls what it belongs to from under the pointer.
function startCard() {
  document.addEventListener("scroll", () => {
    if (byId("card").hidden) return;
    const box = anchor.element.getBoundingClientRect();
    const moved = Math.hypot(box.left - anchor.left, box.top - anchor.top) > 2;
    if (moved && document.activeElement !== anchor.element) endHover();
  }, { capture: true, passive: true });
}
