"""Mediums of one's own and named shared memory, without the exchange. Needs no library."""

import os
import re
import subprocess
import sys

import pytest
from own_mediums import FileMedium

from laneway.errors import Corrupt, InUse, NoMemory, NotFound
from laneway.mediums import Medium, SharedMemoryManager


@pytest.fixture(params=["file", "shm"])
def pair(request, tmp_path):
    """The student's medium and the worker's view of it: 4 slots of 100 bytes."""
    if request.param == "file":
        medium = FileMedium(4, 100, str(tmp_path / "slots"))
        other = FileMedium.attach(medium.buf_name, 4, 100)
    else:
        medium = SharedMemoryManager(slot_count=4, slot_stride=100, read_only=True)
        other = SharedMemoryManager(slot_count=4, slot_stride=100, read_only=False, run_id=medium.run_id)
    yield medium, other
    other.close()
    medium.close()
    medium.unlink()


def read(medium, slot):
    medium.drop_read_ahead()
    return bytes(medium.read_slot_tensors(slot))


def test_what_a_worker_writes_the_student_reads(pair):
    medium, other = pair
    assert isinstance(medium, Medium) and isinstance(other, Medium)
    for slot in (3, 0, 2, 1):
        other.write_slot(slot, bytes([slot + 1]) * 100)
        assert read(medium, slot) == bytes([slot + 1]) * 100
    other.write_slot(2, b"short")
    assert read(medium, 2)[:5] == b"short"
    assert [read(medium, s)[99] for s in range(4)] == [1, 2, 3, 4]
    assert read(other, 1) == read(medium, 1)


def test_slots_are_read_anew_although_python_reads_ahead(pair):
    medium, other = pair
    for turn in range(1, 5):
        for slot in range(4):
            other.write_slot(slot, bytes([turn]) * 100)
            assert read(medium, slot) == bytes([turn]) * 100


@pytest.mark.parametrize("slot", [-1, 4, 1000])
def test_a_slot_that_does_not_exist_is_refused(pair, slot):
    with pytest.raises(ValueError, match=f"slot {slot} does not exist; .* slots 0 to 3"):
        pair[1].write_slot(slot, b"x")


def test_more_bytes_than_a_slot_has_are_refused_and_nothing_is_written(pair):
    medium, other = pair
    other.write_slot(1, b"a" * 100)
    with pytest.raises(ValueError, match="101 bytes do not fit slot 0 .* 100"):
        other.write_slot(0, b"b" * 101)
    assert read(medium, 1) == b"a" * 100 and read(medium, 0) == bytes(100)


def test_the_name_fits_31_characters_and_says_who_owns_it():
    with SharedMemoryManager(2, 64, read_only=True) as shm:
        assert len(shm.buf_name) <= 31
        pid, start = re.fullmatch(r"lw_([0-9a-f]+)_([0-9a-f]+)_[0-9a-f]{8}", shm.buf_name).groups()
        fields = open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()
        assert int(pid, 16) == os.getpid() and int(start, 16) == int(fields[19])
        assert os.stat(f"/dev/shm/{shm.buf_name}").st_mode & 0o777 == 0o600
    assert not os.path.exists(f"/dev/shm/{shm.buf_name}")


def test_another_process_attaches_by_run_id():
    for run_id in (None, "my run / 7"):
        with SharedMemoryManager(2, 64, read_only=True, run_id=run_id) as shm:
            code = (
                "import sys; from laneway.mediums import SharedMemoryManager as S\n"
                "S(2, 64, read_only=False, run_id=sys.argv[1]).write_slot(1, b'hello')"
            )
            subprocess.run(
                [sys.executable, "-c", code, shm.run_id],
                check=True,
                env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
            )
            assert bytes(shm.read_slot_tensors(1)[:5]) == b"hello"
            assert os.path.exists(f"/dev/shm/{shm.buf_name}"), "a worker's end leaves the student's memory alone"


def test_a_run_id_in_use_is_refused_and_a_missing_one_is_said():
    with SharedMemoryManager(1, 64, read_only=True, run_id="twice"):
        with pytest.raises(InUse, match=f"'twice' is in use by process {os.getpid()}"):
            SharedMemoryManager(1, 64, read_only=True, run_id="twice")
    for name in ("twice", "lw_1_1_00000000", "../etc/passwd"):
        with pytest.raises(NotFound, match="has its creator ended"):
            SharedMemoryManager(1, 64, read_only=False, run_id=name)
    with pytest.raises(ValueError, match="run_id is missing"):
        SharedMemoryManager(1, 64, read_only=False)


def test_a_killed_owner_does_not_hold_its_run_id():
    code = (
        "import os, signal; from laneway.mediums import SharedMemoryManager as S\n"
        "s = S(1, 64, read_only=True, run_id='killed'); print(s.buf_name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout.strip()
    try:
        with SharedMemoryManager(1, 64, read_only=True, run_id="killed") as shm:
            assert shm.buf_name != left
            SharedMemoryManager(1, 64, read_only=False, run_id="killed").close()
    finally:
        os.unlink(f"/dev/shm/{left}")


def test_too_little_room_is_an_error_with_both_numbers_and_leaves_nothing():
    mine = f"lw_{os.getpid():x}_"
    with pytest.raises(NoMemory, match=r"need \d{13,} bytes, /dev/shm has \d+ free") as error:
        SharedMemoryManager(1 << 20, 1 << 20, read_only=True)
    assert isinstance(error.value, MemoryError)
    assert not any(name.startswith(mine) for name in os.listdir("/dev/shm"))


def test_another_geometry_or_a_foreign_file_is_refused():
    with SharedMemoryManager(2, 128, read_only=True) as shm:
        with pytest.raises(Corrupt, match="has 2 slots of 128 bytes; expected 4 slots of 64"):
            SharedMemoryManager(4, 64, read_only=False, run_id=shm.run_id)
        path = f"/dev/shm/{shm.buf_name}"
        os.truncate(path, 300)
        with pytest.raises(Corrupt, match="was cut: 300 bytes"):
            SharedMemoryManager(2, 128, read_only=False, run_id=shm.run_id)
        os.truncate(path, 2 * 128 + 32)  # as it was, so that nothing is out of bounds


def test_a_view_outlives_close_and_unlink():
    shm = SharedMemoryManager(2, 64, read_only=True)
    shm.write_slot(1, b"kept")
    view = shm.read_slot_tensors(1)
    shm.close()
    shm.unlink()
    assert bytes(view[:4]) == b"kept"
    with pytest.raises(ValueError, match="is closed"):
        shm.read_slot_tensors(0)
    with pytest.raises(TypeError):
        view[0] = 1


def test_only_the_creator_removes_the_name():
    with SharedMemoryManager(1, 64, read_only=True) as shm:
        other = SharedMemoryManager(1, 64, read_only=False, run_id=shm.run_id)
        with pytest.raises(OSError, match="belongs to the process that created it"):
            other.unlink()
        other.close()
        pid = os.fork()
        if pid == 0:
            shm.unlink()
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.path.exists(f"/dev/shm/{shm.buf_name}")


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "4"])
def test_counts_are_positive_ints(bad):
    with pytest.raises(ValueError, match="slot_count is"):
        SharedMemoryManager(bad, 64, read_only=True)
    with pytest.raises(ValueError, match="slot_stride is"):
        SharedMemoryManager(1, bad, read_only=True)
