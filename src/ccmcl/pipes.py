"""The far end of ``workers``: a process that hears lines of JSON on standard input and answers on standard output."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from ccmcl.system import keep_freed_memory

Say = Callable[..., None]
Heard = queue.Queue[dict[str, Any]]


def opened(stop: threading.Event) -> tuple[Say, Heard]:
    """Take over standard input and output, and return how to speak and what is heard.

    A line that says ``stop`` sets ``stop``. The keyboard is left to the process that started this one.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed must not get between the lines

    def say(**words: object) -> None:
        try:
            print(json.dumps(words), file=out, flush=True)
        except BrokenPipeError:  # the process that listens is gone; what it wanted is of no use to anybody
            os._exit(0)

    return say, listen(sys.stdin, stop)


def listen(stream: TextIO, stop: threading.Event) -> Heard:
    """Read lines in the background, and end the process at once when the one that writes them is gone."""
    heard: Heard = queue.Queue()

    def read() -> None:
        for line in stream:
            words = json.loads(line)
            if words.get("stop"):
                stop.set()
            else:
                heard.put(words)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return heard
