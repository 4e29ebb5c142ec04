#!/usr/bin/env python3
"""Find circles among the files of a crate: files that need each other, so that none can be understood alone.

usage: circles.py [-v] [CRATE...]

Prints one line for each circle, and with -v the references that make it. The exit status is 1 where there is one.
CRATE is a folder of crates/; without one, all are looked at. A module and what lies inside of it count as one: what
a file says of its own parts, and they of it, makes no circle. Code for tests does not count.
"""
import re
import sys
from pathlib import Path

CRATES = Path(__file__).resolve().parent.parent / "crates"

# Comments, strings and characters. A lifetime is no character: its quote is not closed.
LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])'""", re.DOTALL)
FOR_TESTS = re.compile(r"#\[cfg\((?:all\()?\s*(?:test|loom|fuzzing)\b[^\]]*\]")
ATTRIBUTE = re.compile(r"\s*#\[[^\]]*\]")
PATH = re.compile(r"\b(?:crate|self|super)(?:\s*::\s*(?:\w+|\{))+")


def blank(match):
    """As many blanks, with the same line ends."""
    return re.sub(r"[^\n]", " ", match[0])


def closing(text, at):
    """Where the brace is closed that is open at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    return len(text) - 1


def without_tests(text):
    """The text without the items that are for tests only, and the names of the modules among these that are files."""
    files = set()
    while match := FOR_TESTS.search(text):
        at = match.end()
        while more := ATTRIBUTE.match(text, at):
            at = more.end()
        end = re.compile(r"[;{]").search(text, at)
        end = len(text) - 1 if not end else end.start() if end[0] == ";" else closing(text, end.start())
        if module := re.match(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*$", text[at:end]):
            files.add(module[1])
        text = text[:match.start()] + text[end + 1:]
    return text, files


def tree(text, at, base):
    """The paths of a use tree whose brace is open at `at`."""
    paths, item, i = [], base, at + 1
    while i < len(text):
        token = re.compile(r"\s*(?:as\s+\w+|\w+|::|[{},*])").match(text, i)
        if not token:
            break
        word, i = token[0].strip(), token.end()
        if word == "{":
            paths += tree(text, i - 1, item)
            i = closing(text, i - 1) + 1
            item = base
        elif word in ",}":
            paths.append(item)
            item = base
            if word == "}":
                break
        elif re.fullmatch(r"\w+", word) and word != "self":
            item = item + [word]
    return paths


def paths(text):
    """Every path of the text that starts with crate, self or super."""
    for match in PATH.finditer(text):
        words = [word for word in re.split(r"\s*::\s*", match[0]) if word != "{"]
        if match[0].endswith("{"):
            yield from tree(text, match.end() - 1, words)
        else:
            yield words


def modules(src):
    """The files of a crate by the paths of their modules. Programs of their own (bin/) are not among them."""
    found = {}
    for file in sorted(src.rglob("*.rs")):
        parts = file.relative_to(src).with_suffix("").parts
        if parts[0] != "bin":
            found[parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts] = file
    return found


def references(src):
    """Which modules each module refers to, but for those around it and inside of it."""
    texts, tests = {}, set()
    for module, file in modules(src).items():
        texts[module], files = without_tests(LITERAL.sub(blank, file.read_text()))
        tests |= {module + (name,) for name in files}
    texts = {m: t for m, t in texts.items() if not any(m[:n] in tests for n in range(1, len(m) + 1))}
    graph = {module: set() for module in texts}
    for module, text in texts.items():
        for first, *rest in paths(text):
            target = () if first == "crate" else module
            if first == "super":
                target = target[:-1]
            for word in rest:
                if word == "super":
                    target = target[:-1]
                elif target + (word,) in texts:
                    target += (word,)
                else:
                    break
            shorter = min(len(target), len(module))
            if target[:shorter] != module[:shorter]:
                graph[module].add(target)
    return graph


def circles(graph):
    """The sets of modules of which each reaches all others."""
    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for target in graph[todo.pop()] - seen:
                seen.add(target)
                todo.append(target)
        return seen
    reached = {module: reach(module) for module in graph}
    found = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted(sorted(circle) for circle in found)


def main():
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        return print(__doc__.strip())
    names = [name for name in arguments if name != "-v"]
    missing = [name for name in names if not (CRATES / name / "src").is_dir()]
    if missing:
        sys.exit(f"circles.py: no such crate: {', '.join(missing)}; crates are the folders of {CRATES}")
    status = 0
    for name in names or sorted(path.parent.name for path in CRATES.glob("*/src")):
        graph = references(CRATES / name / "src")
        for circle in circles(graph):
            status = 1
            print(f"{name}: {len(circle)} files need each other:", *("/".join(m) or "lib" for m in circle))
            if "-v" in arguments:
                for a in circle:
                    for b in sorted(graph[a] & set(circle)):
                        print(f"    {'/'.join(a)} -> {'/'.join(b)}")
    sys.exit(status)


if __name__ == "__main__":
    main()
