"""Mediums that the tests use, on both sides."""

from laneway.mediums import MediumBase


# fmt: off
class FileMedium(MediumBase):
    """The example of the published design, word for word."""

    def __init__(self, slot_count: int, slot_stride: int, path: str):
        self._path = path
        self._slot_count = slot_count
        self._slot_stride = slot_stride
        self._file = open(path, 'w+b')
        self._file.truncate(slot_count * slot_stride)

    @property
    def buf_name(self) -> str:
        return self._path

    @property
    def slot_count(self) -> int:
        return self._slot_count

    @property
    def slot_stride(self) -> int:
        return self._slot_stride

    def read_slot_tensors(self, slot_id: int) -> bytes:
        offset = slot_id * self._slot_stride
        self._file.seek(offset)
        return self._file.read(self._slot_stride)

    def close(self) -> None:
        self._file.close()

    def unlink(self) -> None:
        import os

        os.unlink(self._path)
# fmt: on


class BrokenMedium(FileMedium):
    """Cannot be read."""

    def read_slot_tensors(self, slot_id):
        raise OSError("the disk is on fire")


class RefusingMedium(FileMedium):
    """Cannot be attached to."""

    @classmethod
    def attach(cls, buf_name):
        raise PermissionError(f"{buf_name} is locked away")
