"""The alerts and the dashboard in packaging/, checked by Prometheus's own promtool."""

import json
import re

from conftest import ROOT
from test_metrics import promtool

RULES = ROOT / "packaging/prometheus/weir.rules.yml"
TESTS = ROOT / "packaging/prometheus/weir.rules.test.yml"
DASHBOARD = ROOT / "packaging/grafana/weir.json"


def exported():
    """The metrics that there are, as the documentation has them."""
    return set(re.findall(r"^\| `([a-z_]+)`", (ROOT / "docs/metrics.md").read_text(), re.M))


def named(text):
    """The metrics that expressions name."""
    return set(re.findall(r"\b(?:weir|process)_[a-z_]+", text))


def test_the_alerts_fire_when_they_should():
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0 and "SUCCESS" in checked.stdout, checked
    tested = promtool("test", "rules", TESTS)
    assert tested.returncode == 0, tested
    expressions = re.findall(r"^ {8}expr: (.*(?:\n {10}.*)*)", RULES.read_text(), re.M)
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert len(expressions) == len(alerts) > 10
    assert named(" ".join(expressions)) <= exported()
    # Each has a test in which it fires.
    firing = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", TESTS.read_text())
    assert sorted(firing) == sorted(alerts)


def test_the_dashboard_asks_for_what_there_is(tmp_path):
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 20
    assert named(" ".join(expressions)) <= exported()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    # As rules, so that promtool parses them.
    concrete = [expr.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$job", "weir")
                for expr in expressions]
    rules = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(concrete)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = promtool("check", "rules", "--lint=none", tmp_path / "rules.yml")
    assert checked.returncode == 0 and f"{len(rules)} rules found" in checked.stdout, checked
