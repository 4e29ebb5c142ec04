"""docs/deviations/configuration.md names every column of the schema that Weir does not handle as OVS does."""

import json
import re

from conftest import ROOT
from lib.daemon import SCHEMA

# What is read or written and means what it does in OVS.
HANDLED = {
    "Open_vSwitch": "bridges cur_cfg datapath_types iface_types next_cfg other_config ovs_version",
    "Bridge": "controller datapath_id datapath_version fail_mode mirrors name other_config ports protocols",
    "Port": "cvlans name other_config tag trunks vlan_mode",
    "Interface": "admin_state duplex error ifindex link_resets link_speed link_state mac_in_use mtu name ofport "
                 "ofport_request other_config status",
    "Controller": "inactivity_probe is_connected max_backoff role status other_config",
    "Mirror": "name output_port output_vlan select_all select_dst_port select_src_port select_vlan snaplen",
}


def sections():
    text = (ROOT / "docs/deviations/configuration.md").read_text()
    parts = re.split(r"^## (.*)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def test_every_column_is_handled_or_named():
    named = sections()
    tables = json.load(open(SCHEMA))["tables"]
    whole = named["Whole tables"]
    missing = []
    for table, definition in tables.items():
        if table not in HANDLED:
            if not re.search(rf"\b{table}\b", whole):
                missing.append(table)
            continue
        section = named.get(table, "")
        for column in definition["columns"]:
            if column not in HANDLED[table].split() and f"`{column}`" not in section:
                missing.append(f"{table}.{column}")
    assert missing == []


def test_what_is_named_exists():
    tables = json.load(open(SCHEMA))["tables"]
    for table, section in sections().items():
        if table not in tables:
            continue
        firsts = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
        for name in re.findall(r"`([a-z_]+)`", " ".join(firsts)):
            known = name in tables[table]["columns"] or "other_config:" in " ".join(
                first for first in firsts if f"`{name}`" in first)
            assert known or name in ("internal", "gre", "vxlan", "geneve"), f"{table}.{name}"
