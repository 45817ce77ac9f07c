#!/usr/bin/env python3
"""`make demo`: watch a real language model being distilled into a smaller one through Laneway, and a training
run move from one number of ranks to others, with and without a teacher in the recipe.

**distill**. A broker, two workers (each with the teacher, SmolLM2-135M-Instruct) and a student run as processes of
their own, as four terminals with `examples/python/distill_llm.py` would. On the way one worker is killed with
SIGKILL while it holds tickets and, a little later, started again. Then everything that the processes wrote
down is checked: the loss on unseen text fell in every stage, and each ticket was delivered once and in order.
The run is drawn as a page, demo/distill.html.

A sample follows from its ticket alone, so on one machine the losses come out the same in every run, whichever
worker made what and whoever was killed when.

**generate**. Text → tokens → rows → what SmolLM2 says of each row → batch, as one recipe with a `[generate]` (`examples/python/taught`), run with one,
two and four workers, with workers killed on the way, and from a checkpoint on other numbers of ranks. demo/generate.html and demo/generate.png show
which global batches, tokens and answers, were identical, and who made each row.

**elastic**. A small model is trained on two ranks, and from its checkpoint on one, two and four ranks, with Laneway's
loader and with a standard one beside it (`examples/python/elastic`). demo/elastic.html and demo/elastic.png show the
losses, and which global batches were identical.

The exit status is 0 only if all that held.

    python examples/demo.py [folder] [--part distill|generate|elastic]      default: demo/ at the top of the repository; all
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "python"))
from distill.corpus import Corpus  # noqa: E402
from distill.events import EventReader  # noqa: E402
from distill.record import Run, read_run  # noqa: E402

PROGRAM = HERE / "python" / "distill_llm.py"
WORKERS = ["worker 1", "worker 2"]
KILL_AT_STEP = 40  # of the first student's 104: early in its second stage
AWAY_SECONDS = 5.0  # from the kill to the new start
PATIENCE_SECONDS = 600.0  # for a whole student run, however slow the machine


class DemoFailure(Exception):
    """The demo did not show what it promises; the text says what went wrong."""


class Role:
    """One process of the demo, which may be killed and started again; its output goes to a log file."""

    def __init__(self, name: str, folder: Path, *settings: str) -> None:
        self.name, self.log = name, folder / f"{name.replace(' ', '-')}.log"
        self._command = [sys.executable, str(PROGRAM), *settings]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            # A session of its own: Ctrl-C reaches the demo only, which then ends its processes itself.
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self) -> None:
        """SIGKILL; from then on its death is no surprise, until it is started again."""
        assert self.process
        self.process.kill()
        self.process.wait()
        self.process = None

    def exit_status(self) -> int | None:
        return self.process.poll() if self.process else None

    def stop(self) -> None:
        """Ask it to end; insist after five seconds."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()

    def failure(self) -> DemoFailure:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return DemoFailure(f"the {self.name} ended by itself, status {self.exit_status()}. The end of {self.log}:\n{tail}")


class Screen:
    """Progress bars, one a process; plain lines where there is no terminal to draw on."""

    def __init__(self, workers: list[str]) -> None:
        self.live = sys.stderr.isatty()
        bar = {"disable": not self.live, "dynamic_ncols": True}
        self.student = tqdm(total=0, desc="student ", unit="step", position=0, **bar)
        form = "{desc}: {n_fmt:>5} made, {rate_fmt}{postfix}"
        self.workers = {name: tqdm(desc=name, unit=" samples", position=1 + i, bar_format=form, **bar) for i, name in enumerate(workers)}

    def say(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def student_event(self, event: dict) -> None:
        match event["kind"]:
            case "start":
                self.student.reset(total=event["steps"])
            case "switch" if event["split"] == "train":
                self.say(f"  set_model: {event['model']} (generation {event['generation']})")
            case "step":
                self.student.update()
            case "evaluate":
                self.student.set_postfix_str(f"held-out loss {event['loss']:.3f}")
                if not self.live:
                    self.say(f"    step {event['step']:3}: held-out loss {event['loss']:.3f}")

    def worker_event(self, name: str, event: dict) -> None:
        if event["kind"] == "made":
            self.workers[name].update(event["samples"])
        elif event["kind"] == "ready":
            self.workers[name].set_postfix_str("")

    def close(self) -> None:
        for bar in (self.student, *self.workers.values()):
            bar.close()


class Demo:
    """The cast and the script."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "logs"
        for old in ("hidden", "logits", "workers", "logs"):
            shutil.rmtree(folder / old, ignore_errors=True)
        self.logs.mkdir(parents=True)
        self.broker = Role("broker", self.logs, "mode=broker")
        self.workers: list[Role] = []
        self.marks: list[tuple[float, str, str]] = []  # (time, worker, what was done to it)
        self.screen = Screen(WORKERS)
        self._busy = dict.fromkeys(WORKERS, False)  # whether it holds tickets, as far as its log has said
        self._worker_logs = {name: EventReader(folder / "workers" / f"worker-{name[-1]}.jsonl") for name in WORKERS}

    def play(self) -> Run:
        """Run the cast to the end and return the record of it."""
        try:
            self.broker.start()
            self.screen.say("a broker, two workers with the teacher, and a student of its hidden states are starting")
            self._act("hidden", self._kill_and_restart_a_worker())
            self.screen.say("now a student of the teacher's logits, which goes on from the first one's weights")
            self._act("logits", lambda steps: None, f"start_weights={self.folder / 'hidden' / 'student.pt'}")
        finally:
            self.broker.stop()
            self.screen.close()
        return read_run(self.folder, WORKERS, self.marks)

    def _act(self, loss: str, on_step: Callable[[int], None], *settings: str) -> None:
        """Two workers and a student of one loss, until the student is done."""
        run, workers_run = f"run={self.folder / loss}", f"run={self.folder / 'workers'}"
        self.workers = [Role(name, self.logs, "mode=worker", f"loss={loss}", f"worker.name={name[-1]}", workers_run) for name in WORKERS]
        student = Role(f"student of {loss}", self.logs, "mode=student", f"loss={loss}", run, "progress=false", *settings)
        try:
            for role in (*self.workers, student):
                role.start()
            self._follow(student, EventReader(self.folder / loss / "student-0.jsonl"), on_step)
        finally:
            for role in (student, *self.workers):
                role.stop()

    def _follow(self, student: Role, log: EventReader, on_step: Callable[[int], None]) -> None:
        steps, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        running = True
        while running:
            time.sleep(0.1)
            running = student.exit_status() is None  # asked before the last look at the logs
            for event in log.new():
                steps += event["kind"] == "step"
                self.screen.student_event(event)
            for name, reader in self._worker_logs.items():
                for event in reader.new():
                    self._busy[name] = event["kind"] == "take"
                    self.screen.worker_event(name, event)
            on_step(steps)
            for role in (self.broker, *self.workers):
                if role.exit_status() is not None:
                    raise role.failure()
            if time.monotonic() > deadline:
                raise DemoFailure(f"the {student.name} was not done after {PATIENCE_SECONDS:.0f} s: see {student.log}")
        if student.exit_status() != 0:
            raise student.failure()

    def _kill_and_restart_a_worker(self) -> Callable[[int], None]:
        def on_step(steps: int) -> None:
            now, victim = time.time(), self.workers[-1]
            if not self.marks and steps >= KILL_AT_STEP and self._busy[victim.name]:
                victim.kill()
                self.marks.append((now, victim.name, "killed"))
                self.screen.say(f"  {victim.name} is killed (SIGKILL)")
                self.screen.workers[victim.name].set_postfix_str("KILLED")
            elif len(self.marks) == 1 and now > self.marks[0][0] + AWAY_SECONDS:
                victim.start()
                self.marks.append((now, victim.name, "started again"))
                self.screen.say(f"  {victim.name} is started again")
                self.screen.workers[victim.name].set_postfix_str("loading the teacher again")

        return on_step


def report(run: Run) -> list[str]:
    """Print what the run showed; return what went wrong."""
    for stage in run.stages:
        first, last = stage.held_out[0], stage.held_out[-1]
        line = f"  {stage.model:9} held-out loss {first[1]:.3f} -> {last[1]:.3f}"
        if last[2] is not None:
            line += f" nats a token; the likeliest next token is the teacher's at {first[2]:.0%} -> {last[2]:.0%} of places"
        print(line)
    made = ", ".join(f"{worker.name} made {worker.samples:,}" for worker in run.workers)
    print(f"  throughput: {run.samples:,} samples ({run.bytes / 1e6:.0f} MB) in {run.seconds:.0f} s, {run.samples / run.seconds:.1f} samples/s; {made}")
    for line in run.kill_story:
        print(f"  {line}")
    faults = run.faults()
    if not faults:
        print(f"  all {run.samples:,} tickets were delivered once and in order")
    return faults


def play_distill(folder: Path) -> int:
    """The first part; its exit status."""
    began = time.monotonic()
    Corpus()  # fetched and tokenized here, the first time, rather than by two workers at once
    with tempfile.TemporaryDirectory(prefix="laneway-demo-") as sockets:
        os.environ.update(LANEWAY_DIR=sockets, OMP_NUM_THREADS="1", HYDRA_FULL_ERROR="1")
        try:
            run = Demo(folder).play()
        except DemoFailure as failure:
            print(f"demo: {failure}", file=sys.stderr)
            return 1
    faults = report(run)
    from distill.page import write_page

    page = write_page(run, folder / "distill.html")
    print(f"  page: {page} (this part took {time.monotonic() - began:.0f} s)")
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    return 1 if faults else 0


def play_generate(folder: Path) -> int:
    """The second part; its exit status. A process of its own: it forks others, which must not run any thread of the first part's."""
    print("one recipe with a teacher in it is run with one, two and four workers, some of them killed, and resumed on other numbers of ranks")
    return subprocess.run([sys.executable, "-m", "taught.play", str(folder)], cwd=HERE / "python", check=False).returncode


def play_elastic(folder: Path) -> int:
    """The third part; its exit status."""
    from elastic.play import show
    from elastic.train import Sizes

    print("a training run is stopped, and goes on on one, two and four ranks, with two loaders")
    return show(folder, Sizes())


PARTS = {"distill": play_distill, "generate": play_generate, "elastic": play_elastic}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE.parent / "demo")
    parser.add_argument("--part", choices=PARTS, help="only this one")
    options = parser.parse_args()
    try:
        return max([play(options.folder.resolve()) for name, play in PARTS.items() if options.part in (name, None)])
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
