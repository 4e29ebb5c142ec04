"""Frames and header fields of scapy: the vectors that the unit tests read are what scapy gives today."""

import subprocess

from conftest import ROOT

GENERATOR = ROOT / "tests/scapy/make_frames.py"


def test_vectors_are_current(tmp_path):
    out = tmp_path / "frames.txt"
    subprocess.run(["/usr/bin/python3", GENERATOR, out], check=True, timeout=100)
    committed = (GENERATOR.parent / "frames.txt").read_text()
    assert out.read_text() == committed
    assert committed.count("\n") > 50
