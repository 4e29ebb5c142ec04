"""Looks at a command line that cannot be run here: that it parses, that its program has its options, and that the database
has its columns and Weir knows its settings."""

import functools
import gzip
import re
import shlex
import shutil
from pathlib import Path

from .daemon import ROOT, WEIR
from .net import run

MANUAL = Path("/usr/share/man/man5/ovs-vswitchd.conf.db.5.gz")
#: Programs whose options have a single hyphen.
SINGLE = ("qemu-system-x86_64",)
#: Programs that have no option for help, or whose help is a page.
SILENT = ("make", "apt", "systemctl", "update-alternatives", "modprobe", "sysctl", "ip", "cd", "export", "cat", "echo")


def look(text, reason, database):
    """What is wrong with a command; `reason` is why it is not run, `database` a `lib.daemon.Database` without a daemon."""
    parsed = run("bash", "-n", "-c", text, check=False)
    if parsed.returncode:
        return parsed.stderr
    if inside := re.fullmatch(r"\w+=\$\((.*)\)", text):
        return look(inside[1], reason, database)
    words = shlex.split(text, comments=True)
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    program = words[0]
    if program == "ovs-vsctl":
        said = run("ovs-vsctl", f"--db={database.db}", "--no-wait", *words[1:], env=database.env, check=False)
        return said.stderr if said.returncode else unknown_keys(text)
    if program == "weir":
        return missing_options(words, help_of_weir(words[1]))
    if program == "cargo":
        return missing_target(words)
    if program in SILENT:
        return None
    if "/" in program and (ROOT / program).exists():
        return missing_options(words, help_of(ROOT / program))
    if not shutil.which(program):
        return None if program in reason else f"{program} is not installed; say so in the reason, or in scripts/setup.sh"
    return missing_options(words, help_of(program))


def missing_target(words):
    """What `cargo bench -p PACKAGE --bench NAME` names and is not there."""
    given = {option: value.rstrip(";") for option, value in zip(words, words[1:])}
    bench = ROOT / "crates" / given["-p"].removeprefix("weir-") / "benches" / given["--bench"]
    if not bench.with_suffix(".rs").exists() and not bench.is_dir():
        return f"{bench} is not there"
    return None


@functools.cache
def help_of_weir(command):
    return run(WEIR, command, "--help").stdout + run(WEIR, "--help").stdout


@functools.cache
def help_of(program):
    said = run(program, "-help" if program in SINGLE else "--help", check=False)
    return said.stdout + said.stderr


def missing_options(words, help):
    """The first option that the help does not have."""
    pattern = r"-\w[\w-]*" if words[0] in SINGLE else r"--\w[\w-]*"
    for word in words[1:]:
        if word == "--":
            return None
        option = re.match(pattern, word)
        if option and not re.search(re.escape(option[0]) + r"(?![\w-])", help):
            return f"{words[0]} has no option {option[0]}"
    return None


@functools.cache
def known_keys():
    """All words of the manual of the database, and of Weir's documentation."""
    manual = gzip.open(MANUAL, "rt", errors="replace").read().replace("\\-", "-")
    pages = "".join(page.read_text() for page in ROOT.glob("docs/*.md")) + (ROOT / "docs/deviations/configuration.md").read_text()
    return set(re.findall(r"[\w-]+", manual + pages))


def unknown_keys(text):
    """The first key of other_config or options in the text that is documented nowhere."""
    for key in re.findall(r"\b(?:other_config|other-config|options):([\w-]+)", text):
        if key not in known_keys():
            return f"nothing is known of {key}: neither in ovs-vswitchd.conf.db(5) nor in docs/"
    return None
