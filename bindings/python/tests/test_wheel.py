"""The wheel, built from this checkout and installed into an environment of its own: complete, of one version, and working without this checkout."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def run(*command: object, **kwargs: object) -> str:
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel's file. Cargo's work is shared with the other builds."""
    tools = [shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin"), shutil.which("cmake")]
    if not all(tools) or importlib.util.find_spec("scikit_build_core") is None:
        what = "cargo, cmake and scikit-build-core are needed to build the wheel"
        pytest.fail(what) if os.environ.get("CI") else pytest.skip(what)
    folder = tmp_path_factory.mktemp("wheel")
    settings = ["-C", f"cmake.define.LANEWAY_TARGET_DIR={ROOT / 'target'}", "-C", f"build-dir={folder / 'build'}"]
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, *settings, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The Python of an environment with the wheel, and of this one's packages what it needs."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-deps", wheel)
    paths = {"base": folder, "platbase": folder}
    Path(sysconfig.get_path("purelib", vars=paths), "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture
def elsewhere(tmp_path) -> dict[str, object]:
    """A folder and an environment from which nothing of this checkout can be found."""
    (tmp_path / "dir").mkdir(mode=0o700)
    env = {"HOME": os.environ.get("HOME", "/"), "PATH": "/usr/bin:/bin", "LANEWAY_DIR": f"{tmp_path}/dir"}
    return {"cwd": tmp_path, "env": env}


def test_one_wheel_serves_every_python_3(wheel):
    assert re.fullmatch(rf"laneway-{re.escape(VERSION)}-py3-none-linux_\w+\.whl", wheel.name)


def test_it_holds_the_library_the_program_types_and_licences(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ["laneway/liblaneway.so", "laneway/py.typed", ".data/scripts/laneway", "licenses/LICENSE-MIT", "licenses/LICENSE-APACHE"]:
        assert any(name.endswith(wanted) for name in names), wanted
    foreign = [n for n in names if not re.match(r"laneway/|laneway-[^/]+\.(data|dist-info)/", n) or "__pycache__" in n or "test" in n]
    assert not foreign


def test_package_library_and_program_are_of_one_version(python, elsewhere):
    code = "import importlib.metadata as m, laneway; from laneway import _native; print(m.version('laneway'), laneway.__version__, _native.lib().lw_version().decode())"
    assert run(python, "-c", code, **elsewhere).split() == [VERSION] * 3
    assert VERSION in run(python.with_name("laneway"), "--version", **elsewhere)


def test_the_library_is_the_wheels_own(python, elsewhere):
    library = Path(run(python, "-c", "from laneway import _native; print(_native.find_library())", **elsewhere).strip())
    assert library.is_relative_to(python.parents[1])
    assert library.stat().st_size < 50e6, "it still has its debugging information"


def test_the_example_runs_and_finds_its_broker(python, elsewhere):
    """No LANEWAY_BIN, and the environment is not in PATH: the broker is found from the library."""
    said = run(python, ROOT / "examples" / "python" / "distill_min.py", timeout=120, **elsewhere)
    assert "step  200" in said, said
