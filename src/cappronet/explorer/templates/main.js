"use strict";
// The class picker, and the start of all parts.

function startPicker() {
  const select = byId("class");
  const against = byId("against");
  const filter = byId("class-filter");
  const words = (label) => {
    const count = imagesOf[label].length;
    return className(label) + (count ? ` · ${percent(errorsOf(label) / count, 0)} error` : "");
  };
  const option = (label, text = className(label)) => make("option", { value: label }, text);
  const every = meta.classes.map((_, label) => label);
  const fill = (labels) => select.replaceChildren(...labels.map((label) => option(label, words(label))));
  fill(every);
  filter.hidden = L <= 12;
  filter.addEventListener("input", () => {
    const matches = every.filter((label) => className(label).toLowerCase().includes(filter.value.trim().toLowerCase()));
    fill(matches.length ? matches : every);
    if (matches.length && !matches.includes(state.label)) chooseClass(matches[0]);
    select.value = state.label;
  });
  filter.addEventListener("keydown", (event) => event.key === "Enter" && select.focus());
  select.addEventListener("change", () => chooseClass(Number(select.value)));
  const step = (by) => {
    filter.value = "";
    chooseClass((state.label + by + L) % L);
  };
  byId("class-previous").addEventListener("click", () => step(-1));
  byId("class-next").addEventListener("click", () => step(1));
  against.addEventListener("change", () => {
    chooseClass(state.label, against.value === "" ? null : Number(against.value));
  });
  on("class", () => {
    if (![...select.options].some(({ value }) => Number(value) === state.label)) fill(every);
    select.value = state.label;
    const usual = partnerOf(state.label);
    against.replaceChildren(option("", `${className(usual.label)} (${usual.confused ? "most confused" : "nearest"})`),
      ...every.filter((label) => label !== state.label).map((label) => option(label)));
    against.value = state.against ?? "";
  });
}

// The class with the most errors is shown first.
function firstClass() {
  let best = 0;
  for (let label = 0; label < L; label++) if (errorsOf(label) > errorsOf(best)) best = label;
  return best;
}

async function start() {
  document.documentElement.dataset.kind = meta.texts.length ? "text" : NOUN;
  const decoded = decodeSheets();
  startRun();
  startPicker();
  startPlane();
  startGestures();
  startCard();
  await decoded;
  startStrips();
  startImage();
  startTheme();
  chooseClass(firstClass());
  // For tests and for use in the browser's console.
  window.explorer = { meta, state, chooseClass, pin, locate: (index) => {
    const box = byId("plane").getBoundingClientRect();
    const [x, y] = locate(positionOf(arrays.index.indexOf(index), state.label));
    return [box.left + x, box.top + y];
  } };
  requestAnimationFrame(() => setTimeout(() => {
    startSubspaces();
    startSuspicious();
    document.documentElement.dataset.ready = "true";
  }));
}

start();
