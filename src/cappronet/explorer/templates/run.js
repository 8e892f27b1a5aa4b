"use strict";
// The run: its result, recipe, training curves and confusion matrix.

function startRun() {
  const { run } = meta;
  document.title = `${run.name} · cappronet explore`;
  byId("title").textContent = run.name;
  byId("subtitle").textContent = `${run.data} · ${run.backbone} with ${run.head}`;
  showFacts(run);
  showRecipe(run.options);
  showCurves(run.metrics);
  showConfusion();
  byId("picked-close").addEventListener("click", () => {
    byId("picked").hidden = true;
    byId("confusion").querySelector("button[tabindex='0']")?.focus();
  });
  const lengths = meta.normalize ? "unit features" : "features";
  const scale = meta.scale !== 1 ? `, before the head’s scale of ${number(meta.scale)}` : "";
  byId("colophon").textContent =
    `Lengths and coordinates are those of projected ${lengths}${scale}. ` +
    `The page holds ${whole(N)} of ${whole(meta.total)} ${splitName()} ${NOUN}s, every class in its proportion. ` +
    "Created by cappronet explore.";
}

const splitName = () => (meta.split === "train" ? "training" : meta.run.heldOut ? "held-out" : "test");

function showFacts(run) {
  const { summary } = run;
  const rate = (name) => (Number.isFinite(summary[name]) ? percent(summary[name] / 100, 2) : null);
  const wrong = meta.classes.reduce((sum, _, label) => sum + errorsOf(label), 0);
  const facts = [
    [summary.measured_on ? "Error" : run.heldOut ? "Held-out error" : "Test error", rate("error") ?? "–", "big"],
    ["Measured on", summary.measured_on ?? null],
    ["Misclassified here", `${whole(wrong)} of ${whole(N)}`],
    ["Top-5 error", rate("error_top5")],
    ["Calibration error", rate("calibration_error")],
    ["Classes", whole(L)],
    ["Subspaces", `${C} of ${whole(meta.featureDim)} dimensions`],
    ["Parameters", Number.isFinite(summary.parameters) ? whole(summary.parameters) : null],
    [run.probe ? "Fitting time" : "Training time", Number.isFinite(summary.seconds) ? duration(summary.seconds) : null],
  ];
  for (const [name, value, kind] of facts) {
    if (value !== null) byId("facts").append(fact(name, value, kind));
  }
}

function showRecipe(options) {
  byId("recipe-details").hidden = !options.length; // a probe has no recipe
  const text = (value) => (Array.isArray(value) ? value.join(", ") || "none" : String(value));
  const rows = options.map(({ name, value, changed: given, help }) =>
    make("tr", { class: given ? "changed" : "", title: help }, make("th", { scope: "row" }, name.replaceAll("_", " ")),
      make("td", {}, text(value))));
  byId("recipe").append(make("p", { class: "muted small" }, "Values that differ from the defaults are bold."),
    make("table", { class: "recipe" }, make("tbody", {}, ...rows)));
}

function showCurves(metrics) {
  const series = (name) => metrics.map((line) => [line.epoch, line[name]]).filter(([, value]) => Number.isFinite(value));
  const measured = meta.run.heldOut ? "held-out" : "test";
  const charts = [
    ["Error, %", [[measured, series("error"), "own"], ["top-5", series("error_top5"), "rest"]]],
    ["Loss", [["training", series("train_loss"), "other"], [measured, series("loss"), "own"]]],
    ["Learning rate", [["", series("lr"), "rest"]]],
  ];
  for (const [title, lines] of charts) {
    const present = lines.filter(([, points]) => points.length);
    if (present.length) byId("curves").append(lineChart(title, present));
  }
  byId("training").hidden = !byId("curves").children.length; // a probe has none
}

function lineChart(title, lines) {
  const [width, height, left, right, top, bottom] = [300, 150, 40, 10, 12, 22];
  const points = lines.flatMap(([, values]) => values);
  const last = Math.max(...points.map(([epoch]) => epoch), 2);
  const marks = ticks(0, Math.max(...points.map(([, value]) => value)) || 1, 4);
  const high = Math.max(marks[marks.length - 1], ...points.map(([, value]) => value));
  const x = (epoch) => left + ((epoch - 1) / (last - 1)) * (width - left - right);
  const y = (value) => height - bottom - (value / high) * (height - top - bottom);
  const ends = lines.map(([name, values]) => `${name} ends at ${number(values[values.length - 1][1])}`).join(", ");
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${ends}` });
  for (const mark of marks) {
    svg.append(make("line", { x1: left, x2: width - right, y1: y(mark), y2: y(mark), class: "grid" }),
      make("text", { x: left - 5, y: y(mark) + 3.5, "text-anchor": "end" }, String(mark)));
  }
  for (const epoch of ticks(1, last, 5).filter((value) => Number.isInteger(value) && value >= 1)) {
    svg.append(make("text", { x: x(epoch), y: height - 7, "text-anchor": "middle" }, String(epoch)));
  }
  lines.forEach(([, values, tone], k) => {
    const path = values.map(([epoch, value]) => `${x(epoch)},${y(value)}`).join(" ");
    svg.append(make("polyline", { points: path, class: `curve ${tone}`, "stroke-dasharray": k ? "5 3" : null }));
    const [epoch, value] = values[values.length - 1];
    svg.append(make("circle", { cx: x(epoch), cy: y(value), r: 2.5, class: `dot ${tone}` }));
  });
  const key = lines.filter(([name]) => name).map(([name, values, tone], k) =>
    make("span", { class: `key ${tone}${k ? " dashed" : ""}` }, `${name} ${number(values[values.length - 1][1])}`));
  const by = make("span", { class: "muted" }, " per epoch");
  return make("figure", {}, make("figcaption", {}, make("b", {}, title), by, ...key), svg);
}

function showConfusion() {
  byId("confusion-note").textContent =
    `Rows are true classes, columns are predictions, for the ${whole(N)} ${NOUN}s on this page. Select a cell to see its ${NOUN}s.`;
  heatMap(byId("confusion"), {
    share: (k, l) => {
      const share = confusion[k * L + l] ? confusion[k * L + l] / imagesOf[k].length : 0;
      return share && Math.max(0.08, k === l ? 0.85 * share : Math.sqrt(share)); // the square root makes rare errors visible
    },
    tone: (k, l) => (k === l ? "own" : "other"),
    text: (k, l) => String(confusion[k * L + l] || ""),
    words: (k, l) => `${className(k)} predicted as ${className(l)}: ` +
      `${counted(confusion[k * L + l])} of ${whole(imagesOf[k].length)}`,
    pick: showPicked, rows: "true", columns: "predicted", label: "Confusion matrix",
  });
  const pairs = [];
  for (let k = 0; k < L; k++) for (let l = 0; l < L; l++) if (k !== l && confusion[k * L + l]) pairs.push([k, l]);
  pairs.sort((a, b) => confusion[b[0] * L + b[1]] - confusion[a[0] * L + a[1]]);
  const items = pairs.slice(0, L > MOST_TABLE_CLASSES ? 20 : 10).map(([k, l]) =>
    make("li", {}, make("button", { type: "button", class: "link", onclick: () => showPicked(k, l) },
      make("b", {}, className(k)), " predicted as ", make("b", {}, className(l))),
      ` · ${counted(confusion[k * L + l])}`));
  const none = make("p", { class: "muted" }, `No ${NOUN} is misclassified.`);
  byId("confused-pairs").append(make("h4", {}, "Most frequent errors"),
    items.length ? make("ol", { class: "pairs" }, ...items) : none);
}

function showPicked(k, l) {
  const images = imagesOf[k].filter((image) => arrays.predictions[image] === l);
  const verdict = k === l ? "classified correctly" : `predicted as ${className(l)}`;
  byId("picked-title").textContent = `${className(k)} ${verdict}: ${counted(images.length)}`;
  byId("picked").hidden = false;
  byId("picked-buttons").replaceChildren(copyButton(() => images), byId("picked-close"));
  images.sort((a, b) => lengthOf(b, l) - lengthOf(a, l));
  fillImages(byId("picked-images"), images.map((image) => ({ image, caption: number(lengthOf(image, l)) })), { size: 56 });
  byId("picked").scrollIntoView({ block: "nearest" });
  byId("picked-title").focus({ preventScroll: true });
}
