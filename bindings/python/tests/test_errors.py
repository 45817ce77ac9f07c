"""Exceptions: one for each status, each a kind of the fitting builtin, and able to cross processes. Needs no library."""

import pickle

import pytest

from laneway import LanewayError, TaskError, errors
from laneway.errors import Status, from_status


def test_every_status_has_its_exception():
    for status in Status:
        if status is Status.OK:
            continue
        error = from_status(status, "what, where, why")
        assert type(error) is not LanewayError and error.status == status and str(error) == "what, where, why"


def test_an_unknown_status_is_still_an_error():
    error = from_status(4242, "new")
    assert type(error) is LanewayError and error.status == 4242 and "4242" in str(error)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.Timeout, TimeoutError),
        (errors.InvalidArgument, ValueError),
        (errors.NoMemory, MemoryError),
        (errors.IoError, OSError),
        (errors.NotFound, LookupError),
        (errors.PeerDead, ConnectionError),
        (errors.NotLeader, PermissionError),
        (errors.TaskError, RuntimeError),
    ],
)
def test_the_fitting_builtin_catches_it(kind, builtin):
    with pytest.raises(builtin):
        raise kind("x")


def test_they_cross_processes_as_torch_and_multiprocessing_send_them():
    for status in Status:
        if status is not Status.OK:
            error = from_status(status, "text")
            back = pickle.loads(pickle.dumps(error))
            assert (type(back), str(back), back.status) == (type(error), "text", status)
            assert str(type(error)("again")) == "again"


def test_a_failed_ticket_says_which_and_why():
    error = TaskError("ticket (lane 3, step 17) failed after 2 attempts: Traceback ...\nValueError: no teacher")
    assert (error.lane, error.step, error.attempts) == (3, 17, 2)
    assert error.text == "Traceback ...\nValueError: no teacher"
    assert pickle.loads(pickle.dumps(error)).step == 17
