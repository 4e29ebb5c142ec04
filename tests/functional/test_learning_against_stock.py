"""Stock OVS is the judge of NORMAL: VLANs, mirrors, protected ports and multicast snooping, by random bridges and frames."""

import pytest
from conftest import until
from lib.l2_scenario import LearningScenario
from lib.scenario import PORTS
from lib.stock import DUMMY, EXPECTED, Side, stock  # noqa: F401


def build(side, scenario):
    side.build(scenario)
    by_name = [word for number in PORTS for word in (f"--id=@p{number}", "get", "port", f"p{number}", "--")]
    for words in scenario.mirrors:
        side.database.vsctl(*by_name, "--id=@m", "create", "mirror", *words, "--", "add", "bridge", "br0", "mirrors", "@m")
    side.ofctl("del-flows")
    for flow in scenario.flows:
        side.ofctl("add-flow", flow)


def table(side, command):
    """What has been learnt, but for its age; none where nothing is to be learnt."""
    return sorted(" ".join(line.split()[:3]) for line in (side.call(command, "br0").get("result") or "").splitlines())


def more(before, after):
    """Which frames each port has sent since. OVS sends some twice to a port that is a member of a group and leads to a router."""
    return {port: set(frames[len(before[port]):]) for port, frames in after.items()}


@pytest.mark.parametrize("first", range(0, 20, 4))
def test_random_bridges(ovs, stock, first):  # noqa: F811
    ovs.start(*DUMMY)
    weir, flooded = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl"), 0
    for seed in range(first, first + 4):
        scenario = LearningScenario(seed)
        for side in (stock, weir):
            build(side, scenario)
        for number, (port, frame) in enumerate(scenario.packets):
            # OVS is to look at its tables for each: its flows go on for a while when more has been learnt.
            stock.call("revalidator/purge")
            before = [side.sent() for side in (stock, weir)]
            for side in (stock, weir):
                assert side.call("netdev-dummy/receive", f"p{port}", frame)["error"] is None
            weir.call("revalidator/wait")
            sent = lambda: [more(*both) for both in zip(before, [side.sent() for side in (stock, weir)], strict=True)]  # noqa: B023, E731
            try:
                until(lambda: sent()[0] == sent()[1], 3, "the same frames")
            except AssertionError:
                assert sent()[1] == sent()[0], f"seed {seed}: packet {number}, {frame} at port {port}; {vars(scenario)}"
            for command in ("fdb/show", "mdb/show"):
                assert table(weir, command) == table(stock, command), f"seed {seed}: packet {number}, {frame} at port {port}; {vars(scenario)}"
            flooded += sum(map(len, sent()[0].values()))
    assert flooded > 100, "the scenarios have no traffic"
