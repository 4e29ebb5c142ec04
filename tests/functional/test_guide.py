"""Every command of docs/guide/ and of README.md does what the page says (`lib.guide`).

Each page runs in namespaces of its own, in a directory with links to what the repository has. A page with the comment
`<!-- machine: systemd -->` runs on a machine that systemd runs, whose repository is the working directory."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT, WEIR
from lib import commands, guide
from lib.daemon import scratch_database
from lib.machine import Machine
from lib.net import run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
#: All of them.
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages with commands that are run.
PLAYED = [page for page in PAGES if any(block.commands and not block.not_run for block in guide.blocks(page.read_text())
                                        if block.language == "console")]
SYSTEMD = "<!-- machine: systemd -->"


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def directory():
    """A directory with what the repository has, and a program `weir` in `bin`."""
    directory = Path(tempfile.mkdtemp(prefix="weir-guide-"))
    for path in ROOT.iterdir():
        if path.name != "target":
            (directory / path.name).symlink_to(path)
    (directory / "target/release").mkdir(parents=True)
    (directory / "target/release/weir").symlink_to(WEIR)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def env(directory):
    """What a page's shell is given."""
    path = f"{directory}/target/release:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": str(directory), "LANG": "C.UTF-8"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PLAYED, ids=name)
def test_page(page, directory, env):
    text = page.read_text()
    machine = Machine("multi-user.target", "cp /tmp/weir /usr/local/src", repository=True) if SYSTEMD in text else None
    try:
        if machine:
            command = machine.command("BIN=/usr/local/src/weir", "bash", directory="/mnt/weir")
            shell = guide.Shell(command, dict(os.environ), "/")
        else:
            shell = guide.Shell.isolated(env, directory)
        try:
            guide.play(text, shell, name(page))
        finally:
            shell.close()
    finally:
        if machine:
            machine.end()


def test_the_lab_touches_nothing_that_others_made(directory, env):
    shell = guide.Shell.isolated(env, directory)
    try:
        assert shell.run("ip tuntap add h2 mode tap")[0] == 0
        for command in "scripts/lab.sh up", "scripts/lab.sh down":
            status, said = shell.run(command)
            assert status == 1 and said[-1].startswith("lab: "), (command, said)
        status, said = shell.run("ip -o link; ip netns list; ls /run")
        assert status == 0 and any(" h2:" in line for line in said), said
        assert not any(word in line for word in ("h1", "h3", "weir") for line in said), said
    finally:
        shell.close()


@pytest.fixture
def database(tmp_path):
    """A database that no daemon reads."""
    database = scratch_database(tmp_path)
    # What the pages take for granted.
    database.vsctl("--no-wait", "add-br", "br0", "--", "add-br", "br-lab")
    yield database
    database.stop_server()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_not_run_is_right_as_far_as_can_be_seen(page, database):
    """Blocks that need what is not here: their commands parse, their options exist, the database takes their settings."""
    wrong = []
    for block in guide.blocks(page.read_text()):
        for command in block.commands if block.language == "console" else []:
            found = commands.look(command.text, block.not_run, database) if block.not_run else commands.unknown_keys(command.text)
            wrong += [f"{name(page)}:{command.line}: {command.text}: {found}"] if found else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", DOCUMENTS, ids=name)
def test_files_on_a_page_are_well_formed(page, tmp_path):
    for block in guide.blocks(page.read_text()):
        text = "\n".join(block.lines)
        if block.language == "xml":
            ElementTree.fromstring(f"<all>{text}</all>")
        if block.language == "toml":
            file = tmp_path / "page.toml"
            # A part of a bridge.
            file.write_text(text if not re.match(r"\[+bridge\.", text) else '[[bridge]]\nname = "br0"\n' + text)
            said = run(WEIR, "check", file, check=False)
            # This machine need not have the interfaces and files that a page names.
            absent = ("No such device", "no such interface", "No such file")
            mistakes = [line for line in said.stderr.splitlines() if not any(words in line for words in absent)]
            assert not mistakes, f"{name(page)}:{block.line}: {mistakes}"


def test_links_lead_somewhere():
    wrong = []
    for page in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / link).exists():
                wrong.append(f"{name(page)}: {link}")
    assert not wrong, wrong


def test_every_page_is_in_the_indexes():
    guides = (ROOT / "docs/guide/README.md").read_text()
    missing = [page.name for page in (ROOT / "docs/guide").glob("*.md") if page.name != "README.md" and f"({page.name})" not in guides]
    index = (ROOT / "docs/README.md").read_text()
    missing += [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]
    assert not missing
