"""What tests run in the pods of an elastic job: a sum a step, a commit a step, and a line a step with the time.

It ends when it has seen as many ranks as it waits for, and then fewer again.
"""

import sys
import time

import numpy as np

import corro.numpy as hvd
from corro._front.elastic import restart
from corro.common.elastic import ObjectState, run_fn

MOST = int(sys.argv[1])

hvd.init()
state = ObjectState(hvd.broadcast_object, hvd.rank, steps=0, most=0)


def train(state):
    while state.most < MOST or hvd.size() >= MOST:
        time.sleep(0.05)
        total = hvd.allreduce(np.ones(1000), op=hvd.Sum, name="x")
        state.steps += 1
        state.most = max(state.most, hvd.size())
        if hvd.rank() == 0:
            print(f"step {state.steps} of {int(total[0])} at {time.time():.3f}", flush=True)
        state.commit()


run_fn(train, restart)(state)
print("done", flush=True)
