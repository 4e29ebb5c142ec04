"""The dashboard: its JSON against what the commands say, its page in Chromium, and those who would wear it out.

Screenshots of the page go to the folder that DASHBOARD_SHOTS names, where it is set.
"""

import contextlib
import json
import os
from pathlib import Path
from urllib.parse import urlencode

import pytest
from conftest import until
from lib.browser import DESK, PHONE, Browser
from lib.daemon import config, dummy_bridge
from test_controllers import free_port
from test_metrics import get
from test_silent_peers import crowd  # noqa: F401

ARP = "ffffffffffff02000000000108060001" + "00" * 44
#: A port whose name would be markup if the page took it for that.
MARKUP = "<img/src=x>"


class Api:
    """Asks a daemon's HTTP server."""

    def __init__(self, port):
        self.address = ("127.0.0.1", port)
        self.url = f"http://127.0.0.1:{port}/"

    def get(self, path, headers=None, **parameters):
        """(status, headers, body) of /api/PATH."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        return get(self.address, f"/api/{path}{query}", headers=headers, timeout=30)

    def __call__(self, path, **parameters):
        status, headers, body = self.get(path, **parameters)
        assert (status, headers["Content-Type"]) == (200, "application/json"), (path, parameters, body)
        return json.loads(body)

    def refusal(self, path, **parameters):
        status, _, body = self.get(path, **parameters)
        assert status == 400, (status, body)
        return body

    def measured(self, more=1):
        """What is measured now, once that is of a time after this call."""
        before = self("now")["sample"]
        until(lambda: self("now")["sample"] >= before + more, 20, "a sample")
        return self("now")


@pytest.fixture
def api(ovs):
    """The database's switch with dummy ports p1 to p3 and an HTTP server."""
    ovs.start("--enable-dummy")
    port = free_port()
    ovs.vsctl("set", "Open_vSwitch", ".", f'other_config:http="127.0.0.1:{port}"')
    dummy_bridge(ovs, "p1", "p2", "p3")
    until(lambda: "http: listening on" in ovs.log())
    return Api(port)


def test_what_was_measured_is_what_commands_say(ovs, api):
    ovs.ofctl("add-flow", "br0", "table=0,priority=9,in_port=p1,actions=goto_table:3", version=13)
    ovs.ofctl("add-flow", "br0", "table=3,priority=7,in_port=p1,cookie=0x2a,actions=drop", version=13)
    first = api.measured()
    for _ in range(20):
        ovs.appctl("netdev-dummy/receive", "p1", ARP)
    # What was received is in one of the samples that follow.
    samples = lambda: api("history", after=first["sample"])
    port_of = lambda answer, name: next(port for port in answer["ports"] if port["name"] == name)

    def times():
        answer = samples()
        known = api("history")["time"]
        before = known[len(known) - len(answer["time"]) - 1:-1]
        return [now - then for then, now in zip(before, answer["time"])]

    total = lambda column: sum(rate * time for rate, time in zip(column, times()))
    until(lambda: total(samples()["switch"]["dropped"]) > 19, 20, "drops in the history")
    answer = samples()
    assert 19 < total(port_of(answer, "p1")["rx_packets"]) < 21
    assert 19 < total(answer["switch"]["rx_packets"]) < 21
    assert answer["from"] == first["sample"] + 1 and len(answer["time"]) == answer["to"] - answer["from"] + 1
    assert port_of(answer, "p2")["rx_packets"] == [0] * len(answer["time"])
    # Ports, workers and the rest are those of the reports.
    now = api("now")
    assert {(port["bridge"], port["name"]) for port in now["ports"]} == {(p["bridge"], p["name"]) for p in ovs.json("ports")["ports"]}
    assert [worker["worker"] for worker in now["stats"]["workers"]] == [w["worker"] for w in ovs.json("stats")["workers"]]
    assert (now["version"], now["errors"]) == (ovs.json("show")["version"], [])
    until(lambda: {t["table"]: (t["lookups"], t["matched"]) for t in api("tables")["tables"]} == {0: (20, 20), 3: (20, 20)}, 20)
    [drop] = api("top", of="drops")["rows"]
    assert (drop["packets"], drop["reason"], drop["rule"]["flow"]["table"], drop["rule"]["flow"]["flow"]["cookie"]) == (20, "rule", 3, 42)
    told = lambda answer: [(p["packet"], p["outcome"], [step["text"] for step in p["steps"]]) for p in answer["passes"]]
    assert told(api("explain", bridge="br0", packet="in_port=p1,arp")) == told(ovs.json("explain", "br0", "in_port=p1,arp"))


def test_who_talks_to_whom(ovs, api):
    ovs.ofctl("add-flow", "br0", "in_port=p1,actions=output:p2,output:p3")
    ovs.ofctl("add-flow", "br0", "in_port=p2,actions=output:p1")
    api("top", of="pairs")
    for _ in range(10):
        ovs.appctl("netdev-dummy/receive", "p1", ARP)
        ovs.appctl("netdev-dummy/receive", "p1", ARP)
        ovs.appctl("netdev-dummy/receive", "p2", ARP)
    pairs = lambda: api("top", of="pairs")
    # The first packet of each flow was not in the datapath's flow yet.
    until(lambda: {(row["from"], row["to"]): row["packets"] for row in pairs()["rows"]}
          == {("p1", "p2"): 19, ("p1", "p3"): 19, ("p2", "p1"): 9}, what="the packets of each pair")
    answer = pairs()
    assert (answer["of"], answer["flows"]) == (3, 2)
    assert [row["to"] for row in api("top", of="pairs", port="p2", most=1)["rows"]] == ["p1"]
    assert json.loads(ovs.appctl("weir/top", "pairs"))["of"] == 3


def test_topology_is_that_of_the_configuration(ovs, api):
    ovs.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy", "--",
              "add-port", "br0", "to1", "--", "set", "interface", "to1", "type=patch", "options:peer=to0", "--",
              "add-port", "br1", "to0", "--", "set", "interface", "to0", "type=patch", "options:peer=to1", "--",
              "add-port", "br1", "vx0", "--", "set", "interface", "vx0", "type=vxlan", "options:remote_ip=192.0.2.7", "--",
              "set", "port", "p2", "tag=7", "--", "--id=@p1", "get", "port", "p1", "--", "--id=@p3", "get", "port", "p3", "--",
              "--id=@m", "create", "mirror", "name=watch", "select_src_port=@p1", "output_port=@p3", "--",
              "set", "bridge", "br0", "mirrors=@m")
    until(lambda: len(api("topology")["bridges"]) == 2 and any(p["name"] == "vx0" for p in api("topology")["ports"]))
    topology = api("topology")
    ports = {port["name"]: port for port in topology["ports"]}
    assert (ports["to1"]["peer"], ports["to0"]["peer"], ports["vx0"]["remote"]) == ("to0", "to1", "192.0.2.7")
    assert (ports["p2"]["vlan_mode"], ports["p2"]["tag"], ports["p1"]["tag"]) == ("access", 7, None)
    [mirror] = next(bridge for bridge in topology["bridges"] if bridge["name"] == "br0")["mirrors"]
    assert (mirror["sources"], mirror["destinations"], mirror["output_port"]) == (["p1"], [], "p3")
    shown = {(p["name"], p["ofport"], p["type"]) for bridge in ovs.json("show")["bridges"] for p in bridge["ports"]}
    assert {(p["name"], p["ofport"], p["type"]) for p in topology["ports"]} == shown
    ovs.expect("nowhere0|no such device|No such device")
    ovs.vsctl("--no-wait", "add-port", "br0", "nowhere0")
    until(lambda: any(port["name"] == "nowhere0" and port["link"] == "error" and port["error"] for port in api("topology")["ports"]))
    until(lambda: any(port["name"] == "nowhere0" and port["link"] == "error" for port in api("now")["ports"]), 20)


def test_a_search_is_bounded_and_goes_on(ovs, api, tmp_path):
    flows = tmp_path / "flows"
    many = 25_000
    flows.write_text("".join(f"table={n % 5},priority={n % 7},ip,nw_dst=10.{n >> 16}.{n >> 8 & 255}.{n & 255},actions=output:p2\n"
                             for n in range(many)))
    ovs.ofctl("add-flows", "br0", str(flows), timeout=120)
    texts, from_, requests = [], "", 0
    while from_ is not None:
        answer = api("flows", text="NW_DST=10.0.7 p2", most=500, **({"from": from_} if from_ else {}))
        assert answer["looked_at"] <= 20_000 and len(answer["rows"]) <= 500
        texts += [row["text"] for row in answer["rows"]]
        from_, requests = answer["next"], requests + 1
    wanted = {f"10.0.{n >> 8 & 255}.{n & 255}" for n in range(many) if f"10.0.{n >> 8}.{n & 255}".startswith("10.0.7")}
    found = [text.split("nw_dst=")[1].split()[0].split(",")[0] for text in texts]
    assert len(found) == len(set(found)) and set(found) == wanted
    assert requests >= 3
    # What no flow has costs no more.
    answer = api("flows", text="nw_dst=10.255")
    assert (answer["rows"], answer["looked_at"]) == ([], 20_000) and answer["next"]
    rest = api("flows", text="nw_dst=10.255", **{"from": answer["next"]})
    assert (rest["rows"], rest["next"]) == ([], None) and rest["looked_at"] == many + 1 - 20_000
    # One table, and what is more exact.
    answer = api("flows", table=2, bridge="br0", text="nw_dst=10.0.0.72", most=1)
    assert "table=2" in answer["rows"][0]["text"] and "nw_dst=10.0.0.72 " in answer["rows"][0]["text"]
    ovs.appctl("netdev-dummy/receive", "p1", "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),"
               "ipv4(src=10.9.9.9,dst=10.0.0.70,proto=17,tos=0,ttl=64,frag=no),udp(src=1,dst=2)")
    until(lambda: any("actions:p2" in row["text"] for row in api("flows", of="datapath", text="in_port(p1)")["rows"]))
    assert api("flows", of="datapath", text="in_port(p3)")["rows"] == []


def test_what_is_wrong_with_a_request_is_said(ovs, api):
    for path, parameters, says in [
        ("now", {"x": "1"}, "not a parameter of this path"), ("history", {"after": "x"}, "a number from 0"),
        ("top", {}, "of=flows, rules, drops or pairs"), ("top", {"of": "ports"}, "neither flows"),
        ("top", {"of": "drops", "most": "0"}, "from 1 to 1000"), ("top", {"of": "flows", "interval": "60"}, "not a parameter"),
        ("flows", {"of": "all"}, "openflow or datapath"), ("flows", {"bridge": "nobr"}, "no such bridge: nobr"),
        ("flows", {"table": "255"}, "from 0 to 254"), ("flows", {"from": "br0"}, "not a place"), ("flows", {"from": "br0/0:0"}, "not a place"),
        ("flows", {"of": "datapath", "table": "1"}, "of no bridge and no table"), ("flows", {"most": "501"}, "from 1 to 500"),
        ("explain", {}, "packet= is missing"), ("explain", {"bridge": "nobr", "packet": "arp"}, "nobr"),
        ("explain", {"packet": "--ct-next=new"}, "an option"), ("explain", {"bridge": "br0", "port": "p9", "packet": "arp"}, "p9"),
        ("explain", {"bridge": "br0", "packet": "nw_src=10.0.0.0/8"}, "mask"),
    ]:
        assert says in api.refusal(path, **parameters), (path, parameters)
    # A place behind the last flow, or in a bridge that has gone, is an end.
    for place in ("br0/254:0:99999999", "zz/0:0:0"):
        assert api("flows", **{"from": place}) == {"rows": [], "looked_at": 0, "next": None}
    assert api("flows", of="datapath", **{"from": str(2**64 - 1)})["next"] is None
    assert api.get("nothing")[0] == 404
    assert get(api.address, "/api/flows?text=" + "x" * 20_000)[0] in (400, 414, 431)
    for query in ("?text=%ff%00%", "?text=%3Cscript%3E", "?&&&=", "?text"):
        assert get(api.address, "/api/flows" + query)[0] in (200, 400), query


def test_only_the_files_of_the_page_are_had_without_the_token(ovs, api):
    (ovs.dir / "token").write_text("s3cret")
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:http-token-file=token")
    until(lambda: get(api.address)[0] == 401)
    paths = ("now", "history", "topology", "tables", "top?of=drops", "flows", "explain?packet=arp")
    for path in paths:
        assert get(api.address, f"/api/{path}")[0] == 401, path
        assert get(api.address, f"/api/{path}", headers={"Authorization": "Bearer wrong"})[0] == 401, path
        assert get(api.address, f"/api/{path}", headers={"Authorization": "Bearer s3cret"})[0] in (200, 400), path
    for path in ("/", "/main.js", "/style.css", "/icon.svg"):
        status, headers, _ = get(api.address, path)
        assert status == 200 and "script-src 'self'" in headers["Content-Security-Policy"], path
        assert "unsafe" not in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    ovs.vsctl("remove", "Open_vSwitch", ".", "other_config", "http-token-file")
    until(lambda: get(api.address)[0] == 200)
    # Without one, no name but the machine's own is answered, not even with a file.
    for path in ("/", "/main.js", *(f"/api/{path}" for path in paths)):
        assert get(api.address, path, headers={"Host": "evil.example"})[0] == 403, path
        assert get(api.address, path, method="POST")[0] == 405, path


@pytest.mark.parametrize("path", ["now", "topology", "top?of=pairs", "flows?of=datapath", "explain?bridge=br0&packet=in_port=1,arp"])
def test_peers_that_do_not_read_hold_up_nobody(weir, net, crowd, path):  # noqa: F811
    port = free_port()
    ports = [(f"vnet{n}", "dummy", "") for n in range(300)]
    w = weir(f'http = "127.0.0.1:{port}"\n' + config(ports))
    api = Api(port)
    until(lambda: "http: listening on" in w.log())
    assert len(api.measured()["ports"]) == len(api("topology")["ports"]) == 300
    assert len(api("history")["ports"]) == 16
    memory = lambda: w.json("metrics")["result"].split("\nprocess_resident_memory_bytes ")[1].split("\n")[0]
    before = float(memory())
    crowd(api.address, f"GET /api/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 20, many=100)
    answered = 0
    for _ in range(3):
        assert api("now")["version"]
        assert w.cli("show", timeout=20).returncode == 0
        # Others may be asking for as much as is worked on at a time.
        answered += api.get("explain", bridge="br0", packet="in_port=1,arp")[0] in (200, 503)
    assert answered == 3
    assert float(memory()) < before + (64 << 20)


@pytest.fixture
def live(ovs, net):
    """Two bridges with hosts that ping, a patch, a mirror, a tunnel, and a port whose name is markup."""
    ovs.start("--enable-dummy")
    hosts = [net.host(f"10.0.0.{n}/24") for n in (1, 2, 3)]
    a, b, c = hosts
    port = free_port()
    add = lambda bridge, name, kind=None, *options: [
        "--", "add-port", bridge, name, *(["--", "set", "interface", name, f"type={kind}", *options] if kind else [])]
    ovs.vsctl("set", "Open_vSwitch", ".", f'other_config:http="127.0.0.1:{port}"', "--",
              "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "--",
              "add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev",
              *add("br0", a.port), *add("br0", b.port), *add("br1", c.port),
              *add("br0", "patch-br1", "patch", "options:peer=patch-br0"), *add("br1", "patch-br0", "patch", "options:peer=patch-br1"),
              *add("br1", "vxlan0", "vxlan", "options:remote_ip=192.0.2.7"), *add("br0", "span0", "dummy"), *add("br0", MARKUP, "dummy"))
    ovs.vsctl("--", "--id=@p", "get", "port", a.port, "--", "--id=@o", "get", "port", "span0", "--", "--id=@m", "create", "mirror", "name=watch",
              "select_src_port=@p", "output_port=@o", "--", "set", "bridge", "br0", "mirrors=@m")
    for flow in ("table=0,priority=100,icmp,actions=goto_table:10", "table=10,priority=9,icmp,nw_dst=10.0.0.9,cookie=0x2a,actions=drop",
                 "table=10,priority=1,actions=NORMAL", "table=0,priority=5,actions=goto_table:20",
                 "table=20,priority=1,actions=NORMAL"):
        ovs.ofctl("add-flow", "br0", flow, version=13)
    until(lambda: "http: listening on" in ovs.log())
    assert a.ping("10.0.0.2") == 3 and a.ping("10.0.0.3") == 3
    for host, other in ((a, "10.0.0.2"), (a, "10.0.0.3"), (b, "10.0.0.3")):
        host.start("ping", "-q", "-i", "0.02", other)
    return ovs, Api(port), hosts


@pytest.fixture
def browser():
    with contextlib.closing(Browser()) as browser:
        yield browser


def shoot(browser, name):
    if folder := os.environ.get("DASHBOARD_SHOTS"):
        browser.screenshot(Path(folder, f"{name}.png"))


#: The contrast of each text with what is behind it, by WCAG 2.2's formula; the worst ones.
CONTRAST = """(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const rect = e.namespaceURI.endsWith("svg") && e.tagName === "g" && e.querySelector("rect");
      const color = parse(rect ? getComputedStyle(rect).fill : getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.matches("option, title, noscript")) continue;
    const style = getComputedStyle(element);
    const [x, y] = [light(parse(element.closest("svg") ? style.fill : style.color)), light(behind(element))];
    const contrast = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${element.tagName} ${element.textContent.trim().slice(0, 30)}`);
  }
  return found;
})()"""


def test_the_page_shows_what_the_switch_does(live, browser):
    ovs, api, (a, b, c) = live
    browser.window(DESK)
    browser.open(api.url)
    browser.wait("document.documentElement.dataset.sample > 0", 20)
    # All is well, once the hosts have found each other.
    browser.wait("document.querySelector('#verdict').innerText === 'No packets are dropped'", 25)
    assert ovs.json("show")["version"] in browser.text("#identity")
    # Topology: each port has a cell, also that whose name is markup.
    cells = browser.run("[...document.querySelectorAll('#picture .cell')].map((cell) => cell.dataset.key)")
    assert sorted(cells) == sorted(f"{port['bridge']}/{port['name']}" for port in api("topology")["ports"])
    assert f"br0/{MARKUP}" in cells and browser.run("document.images.length") == 0
    assert browser.run("[document.querySelectorAll('#picture .patch').length, document.querySelectorAll('#picture .mirror').length]") == [1, 1]
    # Who talks to whom, in the table and as arrows.
    browser.wait("document.querySelectorAll('#pairs tbody tr').length >= 6")
    pairs = {(row[0], row[1]) for row in browser.rows("#pairs")}
    assert {(a.port, b.port), (b.port, a.port), (a.port, c.port), (c.port, b.port)} <= pairs
    browser.wait("document.querySelectorAll('#picture .talk').length >= 6")
    # Workers, ports, tables: the numbers of the reports.
    workers = ovs.json("stats")["workers"]
    assert [row[0].split()[0] for row in browser.rows("#workers table")] == [str(worker["worker"]) for worker in workers]
    browser.wait("document.querySelector('#workers tbody').innerText.includes('exact-match cache')")
    ports = {row[0]: row[1] for row in browser.rows("#ports")}
    assert ports[a.port] == "up" and MARKUP in ports
    tables = {(table["bridge"], table["table"]): table["flows"] for table in api("tables")["tables"]}
    shown = browser.run("[...document.querySelectorAll('#pipelines > div')].flatMap((div) => [...div.querySelectorAll('li')].map((li) =>"
                        "[div.dataset.key, Number(li.dataset.key), parseInt(li.querySelector('span').innerText)]))")
    assert {(bridge, table): flows for bridge, table, flows in shown} == tables
    browser.wait("/[1-9].* lookups.s\\s+100 % hit$/.test(document.querySelector('[data-key=br0] [data-key=\"10\"]').innerText)")
    assert browser.wait("document.querySelectorAll('#throughput .curve').length >= 2")
    # Packets are dropped by a rule, which is named.
    b.run("ip", "neigh", "replace", "10.0.0.9", "lladdr", "02:00:00:00:00:99", "dev", "eth0")
    b.start("ping", "-q", "-i", "0.02", "10.0.0.9")
    browser.wait("document.querySelector('#verdict').innerText.includes('dropped as configured')", 20)
    browser.wait("document.querySelector('#drops tbody')?.innerText.includes('cookie=0x2a')", 20)
    assert browser.run("document.querySelector('#status').className") == "decided"
    assert "rule" in browser.text("#verdict-detail")
    # A link that goes down is seen.
    c.run("ip", "link", "set", "eth0", "down")
    browser.wait(f"document.querySelector('#picture [data-key=\"br1/{c.port}\"]').classList.contains('down')", 20)
    searches_and_traces(browser, api, b)
    looks(browser)
    assert browser.errors == []


def searches_and_traces(browser, api, host):
    """With the keyboard alone."""
    browser.focus("#search [name=text]")
    browser.type("nw_dst=10.0.0.9")
    browser.key("Enter")
    browser.wait("document.querySelectorAll('#results li').length === 1")
    assert "cookie=0x2a" in browser.text("#results li") and "1 flow found" in browser.text("#found")
    # What is wrong is said, and harms nothing.
    browser.focus("#explain [name=packet]")
    browser.type("<script>")
    before = len(browser.errors)
    browser.key("Enter")
    browser.wait("document.querySelector('#explained .problem') !== null")
    refused = browser.errors[before:]
    assert len(refused) <= 1 and all("400" in error for error in refused)
    del browser.errors[before:]
    assert browser.run("document.scripts.length") == 1
    browser.run("document.querySelector('#explain [name=packet]').value = ''")
    browser.focus("#explain [name=bridge]")
    browser.run("document.querySelector('#explain [name=bridge]').value = 'br0'")
    browser.key("Tab")
    browser.type(host.port)
    browser.key("Tab")
    browser.type("icmp,nw_src=10.0.0.1,nw_dst=10.0.0.9")
    browser.key("Enter")
    browser.wait("document.querySelector('#explained .way') !== null")
    packet = {"bridge": "br0", "port": host.port, "packet": "icmp,nw_src=10.0.0.1,nw_dst=10.0.0.9"}
    rules = [step["rule"] for step in api("explain", **packet)["passes"][0]["steps"] if step.get("rule")]
    stations = browser.run("[...document.querySelectorAll('#explained .way .table title')].map((title) => title.textContent)")
    assert [rule["table"] for rule in rules] == [0, 10]
    assert [text.split()[1:4:2] for text in stations] == [[str(rule["table"]), str(rule["priority"])] for rule in rules]
    assert "rule: A flow says so" in browser.text(".outcome.dropped")
    # From the top, the first stop is the way past the heading; each stop is seen.
    browser.run("document.activeElement.blur(), window.scrollTo(0, 0)")
    browser.run("document.querySelector('.skip').focus()")
    stops = []
    for _ in range(60):
        stops.append(browser.run("""(() => {
          const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
          const box = document.activeElement.getBoundingClientRect();
          return [document.activeElement.tagName, document.activeElement.matches(':focus-visible') && outlineStyle !== 'none'
            && parseFloat(outlineWidth) >= 2, box.top >= 0 && box.bottom <= innerHeight + 400];
        })()"""))
        browser.key("Tab")
    kinds = {kind for kind, _, _ in stops}
    assert {"A", "SELECT", "BUTTON", "INPUT", "g", "svg"} <= kinds, kinds
    assert all(visible for kind, visible, _ in stops[1:] if kind != "BODY"), stops
    # Graphs are read with arrows; a port's cell says more.
    browser.focus("#throughput > svg")
    browser.key("ArrowLeft", "ArrowLeft")
    assert ":" in browser.run("document.querySelector('#throughput figcaption').children[1].innerText")
    browser.run("document.querySelector('#picture .cell').focus()")
    browser.key("Enter")
    assert "OpenFlow port" in browser.text("#port-detail")
    # What can be worked has a name.
    unnamed = browser.run("""[...document.querySelectorAll('input, select, button, [role=button], [role=region], [role=img]')]
      .filter((e) => !e.labels?.length && !e.innerText?.trim() && !e.textContent.trim() && !e.getAttribute('aria-label')
        && !e.getAttribute('aria-labelledby')).map((e) => e.outerHTML)""")
    assert unnamed == []
    landmarks = browser.run("['header', 'nav', 'main', 'section[aria-labelledby]'].map((tag) => document.querySelectorAll(tag).length)")
    assert landmarks[:3] == [1, 1, 1] and landmarks[3] >= 6


def looks(browser):
    """On a desk and a phone, in light and dark: nothing is cut off, and all text can be read."""
    for name, size in (("desk", DESK), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            browser.window(size, scheme, "reduce")
            browser.wait(f"innerWidth === {size[0]} && document.querySelector('#throughput > svg').clientWidth <= {size[0]}")
            browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            shoot(browser, f"{name}-{scheme}")
            assert browser.run("document.querySelector('#explained .way').getBoundingClientRect().width"
                               " === document.querySelector('#explained').clientWidth")
            assert browser.run("document.documentElement.scrollWidth") <= size[0], (name, scheme)
            assert browser.run(CONTRAST) == [], (name, scheme)
            moving = browser.run("[document.getAnimations().length, getComputedStyle(document.documentElement).scrollBehavior]")
            assert moving == [0, "auto"]


def test_the_page_asks_for_the_token_and_says_when_nobody_answers(ovs, api, browser):
    (ovs.dir / "token").write_text("s3cret")
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:http-token-file=token")
    until(lambda: get(api.address)[0] == 401)
    browser.window(PHONE, "dark")
    browser.open(api.url)
    browser.wait("document.querySelector('#login').hidden === false")
    assert browser.run("document.querySelector('#content').hidden")
    for token in ("wrong", "s3cret"):
        browser.run("document.querySelector('#token').value = ''")
        browser.focus("#token")
        browser.type(token)
        browser.key("Enter")
        if token == "wrong":
            browser.wait("document.querySelector('#login-problem').innerText.includes('not the token')")
    browser.wait("document.documentElement.dataset.sample > 0", 20)
    assert browser.run("document.querySelector('#login').hidden && !document.querySelector('#content').hidden")
    assert all("401" in error for error in browser.errors), browser.errors
    ovs.vsctl("remove", "Open_vSwitch", ".", "other_config", "http")
    browser.wait("document.querySelector('#connection').innerText.includes('does not answer')", 20)


def test_hundreds_of_ports_are_still_a_picture(weir, net, browser):
    port = free_port()
    ports = [(f"vnet{n}", "dummy", "") for n in range(500)] + [(f"eth{n}", "dummy", "") for n in range(3)] + [("uplink", "dummy", "")]
    w = weir(f'http = "127.0.0.1:{port}"\n' + config(ports))
    until(lambda: "http: listening on" in w.log())
    browser.window(PHONE)
    browser.open(f"http://127.0.0.1:{port}/")
    browser.wait("document.documentElement.dataset.sample > 0", 30)
    names = "[...document.querySelectorAll('#picture .cell .name')].map((name) => name.textContent)"
    assert browser.run(names) == ["eth ×3", "uplink", "vnet ×500"]
    height = browser.run("document.querySelector('#picture svg').clientHeight")
    assert height < 300
    shoot(browser, "hundreds")
    browser.run("document.querySelector('#picture .group[data-key*=vnet]').focus()")
    browser.key("Enter")
    assert len(browser.run(names)) == 503
    assert browser.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    browser.key("Enter")
    assert len(browser.run(names)) == 3 and browser.errors == []
