"use strict";
// What all parts draw with: elements, numbers, colours, thumbnails, and the card that shows an image.

const byId = (id) => document.getElementById(id);
const WIDE = matchMedia("(min-width: 1100px)"); // as in the style: the image has a column of its own

// An element with attributes, listeners ("onclick") and children. Words only ever become text nodes.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "g", "polyline"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, text]) => element.style.setProperty(key, text));
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Four significant digits, without the noise of more; thousands stay whole.
function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(2);
  const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value) || 1)));
  return value.toFixed(Math.min(digits, 4));
}
const whole = (value) => value.toLocaleString("en-US");
const percent = (share, digits = 1) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : "–");
const degrees = (value) => `${Math.round(value).toString().replace("-", "−")}°`;
const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

const note = (words) => make("p", { class: "muted small" }, words);
const fact = (name, value, kind = "") => make("div", { class: kind }, make("dt", {}, name), make("dd", {}, value));

// A class with a bar that fills a share of its track, and a number; a click shows the class.
function barRow(label, share, tone, value, tags = "", pick = chooseClass) {
  const bar = make("span", { class: `bar ${tone}`, style: { width: `${Math.min(100, 100 * share)}%` } });
  const name = make("span", { class: "name" }, className(label), tags ? make("span", { class: "tag" }, tags) : null);
  return make("button", { type: "button", class: "bar-row", "data-class": label, onclick: () => pick(label),
    title: `Show the plane of ${className(label)}` },
    name, make("span", { class: "track" }, bar), make("span", { class: "value" }, value));
}

function describe(image) {
  const path = meta.paths.length ? `, ${meta.paths[image]}` : "";
  const verdict = isWrong(image) ? `taken for ${className(arrays.predictions[image])}` : "recognized";
  return `image ${arrays.index[image]}${path}: ${className(arrays.labels[image])}, ${verdict}`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas that is sharp on any screen: sized to its box, drawn in CSS pixels, drawn again whenever the box changes.
function sharp(canvas, draw) {
  const redraw = () => {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    draw(pen, width, height);
  };
  let asked = false;
  const ask = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      redraw();
    });
  };
  new ResizeObserver(ask).observe(canvas);
  on("theme", ask);
  return ask;
}

// Round numbers for an axis from 0 or from low to high.
function ticks(low, high, count) {
  const step = 10 ** Math.floor(Math.log10((high - low || 1) / count));
  const wide = [1, 2, 5, 10].find((factor) => (high - low) / (step * factor) <= count) * step;
  const found = [];
  for (let k = Math.ceil(low / wide - 1e-9); k * wide <= high + wide * 1e-9; k++) {
    found.push(Number((k * wide).toPrecision(6)));
  }
  return found;
}

let sheets = [];
async function decodeSheets() {
  const names = Array.from({ length: meta.tile.sheets }, (_, i) => `sheet${i}`);
  const blobs = names.map((name) => new Blob([bytesOf(name)], { type: "image/webp" }));
  sheets = await Promise.all(blobs.map((blob) => createImageBitmap(blob)));
}

function thumbnail(image, size) {
  const { width, height, pitchX, pitchY, columns, forEach } = meta.tile;
  const factor = size / Math.max(width, height);
  const canvas = make("canvas", { width, height, class: "thumbnail", role: "img", "aria-label": describe(image) });
  canvas.style.width = `${Math.round(width * factor)}px`;
  canvas.style.height = `${Math.round(height * factor)}px`;
  canvas.classList.toggle("pixelated", factor >= 3 || Math.max(width, height) <= 16);
  const place = image % forEach;
  const [x, y] = [(place % columns) * pitchX, Math.floor(place / columns) * pitchY];
  canvas.getContext("2d").drawImage(sheets[Math.floor(image / forEach)], x, y, width, height, 0, 0, width, height);
  return canvas;
}

// A thumbnail that can be pointed at and pinned, with words under it.
function imageButton(image, caption, { size = 44, group = null } = {}) {
  const mark = group === null ? null : make("span", { class: `mark ${GROUPS[group]}`, "aria-hidden": "true" });
  const words = caption === null ? null : make("span", { class: "caption" }, mark, caption);
  const button = make("button", { type: "button", class: `image${isWrong(image) ? " wrong" : ""}`, "data-image": image,
    "data-index": arrays.index[image], "aria-label": `${describe(image)}${caption ? `, ${caption}` : ""}` },
    thumbnail(image, size), words);
  const show = () => {
    const box = button.getBoundingClientRect();
    hover(image);
    showCard(image, box.right, box.top);
  };
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show());
  button.addEventListener("focus", () => button.matches(":focus-visible") && show());
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => { hover(null); hideCard(); });
  button.addEventListener("click", () => { hideCard(); pin(image); });
  return button;
}

// Fills a box with image buttons, a part at a time: more come when its end is scrolled into view, or asked for.
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
  if (!items.length) host.append(make("p", { class: "muted small" }, "No images."));
  extend();
}

// Classes worth naming for an image: the longest capsules, and always its true class and the class on view.
function longestClasses(image, count, always = []) {
  const order = Array.from({ length: L }, (_, label) => label).sort((a, b) => lengthOf(image, b) - lengthOf(image, a));
  const top = order.slice(0, count);
  return [...top, ...order.slice(count).filter((label) => always.includes(label))];
}

function showCard(image, x, y) {
  const card = byId("card");
  const label = arrays.labels[image];
  const rows = longestClasses(image, 4, [label, state.label]).map((other) =>
    make("div", { class: "card-length", "data-class": other, "data-length": lengthOf(image, other) },
      make("span", { class: "name" }, className(other)),
      make("span", { class: "value" }, number(lengthOf(image, other)))));
  card.replaceChildren(
    thumbnail(image, 84),
    make("div", { class: "card-words" },
      make("p", { class: "card-title" }, `image ${arrays.index[image]}`),
      meta.paths.length ? make("p", { class: "muted small path" }, meta.paths[image]) : null,
      make("p", {}, "true ", make("b", { class: "true" }, className(label))),
      make("p", {}, "predicted ", make("b", { class: "predicted" }, className(arrays.predictions[image])),
        isWrong(image) ? make("span", { class: "tag wrong" }, "wrong") : null),
      make("p", { class: "muted small lengths-title" }, "capsule lengths"), ...rows));
  card.dataset.image = image;
  card.dataset.index = arrays.index[image];
  card.hidden = false;
  const box = card.getBoundingClientRect();
  const end = WIDE.matches ? byId("image").getBoundingClientRect().left : innerWidth; // the panel stays in view
  const left = x + 14 + box.width > end ? Math.min(x, end) - 14 - box.width : x + 14;
  card.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
  card.style.top = `${Math.max(8, Math.min(y + 10, innerHeight - box.height - 8))}px`;
}

function hideCard() {
  byId("card").hidden = true;
}

function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => {
    byId("theme").textContent = isDark() ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", isDark() ? "Change to light colours" : "Change to dark colours");
    changed("theme");
  };
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  dark.addEventListener("change", show);
  show();
}
