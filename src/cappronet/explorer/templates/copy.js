"use strict";
// Copying lists of images: the paths of their files, or their positions where they have no files.

const REFERENCES = meta.paths.length ? "paths" : "row numbers";
const referencesTo = (images) => images.map((image) => (meta.paths.length ? meta.paths[image] : arrays.index[image])).join("\n");
const SHOW_COPIED = 2500; // milliseconds

// A button that copies what `images` gives at that time, one line for each.
function copyButton(images, words = `Copy ${REFERENCES}`) {
  const button = make("button", { type: "button", class: "plain copy", title: COPY_HINT }, words);
  button.addEventListener("click", async () => {
    const chosen = images();
    if (!(await copyText(referencesTo(chosen)))) return;
    button.textContent = `Copied ${whole(chosen.length)}`;
    setTimeout(() => { button.textContent = words; }, SHOW_COPIED);
  });
  return make("span", { role: "status" }, button);
}

const COPY_HINT = meta.paths.length
  ? `One path on each line, relative to the folder ${meta.run.data}`
  : `One position in the ${meta.split} ${NOUN}s on each line, counted from 0`;

// Browsers may refuse the clipboard to a local file: then the older command, and last a field to copy from by hand.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = byId("copy-text");
    field.value = text;
    byId("copy-dialog").showModal();
    field.select();
    if (!document.execCommand("copy")) return false;
    byId("copy-dialog").close();
    return true;
  }
}
