"""Waiting for a condition rather than for a time."""

import time


def until(condition, seconds=30, what="the condition"):
    """Poll `condition` until it is true; its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.02)
