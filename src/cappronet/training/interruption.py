"""Ctrl-C and SIGTERM as a flag that a run looks at between its steps, and processes that start without hearing them."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["SIGNALS", "Interruption", "signals_blocked", "unblock_signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Turns Ctrl-C and SIGTERM into a flag while the block runs; a second one stops at once.

    Signals within a second are one request: Ctrl-C reaches a launcher and its processes, and the launcher forwards it.
    Inside the block of another one, both have the flag.

    Args:
        patient: whether further signals are ignored, so that none of them interrupts the saving. It is, inside the
            block of one that is patient.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.signal: int | None = None
        self.patient = patient
        self._noted = 0.0
        self._before: dict[int, Any] = {}
        self._outer: Interruption | None = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # Python gives signals to no other
            outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            if isinstance(outer, Interruption):
                self._outer, self.patient, self._noted = outer, self.patient or outer.patient, outer._noted
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
            if self._outer is not None and self._outer.signal is not None:
                self.signal = self._outer.signal
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._outer is not None and self._outer.signal is None:
            self._outer.signal, self._outer._noted = number, now
        if self.signal is None:
            self.signal, self._noted = number, now
        elif not self.patient and now > self._noted + 1:
            raise KeyboardInterrupt


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM; a process that is started in the block holds them back until it unblocks them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """In a process that was started with its signals blocked: receive them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
