// Browsers refuse workers to pages that were opened from disk, and search needs one. There, a script in a hidden frame
// of the page does its work: what is posted to it arrives as a message event, and what it posts goes to `onmessage`.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.onmessage = this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      const later = (task) => setTimeout(() => this.frame && task(), 0);
      inside.postMessage = (data) => later(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inside.document.createElement("script");
      this.ready = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (event) => this.onerror?.(event);
      script.src = new URL(address, location.href);
      inside.document.body.append(script);
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => this.frame?.contentWindow.onmessage?.({ data: copy }));
    }
    terminate() {
      this.frame?.remove();
      this.frame = null;
    }
  };
}
