"""What a function that runs in a trainer can ask of the launcher, and tell the driver."""

from __future__ import annotations

import os

from spark_hvd.settings import ATTEMPT, TELL_FD

_LONGEST = 4000


def attempt() -> int:
    """How often this run was started before (``max_retries`` of ``run``); 0 at the first time, and outside of one."""
    return ATTEMPT.get()


def log_to_driver(message: object) -> None:
    """Show a message on the driver, whatever of the trainers' output is shown there; outside of a run print it.

    Parameters
    ----------
    message
        Its text is cut at 4,000 characters.
    """
    text = str(message)[:_LONGEST].rstrip("\n")
    descriptor = TELL_FD.get()
    if descriptor < 0:
        print(text, flush=True)
        return
    os.write(descriptor, text.encode(errors="replace") + b"\n")
