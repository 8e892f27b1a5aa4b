"use strict";
// The angles between subspaces, and the images to check first.

function startSubspaces() {
  byId("subspaces-note").textContent =
    `Each class has a subspace of ${plural(C, "dimension")} in a feature space of ${whole(meta.featureDim)}. ` +
    "The smallest principal angle measures how close two subspaces are: 90° means orthogonal; " +
    `random subspaces of this size are about ${degrees(meta.randomAngle)} apart.`;
  for (let k = 0; k < meta.angleCount; k++) {
    const name = k === 0 ? "smallest" : k === C - 1 ? "largest" : `number ${k + 1}`;
    byId("angle-number").append(make("option", { value: k }, name));
  }
  byId("angle-label").hidden = meta.angleCount === 1;
  byId("angle-number").addEventListener("change", (event) => showAngles(Number(event.target.value)));
  showAngles(0);
  showClosest();
  showConditions();
}

function showAngles(numberOfAngle) {
  const angle = (k, l) => angleBetween(k, l, numberOfAngle);
  let least = 89; // the closest pair has the strongest colour
  for (let k = 0; k < L; k++) for (let l = 0; l < k; l++) least = Math.min(least, angle(k, l));
  heatMap(byId("angles"), {
    share: (k, l) => (k === l ? NaN : (0.85 * (90 - angle(k, l))) / (90 - least)),
    tone: () => "own",
    text: (k, l) => String(Math.round(angle(k, l))),
    words: (k, l) => `${className(k)} and ${className(l)}: ${angle(k, l).toFixed(1)}°`,
    pick: showPair, rows: "", columns: "", label: "Principal angles between classes, in degrees",
  });
}

function showPair(k, l = null) {
  chooseClass(k, l);
  byId("classes").scrollIntoView();
}

// With half a million pairs, inserting into a short sorted list is far faster than sorting all of them.
function closestPairs(count) {
  const closest = [];
  for (let k = 0; k < L; k++) {
    for (let l = k + 1; l < L; l++) {
      const angle = arrays.angles[(k * L + l) * meta.angleCount];
      if (closest.length === count && angle >= closest[count - 1].angle) continue;
      closest.splice(closest.findLastIndex((pair) => pair.angle <= angle) + 1, 0, { k, l, angle });
      closest.length = Math.min(closest.length, count);
    }
  }
  return closest;
}

// The share of squared length that one subspace keeps of the other's vectors, on average over all orientations.
function overlap(k, l) {
  let sum = 0;
  for (let j = 0; j < C; j++) sum += Math.cos((angleBetween(k, l, j) * Math.PI) / 180) ** 2;
  return sum / C;
}

function showClosest() {
  const all = meta.angleCount === C;
  const rows = closestPairs(15).map(({ k, l }) => {
    const names = `${className(k)} · ${className(l)}`;
    const pair = make("button", { type: "button", class: "link", onclick: () => showPair(k, l) }, names);
    const shared = all ? [percent(overlap(k, l), 0)] : [];
    const values = [`${angleBetween(k, l).toFixed(1)}°`, ...shared, whole(confusionsOf(k, l))];
    return make("tr", {}, make("td", {}, pair), ...values.map((value) => make("td", { class: "value" }, value)));
  });
  const heads = ["classes", "smallest angle", ...(all ? ["shared"] : []), "confused"];
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name)));
  const shared = all ? "Shared: the mean share of squared length that one subspace keeps of the other’s vectors. " : "";
  byId("closest").append(make("table", { class: "plain-table" }, make("thead", {}, head), make("tbody", {}, ...rows)),
    note(`${shared}Confused: ${NOUN}s of one class predicted as the other.`));
}

function showConditions() {
  const { conditions } = arrays;
  const order = meta.classes.map((_, label) => label).sort((a, b) => conditions[b] - conditions[a]);
  const shown = L > MOST_TABLE_CLASSES ? order.slice(0, 20) : order;
  const largest = Math.log10(Math.max(conditions[order[0]], 10));
  byId("conditions-card").hidden = C === 1; // a single vector is always well conditioned
  byId("conditions-verdict").textContent = conditionVerdict();
  byId("conditions-note").textContent =
    `The condition number of W′W for each class, largest first. Near 1, its ${C} basis vectors point in clearly different ` +
    "directions; the larger it is, the more nearly some of them repeat others. Bars are logarithmic. " +
    `Median ${number(median(conditions))}, smallest ${number(conditions[order[L - 1]])}.`;
  const share = (label) => Math.max(0.01, Math.log10(Math.max(1, conditions[label])) / largest);
  const rows = shown.map((label) => barRow(label, share(label), "rest", number(conditions[label]), "", showPair));
  byId("conditions").append(make("div", { class: "bars" }, ...rows));
}

// What the condition numbers mean for the reader. The limits are those of the theory page, for float32.
const EXACT = 1e3; // up to here, lengths are exact to 0.1 %
const DEPENDENT = 1e6; // from here on, basis vectors count as dependent
function conditionVerdict() {
  const above = (limit) => arrays.conditions.reduce((count, value) => count + (value >= limit), 0);
  const classes = (limit) => `${above(limit)} of ${plural(L, "class", "classes")}`;
  if (above(DEPENDENT)) {
    return `No, in ${classes(DEPENDENT)}: at ${whole(DEPENDENT)} and above, basis vectors are dependent and dimensions are ` +
      "wasted. Train with a smaller --capsule-dim.";
  }
  if (above(EXACT)) {
    return `Barely, in ${classes(EXACT)}: at ${whole(EXACT)} and above, lengths are less exact, and a smaller --capsule-dim ` +
      "may do as well.";
  }
  return `Yes, in every class: below ${whole(EXACT)}, lengths are exact to 0.1 %. There is nothing to do.`;
}

// The wrong class in which an image has its longest capsule.
function longestWrong(image) {
  const own = arrays.labels[image];
  let best = own === 0 ? 1 : 0;
  for (let label = 0; label < L; label++) {
    if (label !== own && arrays.lengths[image * L + label] > arrays.lengths[image * L + best]) best = label;
  }
  return best;
}

function startSuspicious() {
  const trueName = (image) => className(arrays.labels[image]);
  const ownLength = (image) => lengthOf(image, arrays.labels[image]);
  const ownShare = (image) => ownLength(image) / medianLengths[arrays.labels[image]];
  const wrong = Uint32Array.from(everyImage, longestWrong);
  const margin = (image) => lengthOf(image, wrong[image]) - ownLength(image);
  const signed = (value) => `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;
  addSuspicious("short", "Short capsule in the true class",
    "Length in the true class relative to the median of that class, smallest first.",
    ownShare, (image) => `${percent(ownShare(image), 0)}\n${trueName(image)}`);
  addSuspicious("long", "Long capsule in a wrong class",
    "Length of the longest capsule in a wrong class minus the length in the true class, largest first.",
    (image) => -margin(image), (image) => `${signed(margin(image))}\n${trueName(image)} → ${className(wrong[image])}`);
  addSuspicious("far", "Far from every subspace",
    "Relative residual |x − v| / |x| to the nearest subspace, largest first.",
    (image) => -arrays.residuals[image], (image) => `${number(arrays.residuals[image])}\n${trueName(image)}`);
}

// A list of images by score, smallest first.
function addSuspicious(id, title, words, score, caption) {
  const scores = Float64Array.from(everyImage, score);
  const order = Array.from(everyImage).sort((a, b) => scores[a] - scores[b]).slice(0, 240);
  const box = make("div", { class: "thumbs named tall", id: `suspicious-${id}` });
  fillImages(box, order.map((image) => ({ image, caption: caption(image) })), { size: 64 }, 24);
  const counts = [10, 25, 50, 100, 240].filter((count) => count < order.length);
  const first = make("select", { "aria-label": `How many ${NOUN}s to copy` },
    ...[...counts, order.length].map((count) => make("option", { value: count }, `first ${count}`)));
  first.value = counts[1] ?? order.length;
  const copy = copyButton(() => order.slice(0, Number(first.value)));
  byId("suspicious-lists").append(make("div", { class: "surface" }, make("h3", {}, title), note(words),
    make("span", { class: "buttons" }, copy, first), box));
}
