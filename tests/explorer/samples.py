"""Runs, tables and pages for the tests of the explorer."""

import json
from html.parser import HTMLParser

import numpy as np

from cappronet.explorer import CapsuleTable
from cappronet.training.loop import Hardware, train
from cappronet.training.run_folder import Run

HOSTILE = "</script><script>window.hacked = 1</script><!--"


def trained(folder, recipe):
    train(recipe, Run.new(folder), Hardware(accelerator="cpu"))
    return folder


def random_table(n, L, c, size, d=48, **values):
    """A table of any size without training; its thumbnails are noise, which compresses worst."""
    g = np.random.default_rng(0)
    basis = np.linalg.qr(g.normal(size=(L, d, c)))[0].transpose(0, 2, 1).astype(np.float32)
    labels = np.arange(n) % L
    features = (g.normal(size=(n, d)) + 4 * basis[labels].sum(1)).astype(np.float32)
    lengths = np.linalg.norm((features @ basis.reshape(L * c, d).T).reshape(n, L, c), axis=-1)
    fields = {
        "classes": tuple(f"class {i}" for i in range(L)),
        "split": "test",
        "total": n,
        "index": np.arange(n),
        "labels": labels,
        "predictions": lengths.argmax(1),
        "features": features,
        "lengths": lengths,
        "residuals": np.sqrt(1 - (lengths.max(1) / np.linalg.norm(features, axis=1)) ** 2),
        "basis": basis,
        "angles": g.uniform(0, 90, (L, L, c)).astype(np.float32),
        "conditions": g.uniform(1, 10, L),
        "random_angle": 60.0,
        "thumbnails": g.integers(0, 256, (n, size, size, 3), dtype=np.uint8),
        "paths": (),
        "normalize": False,
        "scale": 1.0,
    }
    return CapsuleTable(**(fields | values))


class Parsed(HTMLParser):
    """The elements of a page, and the texts of its scripts by id."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.current = [], {}, None
        self.feed(text)
        self.meta = json.loads(self.scripts["meta"])

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.current = dict(attributes).get("id", "") if tag == "script" else None

    def handle_endtag(self, tag):
        self.current = None

    def handle_data(self, data):
        if self.current is not None:
            self.scripts[self.current] = self.scripts.get(self.current, "") + data


def parsed(path):
    return Parsed(path.read_text(encoding="utf-8"))
