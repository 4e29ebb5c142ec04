"""The guide's pages as tests: blocks of commands with what they print, run in order in one shell.

A page is Markdown. A block ```console has commands behind a prompt, `# ` for root or `$ `, and what they print. A command goes on in
the next line behind a `\\`, and in a here-document until its end. A block in another language behind a line that ends with
"as `FILE`:" is written to that file. Comments of HTML before a block say what is to be known of it:

    <!-- not run: REASON -->    its commands are not run here, but looked at (`lib.commands`)
    <!-- exit STATUS -->        the status of its last command, where that is not 0

What a command prints is compared line by line. `...` stands for any part of a line, in a line of its own for any number of
lines. Numbers that differ each time (`VARIES`) stand for others of their kind. A command that only looks is repeated until it shows what the
page has, since what it looks at may take a moment. A command without output on the page may print anything.
"""

import os
import re
import select
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field

#: What differs from run to run, by the pattern of what it may be instead.
VARIES = [
    # Times: of day, of a duration, of a ping.
    r"\d\d:\d\d:\d\d(?:\.\d+)?",
    r"(?<=time=)\d+(?:\.\d+)?|(?<=time )\d+(?=ms)",
    r"(?<=duration=)[\d.]+",
    r"(?<=cookie=)0x[0-9a-f]{8}\b",
    r"(?<=idle_age=)\d+",
    r"(?<=used:)[\d.]+s|(?<=used:)never",
    r"\d+/\d+/\d+/\d+ ms|\d+\.\d+/\d+\.\d+/\d+\.\d+/\d+\.\d+ ms",
    # Addresses, and numbers that are made at random.
    r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b",
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    r"\b[0-9a-f]{16}\b",
    r"(?<=pid )\d+|(?<=xid=)0x[0-9a-f]+",
    # Counts, and what follows from them.
    r"(?<=packets=)\d+|(?<=bytes=)\d+|(?<=pkts=)\d+",
    r"(?<=packets:)\d+|(?<=bytes:)\d+",
    r"^\d+(?=\s+(?:receive|slow path|translate|act|output|transmit|device)\s)",
    r"(?<=total: )\d+",
    r"\d+\.\d+(?=/sec)",
    r"\d+(?:\.\d+)?(?= ?%)",
    r"\d+(?:\.\d+)? [KMGT]?(?:Bytes|bits)(?:/sec)?",
]
_varies = re.compile("|".join(f"(?P<v{i}>{pattern})" for i, pattern in enumerate(VARIES)))

#: For how many seconds a command that only looks is repeated.
PATIENCE = 30

#: Commands that change nothing and may be repeated.
LOOKS = re.compile(r"(ovs-ofctl( -\S+( OpenFlow\d+)?)* (dump-|show)|ovs-vsctl( --\S+)* (get|list|show|find)|weir( --\S+)* "
                   r"(show|stats|ports|flows|drops|trace|ctl \S+/show)|ovs-appctl \S*(/show|-show|-stats|dump-\S+|/read-counter)|"
                   r"ip |ss |tail |cat |grep |ls |test )")


@dataclass
class Command:
    """What is typed at a prompt, and what the page says that it prints."""

    text: str
    line: int
    output: list = field(default_factory=list)
    status: int = 0

    @property
    def looks(self):
        return bool(LOOKS.match(self.text)) and not self.text.endswith("&")


@dataclass
class Block:
    """A fenced block: commands, or a file to write; `not_run` is the reason for which it is not run."""

    line: int
    language: str
    lines: list
    not_run: str = None
    file: str = None
    status: int = 0

    @property
    def commands(self):
        """Its commands, if it has any."""
        commands, end = [], None
        for n, text in enumerate(self.lines, self.line + 1):
            if end is not None:  # within a here-document
                commands[-1].text += "\n" + text
                end = None if text == end else end
            elif commands and not commands[-1].output and commands[-1].text.endswith("\\"):
                commands[-1].text += "\n" + text
            elif text[:2] in ("# ", "$ "):
                commands.append(Command(text[2:], n))
            else:
                assert commands, f"line {n}: a block of commands begins with a prompt"
                commands[-1].output.append(text)
            if end is None and commands and not commands[-1].output:
                here = re.search(r"<<-?\s*'?(\w+)'?", text)
                end = here[1] if here else None
        assert end is None, f"line {self.line}: the here-document has no end"
        for command in commands:
            while command.output and not command.output[-1].strip():
                command.output.pop()
        if commands:
            commands[-1].status = self.status
        return commands


def blocks(text):
    """The fenced blocks of a page, in order."""
    found, block, before = [], None, []
    for n, line in enumerate(text.splitlines(), 1):
        fence = re.fullmatch(r"```(\S*)", line)
        if fence and block is None:
            block = Block(n, fence[1], [])
            for said in before:
                if comment := re.fullmatch(r"<!-- not run: (.+) -->", said):
                    block.not_run = comment[1]
                if comment := re.fullmatch(r"<!-- exit (\d+) -->", said):
                    block.status = int(comment[1])
                if saved := re.search(r"\bas `([^`]+)`:$", said):
                    block.file = saved[1]
        elif fence:
            found.append(block)
            block, before = None, []
        elif block:
            block.lines.append(line)
        elif line.strip():
            # What is said of a block stands directly before it.
            before = [*before[-2:], line]
    assert block is None, f"line {block.line}: the block has no end"
    return found


def typed(text):
    """The commands of a page that is not played as a guide: those of blocks that are indented or ```sh, behind a prompt or not, and of blocks
    ```console with what they print. What else is indented is no command line, and an error: it belongs in a block of its language."""
    commands = [command for block in blocks(text) if block.language == "console" for command in block.commands]
    language, goes_on = None, False
    for n, line in enumerate(text.splitlines(), 1):
        if fence := re.fullmatch(r"```(\S*)", line):
            language = None if language is not None else fence[1]
        indented = language is None and line.startswith("    ")
        if fence or not line.strip() or not (indented or language == "sh"):
            goes_on = False
            continue
        line = line.removeprefix("    ") if indented else line
        if goes_on:
            commands[-1].text += "\n" + line
        else:
            line = line.removeprefix("# ")
            assert re.match(r"(?:[A-Z]+=\S+ )*[a-z][\w./-]*(?: (?!=)|;|$)", line), f"line {n} is no command line: {line}"
            commands.append(Command(line, n))
        goes_on = line.endswith("\\")
    return sorted(commands, key=lambda command: command.line)


def _pattern(line):
    """An expected line as a regular expression."""
    parts, at = [], 0
    for varying in _varies.finditer(line):
        parts += [_literal(line[at:varying.start()]), f"(?:{VARIES[int(varying.lastgroup[1:])]})"]
        at = varying.end()
    return "".join([*parts, _literal(line[at:])])


def _literal(text):
    # Columns are as wide as what stands in them.
    escaped = r"\s+".join(re.escape(piece) for piece in re.split(r"\s+", text))
    return escaped.replace(re.escape("..."), ".*?")


def matches(expected, printed):
    """Whether what was printed is what the page has."""
    while printed and not printed[-1].strip():
        printed = printed[:-1]

    def lines_match(i, j):
        while i < len(expected):
            if expected[i].strip() == "...":
                return any(lines_match(i + 1, k) for k in range(j, len(printed) + 1))
            if j == len(printed) or not re.fullmatch(_pattern(expected[i].strip()), printed[j].strip()):
                return False
            i, j = i + 1, j + 1
        return j == len(printed)

    return lines_match(0, 0)


#: What the namespaces of a page are like, before its shell starts.
ISOLATE = """
set -e
mount --make-rprivate /
mount -t sysfs sysfs /sys || true
# Who resolves names may have the list of name servers below /run.
servers=$(cat /etc/resolv.conf 2>/dev/null || true)
mount -t tmpfs none /run
mkdir /run/netns /run/openvswitch
list=$(readlink -m /etc/resolv.conf)
case $list in /run/*) mkdir -p "${list%/*}"; echo "$servers" > "$list" ;; esac
ip link set lo up
exec bash
"""


class Shell:
    """A shell that runs one command after another and tells what each printed; in namespaces of its own, all of which ends with it."""

    MARK = "end-of-command"

    def __init__(self, argv, env, cwd):
        self.proc = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, start_new_session=True)
        self.left = b""

    @classmethod
    def isolated(cls, env, cwd):
        argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ISOLATE]
        return cls(argv, env, cwd)

    def run(self, text, seconds=60):
        """(exit status, lines that were printed)"""
        asked = f"{{\n{text}\n}} </dev/null 2>&1\nstatus=$?; echo; echo {self.MARK} $status\n"
        self.proc.stdin.write(asked.encode())
        self.proc.stdin.flush()
        end, mark = time.monotonic() + seconds, re.compile(rb"\n%s (\d+)\n" % self.MARK.encode())
        while not (found := mark.search(self.left)):
            ready, _, _ = select.select([self.proc.stdout], [], [], max(0, end - time.monotonic()))
            data = os.read(self.proc.stdout.fileno(), 65536) if ready else b""
            assert data, f"{text}\nhas not ended within {seconds} s:\n{self.left.decode(errors='replace')}"
            self.left += data
        printed, self.left = self.left[:found.start()], self.left[found.end():]
        return int(found[1]), printed.decode(errors="replace").rstrip("\n").splitlines()

    def close(self):
        # What it has started holds its output open.
        os.killpg(self.proc.pid, signal.SIGKILL)
        self.proc.communicate()


def play(text, shell, name):
    """Runs a page. The first command that does something else than the page says is an error that names its line."""
    for block in blocks(text):
        if block.not_run:
            continue
        if block.file:
            shell.run(f"cat > {shlex.quote(block.file)} <<'end of the file'\n" + "\n".join(block.lines) + "\nend of the file")
        elif block.language == "console":
            for command in block.commands:
                perform(command, shell, f"{name}:{command.line}")


def perform(command, shell, where):
    """Runs a command, more than once if it only looks."""
    end = time.monotonic() + PATIENCE
    while True:
        status, printed = shell.run(command.text)
        right = not command.output or matches(command.output, printed)
        if right and status == command.status:
            return
        if not command.looks or time.monotonic() > end:
            expected = "\n".join(command.output) or "(anything)"
            ended = "" if status == command.status else f" with the exit status {status}, and not {command.status}"
            raise AssertionError(f"{where}: {command.text}\nended{ended}. It printed:\n"
                                 + "\n".join(printed) + f"\nThe page has:\n{expected}")
        time.sleep(0.2)
