#!/usr/bin/env python3
"""What only a GPU can show of the cuda medium, in under five minutes: ``make gpu-check``.

Needs a built library and program (``cargo build --release``), Python with NumPy, and an NVIDIA driver; nothing is downloaded. Four of the steps (``ragged``, ``overlap``,
``distillation``, ``to_device``) use torch where it has CUDA; all but the last from 2.9 on. Without it they run with less, and the last is skipped. Each step runs in a process of its own with a time limit of its own, so that one that fails, hangs or loses its context stops no other. Prints a table
and writes ``gpu_check.json`` after each step; the exit status is 0 if all passed or were skipped for a reason that is said, 1 if one failed, 2 if nothing could be run.

For a machine that cannot build: ``gpu_check.py --pack`` puts stripped copies of library and program into ``build/gpu_check``, and says what to carry there.

``--stand-in`` runs the same steps, fewer times, against the stand-in driver of ``tests/standin_cuda``. That shows that this script works, and nothing about a GPU: no
rate and no time is reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
sys.path.insert(0, str(ROOT / "scripts"))

# Seconds that each may take, far more than it needs: a torch that is imported for the first time takes long. All together may take what `--budget` says.
LIMITS = {
    "correctness": 40,
    "ragged": 40,
    "copy_rate": 40,
    "latency": 20,
    "opens_and_closes": 75,
    "killed_while_mapped": 40,
    "killed_student": 40,
    "death_and_context": 40,
    "permuted_devices": 20,
    "hidden_device": 20,
    "other_device": 30,
    "pinned_slots": 30,
    "distillation": 60,
    "overlap": 60,
    "to_device": 40,
}

FILES = {"LANEWAY_LIBRARY": "liblaneway.so", "LANEWAY_BIN": "laneway"}
BUILT = ROOT / "target" / "release"
PACKED = ROOT / "build" / "gpu_check"


def pack() -> int:
    """Stripped copies of what was built, for a machine that cannot build."""
    PACKED.mkdir(parents=True, exist_ok=True)
    for name in FILES.values():
        if not (BUILT / name).is_file():
            print(f"{BUILT / name} is not there: cargo build --release", file=sys.stderr)
            return 2
        shutil.copy2(BUILT / name, PACKED / name)
        subprocess.run(["strip", str(PACKED / name)], check=True)
    print("Carry these along with the checkout, then run `make gpu-check` or `python3 scripts/gpu_check.py` there:")
    for name in FILES.values():
        print(f"  {(PACKED / name).relative_to(ROOT)}  {(PACKED / name).stat().st_size / 1e6:.1f} MB")
    print("Of the checkout it needs scripts/gpu_*.py and bindings/python/laneway; of the machine a Python of at least 3.11 with NumPy, glibc of at least 2.34, libcuda.so.1.")
    return 0


def what_python_lacks() -> str | None:
    """What is missing in the Python that runs this."""
    if sys.version_info < (3, 11):
        return f"this is Python {platform.python_version()} ({sys.executable}), and 3.11 is needed: make gpu-check PYTHON=python3.12, say"
    return None if importlib.util.find_spec("numpy") else f"{sys.executable} has no NumPy"


def find_files() -> str | None:
    """Names library and program for all processes of the check; what is missing, if something is."""
    for variable, name in FILES.items():
        if variable in os.environ:
            continue
        found = next((folder / name for folder in (BUILT, PACKED) if (folder / name).is_file()), None)
        if found is None:
            return f"{name} is neither in target/release nor in build/gpu_check: cargo build --release, or carry what gpu_check.py --pack makes elsewhere"
        os.environ[variable] = str(found)
    return None


def run_step(name: str, folder: Path, stand_in: bool) -> int:
    """One step, in this process; its numbers go to ``found.json`` in the folder."""
    from gpu_steps import Skipped, Steps

    broker = None
    try:
        with open(folder / "broker.log", "w") as log:
            broker = subprocess.Popen([os.environ["LANEWAY_BIN"], "broker"], stdout=log, stderr=log)
        try:
            found: dict[str, Any] = {"passed": True, **getattr(Steps(name, folder, stand_in), name)()}
        except Skipped as why:
            found = {"passed": None, "skipped": str(why)}
        except Exception as error:
            found = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    finally:
        if broker is not None:
            broker.kill()
    (folder / "found.json").write_text(json.dumps(found))
    return 0


def supervise(name: str, limit: float, stand_in: bool) -> dict[str, Any]:
    """Runs one step in a process group of its own, which is ended with it."""
    with tempfile.TemporaryDirectory(prefix="lwg-", dir="/tmp") as text:
        folder = Path(text)
        log = folder / "step.log"
        args = [sys.executable, __file__, "--step", name, "--folder", text] + (["--stand-in"] if stand_in else [])
        start = time.monotonic()
        with open(log, "w") as out:
            child = subprocess.Popen(args, stdout=out, stderr=out, env={**os.environ, "LANEWAY_DIR": text}, start_new_session=True)
        try:
            child.wait(limit)
            ended = f"the step's process ended with {child.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"not done within its {limit:.0f} s"
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        seconds = round(time.monotonic() - start, 1)
        try:
            found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        except (OSError, ValueError):
            found = {"passed": False, "error": ended}
        if found["passed"] is False:
            found["log"] = log.read_text(errors="replace")[-2000:]
        return {**found, "seconds": seconds}


def about(stand_in: bool) -> dict[str, Any]:
    """What this machine is, asked for in a process of its own: the check itself never touches the driver."""
    code = "import json, gpu_driver; g = gpu_driver.Gpu(0); print(json.dumps([g.name(), g.uuid(), g.count(), g.driver_version(), g.free_bytes()]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit status {run.returncode}")
    name, uuid, count, driver, free = json.loads(run.stdout)
    import laneway

    machine = {"machine": platform.platform(), "python": platform.python_version(), "laneway": laneway.__version__}
    return {"stand_in": stand_in, "device": name, "uuid": uuid, "devices": count, "driver": driver, "free_bytes": free, **machine, "steps": {}}


def check(stand_in: bool, out: Path, only: list[str], budget: float) -> int:
    # Whoever ends this ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    try:
        found = about(stand_in)
    except Exception as error:
        print(f"nothing can be checked: no CUDA device can be used here: {error}", file=sys.stderr)
        return 2
    print("STAND-IN DRIVER, NO GPU: this shows that the script runs, and nothing else" if stand_in else f"{found['device']}, {found['uuid']}", flush=True)
    for name in only or LIMITS:
        left = budget - (time.monotonic() - begun)
        # Busy machines are slow, and the stand-in is for them.
        limit = LIMITS[name] * 4 if stand_in else LIMITS[name]
        step = supervise(name, min(limit, left), stand_in) if left > 5 else {"passed": False, "error": "no time was left for it", "seconds": 0.0}
        found["steps"][name] = step
        out.write_text(json.dumps(found, indent=1) + "\n")
        word = {True: "ok  ", False: "FAIL", None: "skip"}[step["passed"]]
        text = ", ".join(f"{key} {value}" for key, value in step.items() if key not in ("passed", "seconds", "log"))
        print(f"{word}  {name.replace('_', ' '):20} {step['seconds']:6.1f} s  {text}", flush=True)
    print(f"written to {out}")
    return 1 if any(step["passed"] is False for step in found["steps"].values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", action="store_true", help="against tests/standin_cuda, to see whether this script runs")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the numbers go (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), default=[], help="some of the steps")
    parser.add_argument("--budget", type=float, default=None, help="seconds for all steps together (300; with --stand-in 1200)")
    parser.add_argument("--pack", action="store_true", help="stripped copies of library and program into build/gpu_check, for a machine that cannot build")
    parser.add_argument("--step", choices=list(LIMITS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--teacher", help=argparse.SUPPRESS)
    parser.add_argument("--floats", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pack:
        return pack()
    missing = what_python_lacks() or find_files()
    if missing is not None:
        print(f"nothing can be checked: {missing}", file=sys.stderr)
        return 2
    if args.teacher:
        from gpu_teachers import teach

        teach(args.teacher, args.floats, args.report, args.device, args.stand_in)
        return 0
    if args.step:
        return run_step(args.step, args.folder, args.stand_in)
    if args.stand_in and os.environ.get("STANDIN_CUDA_HERE") != "1":
        # The loader looks at LD_LIBRARY_PATH when a process starts.
        folder = subprocess.run([str(ROOT / "tests" / "standin_cuda" / "build.sh")], check=True, capture_output=True, text=True).stdout.strip()
        env = {"STANDIN_CUDA_FAULTS": "slow=1", **os.environ, "LD_LIBRARY_PATH": folder, "STANDIN_CUDA_HERE": "1"}
        return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=env).returncode
    return check(args.stand_in, args.out, args.only, args.budget or (1200 if args.stand_in else 300))


if __name__ == "__main__":
    sys.exit(main())
