"""Jobs of Keras that are watched: TensorBoard itself reads what was logged."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from test_jobs import run_job

TRAINING = """
import keras, numpy as np
import corro.keras as hvd

hvd.init()
rng = np.random.default_rng(hvd.rank())
x = rng.normal(size=(256, 8)).astype("float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.LogValuesCallback(every=2)]
model.fit(x, x.sum(1), batch_size=16, epochs=3, callbacks=callbacks, verbose=0)
"""


@pytest.mark.timeout(300)
def test_keras_logs_what_tensorboard_reads(tmp_path: Path) -> None:
    script, record, logs = tmp_path / "train.py", tmp_path / "run.corro", tmp_path / "logs"
    script.write_text(TRAINING)
    backend = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    job = run_job(2, "--record", str(record), "--logdir", str(logs), sys.executable, str(script), **backend)
    assert job.returncode == 0, f"{job.stdout[-3000:]}\n{job.stderr[-3000:]}"
    recorded = json.loads(record.read_text())
    assert [rank["state"] for rank in recorded["ranks"]] == ["done", "done"], recorded
    assert all(rank["step"] >= 40 for rank in recorded["ranks"]), "steps are found where no optimizer tells"
    values = [json.loads(line) for line in (logs / "values.jsonl").read_text().splitlines()]
    assert {(v["name"], v["ranks"]) for v in values} == {("loss", 2), ("epoch_loss", 2)}, values[:3]
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("this environment has no TensorBoard to read the files with")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(logs))
    read.Reload()
    for name in ("loss", "epoch_loss"):
        mine = [(v["step"], v["value"]) for v in values if v["name"] == name]
        theirs = [(scalar.step, scalar.value) for scalar in read.Scalars(name)]
        assert [step for step, _ in theirs] == [step for step, _ in mine]
        assert [value for _, value in theirs] == pytest.approx([value for _, value in mine])
