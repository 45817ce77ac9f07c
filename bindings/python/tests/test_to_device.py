"""``laneway.torch.to_device``: batches one ahead. There is no GPU here; that copies overlap is for ``make gpu-check``'s machines to show."""

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

from laneway.torch import ToDevice, _Staged, to_device  # noqa: E402


def test_on_the_cpu_batches_are_handed_on_as_they_are():
    batches = [{"x": torch.ones(3), "n": 5, "names": ["a"]}, [torch.zeros(2)], torch.ones(1)]
    moved = list(to_device(batches, "cpu"))
    assert moved[0]["x"] is batches[0]["x"] and moved[0]["n"] == 5 and moved[0]["names"] == ["a"]
    assert moved[1][0] is batches[1][0] and moved[2] is batches[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_cuda_the_default_is_the_cpu_and_asking_for_cuda_is_an_error():
    assert [t.device.type for t in to_device([torch.ones(1)])] == ["cpu"]
    for device in ("cuda", 0):
        with pytest.raises(RuntimeError, match="has no CUDA device here"):
            to_device([torch.ones(1)], device)


def test_what_batches_are_made_of_is_moved():
    Pair = namedtuple("Pair", "a b")
    (moved,) = to_device([Pair({"x": torch.ones(2)}, (torch.ones(1), "text"))], torch.device("meta"))
    assert isinstance(moved, Pair) and moved.a["x"].is_meta and moved.b[0].is_meta and moved.b[1] == "text"


class Fake:
    """As much of ``torch.cuda`` as `to_device` uses. What happens is written down."""

    def __init__(self, monkeypatch):
        self.log: list[str] = []
        note = self.log.append

        class Stream:
            name = "side"

            def __init__(self, device):
                pass

            def __enter__(self):
                note("begin side")

            def __exit__(self, *_):
                note("end side")

            def wait_event(self, event):
                note(f"{self.name} waits for copy {event.number}")

        class Current(Stream):
            name = "trainer's"

        class Event:
            count = 0

            def __init__(self):
                self.number, Event.count = Event.count, Event.count + 1

            def record(self, stream):
                note(f"record {self.number} on {stream.name}")

            def synchronize(self):
                note(f"synchronize {self.number}")

        class Moved:
            is_cuda = True

            def __init__(self, number):
                self.number = number

            def record_stream(self, stream):
                note(f"{self.number} used on {stream.name}")

        class Batch:
            def __init__(self, number):
                self.number = number

            def to(self, device, non_blocking):
                assert device.type == "cuda" and non_blocking
                note(f"copy {self.number}")
                return Moved(self.number)

        cuda = {"is_available": lambda: True, "Stream": Stream, "stream": lambda s: s, "Event": Event, "current_stream": lambda device: Current(device)}
        for name, what in cuda.items():
            monkeypatch.setattr(torch.cuda, name, what)
        monkeypatch.setattr("laneway.torch._tensors", lambda moved: [moved])
        self.batches = [Batch(0), Batch(1)]


def test_copies_run_on_a_stream_of_their_own_which_the_trainers_stream_waits_for(monkeypatch):
    fake = Fake(monkeypatch)
    for moved in to_device(fake.batches, "cuda"):
        fake.log.append(f"work {moved.number}")
    stage = "begin side, copy {0}, record {0} on side, end side"
    take = "trainer's waits for copy {0}, {0} used on trainer's"
    expected = [stage.format(0), take.format(0), stage.format(1), "work 0", take.format(1), "synchronize 0", "work 1", "synchronize 1"]
    assert ", ".join(fake.log) == ", ".join(expected)


class Source:
    """Batches 0, 1, 2, … and a state that counts them."""

    def __init__(self, n):
        self.n, self.given = n, 0

    def __iter__(self):
        self.given = 0
        while self.given < self.n:
            self.given += 1
            yield self.given - 1

    def state_dict(self):
        return {"given": self.given}


def ahead(source, log):
    class Logged(_Staged):
        def take(self):
            log.append(("take", self._batch))
            return super().take()

        def done(self):
            log.append(("done", self._batch))
            super().done()

    def stage(batch):
        log.append(("copy", batch))
        return Logged(batch, batch)

    return ToDevice(source, stage, 1)


def test_the_next_batch_is_on_its_way_before_one_is_worked_on_and_each_is_kept_until_the_next_is_asked_for():
    log = []
    batches = ahead(Source(3), log)
    for batch in batches:
        log.append(("work", batch))
    expected = "copy 0, take 0, copy 1, work 0, take 1, copy 2, done 0, work 1, take 2, done 1, work 2, done 2"
    assert ", ".join(f"{what} {number}" for what, number in log) == expected
    assert list(batches) == [0, 1, 2], "it can be iterated again"


def test_a_checkpoint_does_not_count_the_batch_ahead():
    source = Source(3)
    batches = ahead(source, [])
    for batch in batches:
        assert batches.state_dict() == {"given": batch + 1}
    assert list(to_device(source, "cpu")) == [0, 1, 2]
    with pytest.raises(TypeError, match="list has no state_dict"):
        to_device([], "cpu").state_dict()
