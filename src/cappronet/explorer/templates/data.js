"use strict";
// The data of the page: text and sizes from JSON, arrays from base64, and values derived from them.

const meta = JSON.parse(document.getElementById("meta").textContent);
const TYPES = { u2: Uint16Array, i2: Int16Array, u4: Uint32Array, f4: Float32Array };

function bytesOf(name) {
  const text = atob(document.getElementById(`block-${name}`).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

const arrays = {};
for (const [name, type] of Object.entries(meta.types)) arrays[name] = new TYPES[type](bytesOf(name).buffer);

const N = meta.images;
const L = meta.classes.length;
const C = meta.capsuleDim;
const SHOWN = meta.shown;
const className = (label) => meta.classes[label];

const lengthOf = (image, label) => arrays.lengths[image * L + label] * arrays.lengthScale[image];
const isWrong = (image) => arrays.labels[image] !== arrays.predictions[image];

function residualIn(image, label) {
  const norm = arrays.norms[image];
  return norm > 0 ? Math.sqrt(Math.max(0, 1 - (lengthOf(image, label) / norm) ** 2)) : 1;
}

// Images of each class, and how often class k was predicted as class l, at k * L + l.
const imagesOf = Array.from({ length: L }, () => []);
const confusion = new Uint32Array(L * L);
for (let i = 0; i < N; i++) {
  imagesOf[arrays.labels[i]].push(i);
  confusion[arrays.labels[i] * L + arrays.predictions[i]] += 1;
}

const errorsOf = (label) => imagesOf[label].length - confusion[label * L + label];
const confusionsOf = (k, l) => confusion[k * L + l] + confusion[l * L + k];

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  if (!sorted.length) return NaN;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const medianLengths = meta.classes.map((_, label) => median(imagesOf[label].map((image) => lengthOf(image, label))));

// The class that this one is confused with most; without confusions, the class whose images are longest in it.
function partnerOf(label) {
  let best = -1;
  for (let other = 0; other < L; other++) {
    if (other !== label && (best < 0 || confusionsOf(label, other) > confusionsOf(label, best))) best = other;
  }
  if (best >= 0 && confusionsOf(label, best) > 0) return { label: best, confused: true };
  let longest = -1;
  for (let other = 0; other < L; other++) {
    if (other === label || !imagesOf[other].length) continue;
    const mean = imagesOf[other].reduce((sum, image) => sum + lengthOf(image, label), 0) / imagesOf[other].length;
    if (mean > longest) [longest, best] = [mean, other];
  }
  return { label: best, confused: false };
}

// The images that a class has coordinates of: all, or its own, those predicted as it and the longest in it.
const everyImage = Uint32Array.from({ length: N }, (_, i) => i);
const part = (array, label, size) => array.subarray(label * size, (label + 1) * size);
const membersOf = (label) => (arrays.members ? part(arrays.members, label, SHOWN) : everyImage);
const coordinatesOf = (label) => part(arrays.coordinates, label, SHOWN * C);

// The position of an image among the members of a class, which are in ascending order, or -1.
function positionOf(image, label) {
  const members = membersOf(label);
  let low = 0;
  let high = members.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (members[middle] === image) return middle;
    if (members[middle] < image) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

// The images whose capsules have the most similar orientation in the subspace of the image's predicted class. Capsules
// less than half as long are left out: their orientation says little. On a line, where all capsules of one sign have
// the same orientation, those closest in length come first.
function neighboursOf(image, count) {
  const label = arrays.predictions[image];
  const own = positionOf(image, label);
  if (own < 0) return [];
  const members = membersOf(label);
  const y = coordinatesOf(label);
  const product = (a, b) => {
    let sum = 0;
    for (let k = 0; k < C; k++) sum += y[a * C + k] * y[b * C + k];
    return sum;
  };
  const ownLength = Math.sqrt(product(own, own));
  const neighbours = [];
  for (let j = 0; j < members.length; j++) {
    const length = Math.sqrt(product(j, j));
    if (j === own || length === 0 || ownLength === 0 || 2 * length < ownLength) continue;
    const cosine = product(own, j) / (length * ownLength);
    const distance = Math.abs(length - ownLength);
    neighbours.push({ image: members[j], cosine: C > 1 ? cosine : Math.sign(cosine), distance });
  }
  return neighbours.sort((a, b) => b.cosine - a.cosine || a.distance - b.distance).slice(0, count);
}

const angleBetween = (k, l, number = 0) => (arrays.angles[(k * L + l) * meta.angleCount + number] / 65535) * 90;

// What the reader has selected. Parts of the page listen for changes by name.
const state = { label: 0, against: null, pinned: null, hovered: null, orientation: 0, spread: 15 };
const listeners = {};
const on = (name, listener) => (listeners[name] ??= []).push(listener);
const changed = (name) => (listeners[name] ?? []).forEach((listener) => listener());

function chooseClass(label, against = null) {
  state.label = label;
  state.against = against !== null && against !== label ? against : null;
  changed("class");
}

function pin(image) {
  state.pinned = image;
  changed("pin");
}

function hover(image) {
  if (state.hovered === image) return;
  state.hovered = image;
  changed("hover");
}
