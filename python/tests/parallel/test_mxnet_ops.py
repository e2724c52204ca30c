"""What is MXNet's own: gradients, optimizers, trainers, parameters, compression, errors."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import MXNetError

import corro.mxnet as hvd


def same(result, wanted):
    np.testing.assert_allclose(result.asnumpy(), np.asarray(wanted), rtol=1e-5)


def gradient(function, x, head=None):
    x.attach_grad()
    with mx.autograd.record():
        y = function(x)
    y.backward(head)
    return x.grad


def test_results_are_ready_for_what_comes_next():
    n = hvd.size()
    x = mx.nd.ones((1000,))
    for _ in range(20):
        x = hvd.allreduce(x * 2, op=hvd.Sum) / (2 * n)
        x += 0
    same(x, np.ones(1000))
    y = mx.nd.zeros((1000,))
    y += 3
    hvd.allreduce_(y, op=hvd.Sum)
    same(y, np.full(1000, 3 * n))


def test_the_new_interface_keeps_its_class():
    x = mx.np.ones((2, 3))
    for result in (hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0)):
        assert isinstance(result, mx.np.ndarray)


def test_gradients():
    me, n = hvd.rank(), hvd.size()
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), mx.nd.ones((3,))), [n] * 3)
    same(gradient(hvd.allreduce, mx.nd.ones((3,))), [1] * 3)
    both = gradient(lambda x: sum(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)), mx.nd.ones((3,)))
    same(both, [3 * n] * 3)
    head = mx.nd.array(np.repeat(np.arange(n), [r + 1 for r in range(n)]))
    same(gradient(hvd.allgather, mx.nd.ones((me + 1,)), head), [me] * (me + 1))
    same(gradient(lambda x: hvd.broadcast(x, 0), mx.nd.ones((2,))), [1.0 if me == 0 else 0.0] * 2)
    same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), mx.nd.ones((2 * n,))), [n] * (2 * n))
    same(gradient(hvd.reducescatter, mx.nd.ones((2 * n,))), [1] * (2 * n))
    head = mx.nd.array(np.arange(n) + 1.0)
    same(gradient(hvd.alltoall, mx.nd.ones((n,)), head), [me + 1] * n)
    splits = [1] * n
    same(gradient(lambda x: hvd.alltoall(x, splits=splits)[0], mx.nd.ones((n + 1,))), [1] * n + [0])


def test_refused():
    with pytest.raises(AssertionError):
        hvd.allreduce(mx.nd.ones((2,)), op=hvd.Adasum)
    with pytest.raises(AssertionError):
        hvd.reducescatter(mx.nd.ones((2,)), op=hvd.Min)
    with pytest.raises(MXNetError):
        hvd.broadcast(mx.nd.ones((2,)), root_rank=hvd.size())
    with pytest.raises(ValueError, match="invalid params"):
        hvd.broadcast_parameters([mx.nd.ones((2,))])
    if hvd.size() > 1:
        with pytest.raises(MXNetError, match="Mismatched"):
            hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="different")
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="different")


@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}], ids=str)
def test_optimizer(options):
    me, n = hvd.rank(), hvd.size()
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), **options)
    assert optimizer.learning_rate == 1.0
    weight = mx.nd.zeros((2,))
    optimizer.update(0, weight, mx.nd.ones((2,)) * me, optimizer.create_state(0, weight))
    same(weight, [-np.mean(range(n))] * 2)
    weights = [mx.nd.zeros((2,)), mx.nd.zeros((3,))]
    optimizer.update([1, 2], weights, [mx.nd.ones((2,)) * me, mx.nd.ones((3,)) * 2 * me], [None, None])
    same(weights[1], [-2 * np.mean(range(n))] * 3)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_groups": 1}, {"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 4.0}],
    ids=str,
)
def test_trainer(options):
    me, n = hvd.rank(), hvd.size()
    mx.random.seed(me)
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Dense(4), mx.gluon.nn.Dense(1))
    net.initialize()
    params = net.collect_params()
    # The shapes are not known before the first batch.
    hvd.broadcast_parameters(params, root_rank=0, prefix=f"{sorted(options)}")
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 0.05}, prefix=f"{sorted(options)}", **options)
    rng = np.random.default_rng(me)
    first = last = None
    for _ in range(30):
        x = mx.nd.array(rng.normal(size=(8, 3)))
        with mx.autograd.record():
            loss = ((net(x)[:, 0] - x.sum(axis=1)) ** 2).mean()
        loss.backward()
        trainer.step(1)
        last = loss.asscalar()
        first = last if first is None else first
    values = hvd.allgather_object([p.data().asnumpy().tolist() for p in net.collect_params().values()])
    assert values == [values[0]] * n
    assert last < first


def test_a_trainer_unwraps_an_optimizer():
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize()
    with pytest.warns(UserWarning, match="needs a plain optimizer"):
        hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(mx.optimizer.SGD()))


def test_process_sets_and_objects():
    if hvd.size() == 1:
        pytest.skip("one rank has no part of the ranks")
    first = hvd.add_process_set([0])
    if hvd.rank() == 0:
        same(hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, process_set=first), [1, 1])
    hvd.remove_process_set(first)
    assert hvd.broadcast_object({"a": hvd.rank()}, 1) == {"a": 1}
