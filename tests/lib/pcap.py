"""Capture files, written and read."""

import struct
from pathlib import Path


def write_pcap(path, frames):
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for n, frame in enumerate(frames):
            f.write(struct.pack("<IIII", n, 0, len(frame), len(frame)) + frame)


def read_pcap(path):
    """The frames that a file has whole: it may still be written."""
    data, at, frames = Path(path).read_bytes(), 24, []
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        if at + 16 + length > len(data):
            break
        frames.append(data[at + 16:at + 16 + length])
        at += 16 + length
    return frames


def frames(path):
    """The same in hexadecimal."""
    return [frame.hex() for frame in read_pcap(path)]
