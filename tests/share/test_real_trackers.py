"""Runs are logged with the trackers' real libraries, and the logs are read back. `make share-test` runs these tests."""

import os
import struct
import tempfile

import pytest
from conftest import LONG
from small_runs import SMALL_RECIPE, list_tracked_points

from lengthwise.base.errors import Interrupted
from lengthwise.runs.run import Run
from lengthwise.training.loop import train

# Trackio reads this variable once, when it is imported.
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()

pytestmark = [
    pytest.mark.skipif(not LONG, reason="seconds each: make share-test"),
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries
]


@pytest.fixture
def run(request, monkeypatch):
    """Return a run that was stopped and resumed, tracked with the library ``request.param``."""
    pytest.importorskip(request.param)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    save = Run.save_state
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_state", lambda one, state: _save_and_stop(save, one, state))
        with pytest.raises(Interrupted):
            train(SMALL_RECIPE, track=[request.param], save_every=0)
    return train(SMALL_RECIPE, track=[request.param])


def _save_and_stop(save_state, run, state):
    save_state(run, state)
    if state["step"] == 15:
        raise Interrupted("stopped")


@pytest.mark.parametrize("run", ["tensorboard"], indirect=True)
def test_tensorboard_s_event_files_hold_every_step(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    for name in ("loss", "rate"):
        events = found.Tensors(name) if name in found.Tags()["tensors"] else found.Scalars(name)
        assert [event.step for event in events] == [at for _, at, _ in list_tracked_points(run)]


@pytest.mark.parametrize("run", ["trackio"], indirect=True)
def test_trackio_s_database_holds_every_step_and_loss(run):
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("lengthwise", run.folder.name)
    assert [row["step"] for row in logs] == [at for _, at, _ in list_tracked_points(run)]
    assert [row["loss"] for row in logs] == pytest.approx([values["loss"] for _, _, values in list_tracked_points(run)])


@pytest.mark.parametrize("run", ["wandb"], indirect=True)
def test_wandb_s_offline_files_hold_every_step(run):
    from wandb.proto.wandb_internal_pb2 import Record

    steps = []
    for path in sorted(run.folder.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime):
        for data in read_leveldb_records(path.read_bytes()):
            record = Record.FromString(data)
            steps += [int(item.value_json) for item in record.history.item if "step" in (item.key, *item.nested_key)]
    assert steps == [at for _, at, _ in list_tracked_points(run)]


def read_leveldb_records(content, block_size=32768):
    """Yield the records of a file in LevelDB's log format, which starts with a header of 7 bytes. Each piece has a
    checksum, a length and a type: a whole record (1), or the first (2), a middle (3) or the last (4) part of one."""
    start, record = 7, b""
    while start + 7 <= len(content):
        if block_size - start % block_size < 7:
            start += block_size - start % block_size
        length, kind = struct.unpack("<HB", content[start + 4 : start + 7])
        record += content[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):
            yield record
            record = b""
