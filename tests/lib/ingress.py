"""What tests of ingress filters share."""

from .wait import until

#: Sends datagrams without end.
SENDER = """
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    s.sendto(b"x" * 20, ("10.0.0.2", 9))
    time.sleep(0.001)
"""


def rules(w, port):
    """The rules of a port, each with what it has counted: (text, packets, bytes, dropped)."""
    ports = w.json("ingress", port, "show")["ports"]
    return [(r["rule"], r["packets"], r["bytes"], r["dropped"]) for p in ports for r in p["rules"]]


def replace_while_packets_flow(w, a, b, texts):
    """Replaces filters by one another that all drop datagrams to port 9 and let pings pass: none of the first gets by, and
    none of the others is lost."""
    w.cli("ingress", a.port, "set", texts[0])
    sniffer = b.sniff("udp", "port", "9")
    a.start("python3", "-c", SENDER)
    until(lambda: rules(w, a.port)[0][1] > 10, what="datagrams that are dropped")
    pings = a.pings("10.0.0.2", interval=0.01)
    for replaced in range(1, 30):
        w.cli("ingress", a.port, "set", texts[replaced % len(texts)])
    sent, answered = pings.stop()
    assert sent == answered > 10
    assert "10.0.0.2.9" not in sniffer.seen()
    w.cli("ingress", a.port, "del")
    sniffer.sees("10.0.0.2.9")
