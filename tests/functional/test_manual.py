"""The manual pages that `weir manual` writes: man(1) has nothing to say against them, and they have all that the help has."""

import re

import pytest
from conftest import WEIR
from lib.net import run


@pytest.fixture(scope="module")
def manual(tmp_path_factory):
    directory = tmp_path_factory.mktemp("manual")
    run(WEIR, "manual", directory)
    return directory


def text(page):
    """A page as a reader sees it."""
    shown = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", page, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "400", "LC_ALL": "C.UTF-8"})
    assert not shown.stderr, f"{page.name}: {shown.stderr}"
    return re.sub(r".\x08|\x1b\[[\d;]*m", "", shown.stdout)


def options(help):
    return set(re.findall(r"--[a-z][\w-]*", help)) - {"--help"}


def test_man_has_nothing_to_say_against_the_pages(manual):
    pages = sorted(manual.rglob("*.*"))
    pages = [page for page in pages if page.is_file()]
    assert len(pages) > 10
    for page in pages:
        shown = text(page)
        for heading in ("NAME", "DESCRIPTION", "SEE ALSO"):
            assert re.search(rf"^{heading}$", shown, re.M), f"{page.name} has no {heading}"
        assert re.match(r"\S+\((\d)\) +Weir Manual +\S+\(\1\)\n", shown.lstrip()), shown.splitlines()[0]
        assert re.search(r"^Weir \d+\.\d+\.\d+ ", shown, re.M), f"{page.name} has no version"


def test_each_command_has_a_page_with_its_options(manual):
    help = run(WEIR, "--help").stdout
    commands = set(re.findall(r"^  ([a-z]+)  ", help[help.index("Commands:"):help.index("Options:")], re.M)) - {"help", "vswitchd"}
    assert {"run", "tap", "drops", "trace"} <= commands
    pages = {page.name: text(page) for page in (manual / "man1").iterdir()}
    assert set(pages) == {"weir.1"} | {f"weir-{command}.1" for command in commands}
    for command in commands:
        missing = options(run(WEIR, command, "--help").stdout) - options(pages[f"weir-{command}.1"])
        assert not missing, (command, missing)
    assert all(f"weir-{command}(1)" in pages["weir.1"] for command in commands)
    # To be copied: straight quotes and hyphens.
    assert "weir ingress eth1 set 'drop dst net 198.18.0.0/15; limit 1k icmp'\n" in pages["weir-ingress.1"]
    assert "weir-vswitchd(8)" in pages["weir.1"] and "weir-vswitchd(1)" not in pages["weir.1"]


def test_the_daemon_has_a_page_with_its_options(manual):
    assert options(run(WEIR, "vswitchd", "--help").stdout) <= options(text(manual / "man8/weir-vswitchd.8"))


def test_the_file_has_a_page_with_its_tables(manual):
    shown = text(manual / "man5/weir.toml.5")
    for word in ("[workers]", "[[bridge.port]]", "sleep-max-us = 0 to 10000", "By default 500."):
        assert word in shown, word
