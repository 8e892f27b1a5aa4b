"use strict";
// Shared by all parts: elements, numbers, colours, sharp canvases.

const byId = (id) => document.getElementById(id);
const WIDE = matchMedia("(min-width: 1100px)"); // as in page.css: the image panel is a separate column

// An element with attributes, listeners ("onclick") and children. Text is only ever inserted as text nodes.
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

// Four significant digits; numbers from 1,000 have no decimals.
function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(2);
  const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value) || 1)));
  return value.toFixed(Math.min(digits, 4));
}
const whole = (value) => value.toLocaleString("en-US");
const percent = (share, digits = 1) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : "–");
const degrees = (value) => `${Math.round(value).toString().replace("-", "−")}°`;
const duration = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms`
  : `${seconds < 10 ? seconds.toFixed(1) : whole(Math.round(seconds))} s`);
const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

const NOUN = meta.noun; // what the samples are: "image", or "sample" for feature vectors
const counted = (count) => plural(count, NOUN);

const note = (words) => make("p", { class: "muted small" }, words);
const fact = (name, value, kind = "") => make("div", { class: kind }, make("dt", {}, name), make("dd", {}, value));

// A class with a bar that fills a share of its track, and a number; a click selects the class.
function barRow(label, share, tone, value, tags = "", pick = chooseClass) {
  const bar = make("span", { class: `bar ${tone}`, style: { width: `${Math.min(100, 100 * share)}%` } });
  const name = make("span", { class: "name" }, make("span", { class: "shortened" }, className(label)), tags ? make("span", { class: "tag" }, tags) : null);
  return make("button", { type: "button", class: "bar-row", "data-class": label, onclick: () => pick(label),
    title: `Show the plane of ${className(label)}` },
    name, make("span", { class: "track" }, bar), make("span", { class: "value" }, value));
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas that is sharp on any screen: sized to its box, drawn in CSS pixels, redrawn when the box changes.
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
  let scheduled = false;
  const schedule = () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      redraw();
    });
  };
  new ResizeObserver(schedule).observe(canvas);
  on("theme", schedule);
  return schedule;
}

// Round numbers for an axis from low to high.
function ticks(low, high, count) {
  const step = 10 ** Math.floor(Math.log10((high - low || 1) / count));
  const width = [1, 2, 5, 10].find((factor) => (high - low) / (step * factor) <= count) * step;
  const values = [];
  for (let k = Math.ceil(low / width - 1e-9); k * width <= high + width * 1e-9; k++) {
    values.push(Number((k * width).toPrecision(6)));
  }
  return values;
}

function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => {
    byId("theme").textContent = isDark() ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    changed("theme");
  };
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  dark.addEventListener("change", show);
  show();
}
