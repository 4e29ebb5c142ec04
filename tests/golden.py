#!/usr/bin/env python3
"""Records the messages that Debian's ovs-ofctl sends for flows with every field and action (`lib.flows`), and how it prints them:
crates/openflow/testdata/golden.txt, which unit tests of crates/openflow read back.

usage: tests/golden.py
"""

import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from lib import flows  # noqa: E402

PAGE = Path(__file__).parents[1] / "crates/openflow/testdata/golden.txt"
#: By the formats of flows that a client asks for: OpenFlow 1.0 has matches of its own, and Nicira's.
VERSIONS = {1: ["-O", "OpenFlow10", "-F", "NXM+table_id"], 4: ["-O", "OpenFlow13"], 6: ["-O", "OpenFlow15"]}


def sent(options, texts):
    """The flow-mods that ovs-ofctl sends to a switch that only says hello, and that it is done."""
    with tempfile.TemporaryDirectory() as dir, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{dir}/s")
        server.listen()
        client = subprocess.Popen(["ovs-ofctl", "--no-names", *options, "add-flows", f"unix:{dir}/s", "-"], stdin=subprocess.PIPE,
                                  text=True)
        client.stdin.write("".join(text + "\n" for text in texts))
        client.stdin.close()
        peer, _ = server.accept()
        stream, found = peer.makefile("rb"), []
        while head := stream.read(8):
            version, kind, length, xid = struct.unpack("!BBHI", head)
            message = head + stream.read(length - 8)
            if kind == 0:
                want = {"OpenFlow10": 1, "OpenFlow13": 4, "OpenFlow15": 6}[options[1]]
                peer.sendall(struct.pack("!BBHI", want, 0, 8, xid))
            elif kind == (18 if version == 1 else 20):
                peer.sendall(struct.pack("!BBHI", version, kind + 1, 8, xid))
            elif kind == 14 or kind == 4 and message[12:16] == struct.pack("!I", 13):
                # All the same number, so that a page made again has only what has changed.
                found.append(message[:4] + struct.pack("!I", 1) + message[8:])
        assert client.wait() == 0
        return found


def printed(message):
    """As ovs-ofctl prints it, in one line."""
    text = subprocess.run(["ovs-ofctl", "--no-names", "ofp-print", message.hex()], capture_output=True, text=True, check=True).stdout
    return " ".join(text.split())


def carries(options, text):
    r = subprocess.run(["ovs-ofctl", *options, "parse-flow", text], capture_output=True, text=True)
    return r.returncode == 0 and "actions=" in r.stdout


def main():
    actions = [f"{match},actions={text}".lstrip(",") for match, text in map(flows.action, flows.ACTIONS)]
    seen, matches = set(), []
    for name, text in flows.matches():
        # Registers are alike.
        # ovs-ofctl shows nothing of tun_erspan_dir, and sends it with a mask of all its bits.
        if (name.rstrip("0123456789") not in seen or "reg" not in name) and name != "tun_erspan_dir":
            matches.append(text + ",actions=drop")
        seen.add(name.rstrip("0123456789"))
    settings = [f"{text},actions=drop" for text in flows.SETTINGS]
    lines = ["# Flow-mods as Debian's ovs-ofctl 3.1.0 sends and prints them: the text, a tab, the message. Made by tests/golden.py."]
    for version, options in VERSIONS.items():
        texts = [text for text in (actions if version == 4 else matches + settings + actions) if carries(options, text)]
        messages = sent(options, texts)
        assert len(messages) == len(texts), (options, len(messages), len(texts))
        lines += [f"{printed(message)}\t{message.hex()}" for message in messages]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
