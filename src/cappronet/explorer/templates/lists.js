"use strict";
// How the subspaces lie to each other, and the images to check first.

function startSubspaces() {
  byId("subspaces-note").textContent =
    `Each class owns a subspace of ${plural(C, "dimension")} among ${whole(meta.featureDim)}. ` +
    "The smallest principal angle says how close two of them come: 90° is orthogonal; " +
    `two random subspaces of this size are about ${degrees(meta.randomAngle)} apart.`;
  for (let k = 0; k < meta.anglesKept; k++) {
    const name = k === 0 ? "smallest" : k === C - 1 ? "largest" : `number ${k + 1}`;
    byId("angle-number").append(make("option", { value: k }, name));
  }
  byId("angle-label").hidden = meta.anglesKept === 1;
  byId("angle-number").addEventListener("change", (event) => showAngles(Number(event.target.value)));
  showAngles(0);
  showLeaning();
  showConditions();
}

function showAngles(numberOfAngle) {
  const angle = (k, l) => angleBetween(k, l, numberOfAngle);
  let least = 89; // the strongest colour is that of the closest pair
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

// With half a million pairs, a short list that is kept in order is far quicker than to sort them all.
function closestPairs(count) {
  const found = [];
  for (let k = 0; k < L; k++) {
    for (let l = k + 1; l < L; l++) {
      const angle = arrays.angles[(k * L + l) * meta.anglesKept];
      if (found.length === count && angle >= found[count - 1].angle) continue;
      found.splice(found.findLastIndex((pair) => pair.angle <= angle) + 1, 0, { k, l, angle });
      found.length = Math.min(found.length, count);
    }
  }
  return found;
}

// How much of a capsule of one class, of any orientation, the other's subspace keeps on average, in squared length.
function overlap(k, l) {
  let sum = 0;
  for (let j = 0; j < C; j++) sum += Math.cos((angleBetween(k, l, j) * Math.PI) / 180) ** 2;
  return sum / C;
}

function showLeaning() {
  const all = meta.anglesKept === C;
  const rows = closestPairs(15).map(({ k, l }) => {
    const names = `${className(k)} · ${className(l)}`;
    const pair = make("button", { type: "button", class: "link", onclick: () => showPair(k, l) }, names);
    const shared = all ? [percent(overlap(k, l), 0)] : [];
    const values = [`${angleBetween(k, l).toFixed(1)}°`, ...shared, whole(confusionsOf(k, l))];
    return make("tr", {}, make("td", {}, pair), ...values.map((value) => make("td", { class: "value" }, value)));
  });
  const heads = ["classes", "smallest angle", ...(all ? ["shared"] : []), "confused"];
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name)));
  const shared = all ? "Shared: the squared length that one’s subspace keeps of the other’s capsules, on average. " : "";
  byId("leaning").append(make("table", { class: "plain-table" }, make("thead", {}, head), make("tbody", {}, ...rows)),
    note(`${shared}Confused: images taken for the other, both ways.`));
}

function showConditions() {
  const { conditions } = arrays;
  const order = meta.classes.map((_, label) => label).sort((a, b) => conditions[b] - conditions[a]);
  const shown = L > MOST_CELLS ? order.slice(0, 20) : order;
  const largest = Math.log10(Math.max(conditions[order[0]], 10));
  byId("conditions-note").textContent =
    "Of each class’s W′W, largest first: 1 is an orthogonal basis of equal lengths. Bars are logarithmic. " +
    `Median ${number(median(conditions))}, smallest ${number(conditions[order[L - 1]])}.`;
  const share = (label) => Math.max(0.01, Math.log10(Math.max(1, conditions[label])) / largest);
  const rows = shown.map((label) => barRow(label, share(label), "rest", number(conditions[label]), "", showPair));
  byId("conditions").append(make("div", { class: "bars" }, ...rows));
}

// The longest capsule of an image outside of its true class.
function longestWrong(image) {
  const own = arrays.labels[image];
  let best = own === 0 ? 1 : 0;
  for (let label = 0; label < L; label++) {
    if (label !== own && arrays.lengths[image * L + label] > arrays.lengths[image * L + best]) best = label;
  }
  return best;
}

function startDoubtful() {
  const trueName = (image) => className(arrays.labels[image]);
  const ownLength = (image) => lengthOf(image, arrays.labels[image]);
  const ownShare = (image) => ownLength(image) / medianLengths[arrays.labels[image]];
  const wrong = Uint32Array.from(everyImage, longestWrong);
  const margin = (image) => lengthOf(image, wrong[image]) - ownLength(image);
  const signed = (value) => `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;
  addDoubtful("short", "True class with a short capsule",
    "Length in the true class, as a share of the median of that class’s images, smallest first.",
    ownShare, (image) => `${percent(ownShare(image), 0)}\n${trueName(image)}`);
  addDoubtful("long", "A long capsule in a wrong class",
    "How much longer the longest capsule of another class is than that of the true class.",
    (image) => -margin(image), (image) => `${signed(margin(image))}\n${trueName(image)} → ${className(wrong[image])}`);
  addDoubtful("far", "Far from every subspace",
    "What the nearest subspace leaves unexplained, |x⊥| / |x|, largest first.",
    (image) => -arrays.residuals[image], (image) => `${number(arrays.residuals[image])}\n${trueName(image)}`);
}

// A list of images by score, smallest first.
function addDoubtful(id, title, words, score, caption) {
  const scores = Float64Array.from(everyImage, score);
  const order = Array.from(everyImage).sort((a, b) => scores[a] - scores[b]).slice(0, 240);
  const box = make("div", { class: "thumbs named tall", id: `doubtful-${id}` });
  fillImages(box, order.map((image) => ({ image, caption: caption(image) })), { size: 64 }, 24);
  byId("doubtful-lists").append(make("div", { class: "surface" }, make("h3", {}, title), note(words), box));
}
