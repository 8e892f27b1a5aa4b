"""A fit to many features of many classes, read from a memory map in half precision: time, peak memory, error."""

import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from cappronet.probing.classifier import CapsuleClassifier
from cappronet.reporting import Report, Table, silent
from experiments.benchmarks.timing import machine

__all__ = ["make_files", "run", "table"]

# Samples, features, classes, capsule dimension and test samples.
N, D, L, C, TESTED = 300_000, 768, 1_000, 8, 10_000
# Directions that belong to one class, and samples that are made at a time.
OWN, CHUNK = 8, 10_000


def make_files(folder: Path, n: int = N, tested: int = TESTED, *, d: int = D, classes: int = L, seed: int = 0) -> None:
    """Write x_train.npy and x_test.npy in float16, y_train.npy and y_test.npy, a chunk at a time.

    Features are made as those of `estimator.made_features`, with fewer directions for each class: all share a spread
    along random orthogonal directions, the j-th with a standard deviation of j^-0.75. A class has a mean of its own,
    drawn like a sample but 0.4 times as long, and a second spread along 8 directions of its own, each 0.1 times as wide
    as the widest of the shared. The features are shifted by 0.7 standard deviations and rectified.
    """
    chance = np.random.default_rng(seed)
    size = np.arange(1, d + 1, dtype=np.float32)[:, None] ** -0.75
    shared = size * np.linalg.qr(chance.standard_normal((d, d)))[0].astype(np.float32)
    means = 0.4 * chance.standard_normal((classes, d), dtype=np.float32) @ shared
    own = 0.1 * chance.standard_normal((classes, OWN, d), dtype=np.float32) / np.float32(d) ** 0.5
    shift = np.float32(0.7 * np.sqrt((shared**2).sum() / d))
    for part, count in (("train", n), ("test", tested)):
        y = chance.integers(classes, size=count)
        np.save(folder / f"y_{part}.npy", y)
        shape = (count, d)
        x = np.lib.format.open_memmap(folder / f"x_{part}.npy", mode="w+", dtype=np.float16, shape=shape)
        for start in range(0, count, CHUNK):
            labels = y[start : start + CHUNK]
            rows = chance.standard_normal((len(labels), d), dtype=np.float32) @ shared + means[labels]
            along = chance.standard_normal((len(labels), OWN), dtype=np.float32)
            rows += np.einsum("nk,nkd->nd", along, own[labels])
            x[start : start + len(labels)] = np.maximum(rows + shift, 0)
        x.flush()


def fit_files(folder: Path, c: int, threads: int) -> dict[str, Any]:
    """Fit to the files of a folder; meant for a process of its own, whose peak memory is that of the fit."""
    torch.set_num_threads(threads)
    x, y = np.load(folder / "x_train.npy", mmap_mode="r"), np.load(folder / "y_train.npy")
    with threadpool_limits(threads):
        before, wall, cpu = _peak_bytes(), time.perf_counter(), time.process_time()
        model = CapsuleClassifier(c).fit(x, y)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = _peak_bytes()
        predicted = model.predict(np.load(folder / "x_test.npy"))
    error = 100 * float((predicted != np.load(folder / "y_test.npy")).mean())
    return {"error": error, "seconds": wall, "cpu_seconds": cpu, "peak_bytes": peak, "peak_bytes_before": before}


def _peak_bytes() -> int:
    """The most memory that this process has had, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(n: int = N, tested: int = TESTED, *, d: int = D, classes: int = L, c: int = C, report: Report = silent) -> Any:
    """Make the files in a temporary folder, and fit to them in a new process; the result is ready for JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        report("making features", 0, 2)
        make_files(Path(scratch), n, tested, d=d, classes=classes)
        report("fitting", 1, 2)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            measured = process.submit(fit_files, Path(scratch), c, torch.get_num_threads()).result()
    return {"machine": machine(), "n": n, "d": d, "classes": classes, "c": c, "tested": tested, **measured}


def table(results: dict[str, Any]) -> Table:
    """Time, peak memory and error of the fit."""
    headings = ("features", "classes", "c", "fit, s", "CPU seconds", "peak memory, GB", "error %")
    numbers = (f"{results['seconds']:.1f}", f"{results['cpu_seconds']:.1f}", f"{results['peak_bytes'] / 1e9:.2f}")
    sizes = (f"{results['n']:,} x {results['d']}, float16", f"{results['classes']:,}", str(results["c"]))
    title = f"{results['machine']['threads']} threads"
    return Table(headings, [(*sizes, *numbers, f"{results['error']:.2f}")], title=title)
