"""A script that is ended by SIGTERM ends what it has started, as one that is interrupted does."""
import signal
import sys


def clean_up_when_ended():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
