"""Building with libdpdk, without it, and after it came, went, or became another version."""

import json
import os
import subprocess

import pytest
from lib.daemon import ROOT
from lib.net import run

# What dpkg does: files are as old as the package, and are renamed to where they belong.
OLD = 1_600_000_000


class Build:
    """A place to build weir-dpdk-sys in, with a pkg-config that knows of one libdpdk at most."""

    def __init__(self, directory):
        self.packages = directory / "pkgconfig"
        self.packages.mkdir()
        flags = run("pkg-config", "--cflags", "libdpdk").stdout.strip()
        self.text = f"Name: libdpdk\nDescription: DPDK\nVersion: VERSION\nCflags: {flags}\nLibs:\n"
        self.version = run("pkg-config", "--modversion", "libdpdk").stdout.strip()
        self.env = dict(os.environ, CARGO_TARGET_DIR=str(directory / "target"), PKG_CONFIG_LIBDIR=str(self.packages))
        self.env.pop("PKG_CONFIG_PATH", None)

    def install(self, version=None):
        new = self.packages / "libdpdk.pc.new"
        new.write_text(self.text.replace("VERSION", version or self.version))
        os.utime(new, (OLD, OLD))
        new.rename(self.packages / "libdpdk.pc")

    def remove(self):
        (self.packages / "libdpdk.pc").unlink()

    def __call__(self, *options):
        """Builds. What there is of DPDK, whether anything was done, and the warnings."""
        r = subprocess.run(["cargo", "check", "--locked", "--offline", "-p", "weir-dpdk-sys", "--message-format=json",
                            *options], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=100)
        assert r.returncode == 0, r.stderr
        messages = [json.loads(line) for line in r.stdout.splitlines()]
        ours = [m for m in messages if "dpdk-sys" in m.get("package_id", "")]
        (out,) = [m["out_dir"] for m in ours if m["reason"] == "build-script-executed"]
        (fresh,) = [m["fresh"] for m in ours if m["reason"] == "compiler-artifact" and "lib" in m["target"]["kind"]]
        text = open(f"{out}/shim.rs").read()
        return ("with" if "SHIM: Result<&[u8], &str> = Ok(" in text else text), not fresh, r.stderr


@pytest.fixture
def build(tmp_path):
    return Build(tmp_path)


def test_an_answer_of_before_is_not_kept(build):
    """libdpdk is installed after a build without it, and removed after one with it, with files older than either."""
    for _ in range(2):
        found, done, _ = build()
        assert "pkg-config did not find libdpdk" in found and done
        assert not build()[1], "nothing has changed, and all was built again"
        build.install()
        assert build()[:2] == ("with", True)
        assert not build()[1], "nothing has changed, and all was built again"
        build.remove()


@pytest.mark.parametrize("version", ["21.11.6", "23.11.0", "nonsense"])
def test_a_libdpdk_of_another_abi_is_left_out_with_a_warning(build, version):
    build.install()
    assert build()[0] == "with"
    build.install(version)
    found, done, warnings = build()
    assert f"libdpdk {version} was found" in found and done
    assert f"built without DPDK: libdpdk {version}" in warnings


def test_the_feature_leaves_it_out_where_it_is_installed(build):
    build.install()
    assert '"dpdk" was off'.replace('"', '\\"') in build("--no-default-features")[0]
    assert build()[0] == "with"
