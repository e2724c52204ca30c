"""What is TensorFlow's own about the operations: graphs, shapes, gradients, slices, sets chosen at run time."""

import re

import numpy as np
import pytest
import tensorflow as tf

import corro.tensorflow as hvd
from corro import _native
from corro.tensorflow import mpi_ops

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def runs(mode, function, *args):
    """What `function` gives, eagerly or in a graph."""
    return function(*args) if mode == "eager" else tf.function(function)(*args)


def count(kind="allreduce"):
    """How many tensors of a kind this rank's engine has moved."""
    return int(re.search(rf'corro_tensors_total{{rank="\d+",kind="{kind}"}} (\d+)', _native.metrics())[1])


def test_operations_on_constants_run_every_time_and_are_not_merged():
    @tf.function
    def constants():
        one = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum, name="first")
        same = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum, name="second")
        return one + same

    constants()
    before = count()
    for _ in range(3):
        np.testing.assert_allclose(constants(), [2.0 * hvd.size(), 4.0 * hvd.size()])
    assert count() - before == 6


def test_shapes_are_known_as_far_as_they_can_be():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([4, 2]), tf.TensorSpec(None)])
    def shapes(some, fixed, unknown):
        assert hvd.allreduce(some).shape.as_list() == [None, 3]
        assert hvd.allgather(fixed).shape.as_list() == [None, 2]
        assert hvd.broadcast(fixed, 0).shape.as_list() == [4, 2]
        assert hvd.reducescatter(fixed).shape.as_list() == [None, 2]
        assert [t.shape.as_list() for t in hvd.grouped_allreduce([some, fixed])] == [[None, 3], [4, 2]]
        assert [t.shape.as_list() for t in hvd.grouped_allgather([some, fixed])] == [[None, 3], [None, 2]]
        output, received = hvd.alltoall(fixed, splits=[4] + [0] * (hvd.size() - 1))
        assert output.shape.as_list() == [None, 2]
        assert received.shape.rank == 1
        assert hvd.allgather(unknown).shape.rank is None
        assert hvd.size_op().shape.rank == 0
        with pytest.raises(ValueError, match="rank"):
            hvd.reducescatter(tf.constant(1.0))
        return some

    shapes(tf.ones([2, 3]), tf.ones([4, 2]), tf.ones([1]))


@MODES
def test_gradient_of_allreduce(mode):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5) * tf.constant([1.0, 2.0])
        return tape.gradient(y, x)

    np.testing.assert_allclose(runs(mode, gradient, tf.constant([3.0, 4.0])), [0.5 * hvd.size(), 1.0 * hvd.size()])


@MODES
def test_gradient_of_grouped_allreduce(mode):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            a, b = hvd.grouped_allreduce([x, 2.0 * x], op=hvd.Sum)
            loss = tf.reduce_sum(a) + tf.reduce_sum(b)
        return tape.gradient(loss, x)

    np.testing.assert_allclose(runs(mode, gradient, tf.constant([3.0, 4.0])), [3.0 * hvd.size()] * 2)


@MODES
def test_gradient_of_allgather_is_averaged_and_own(mode):
    me, size = hvd.rank(), hvd.size()

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allgather(x)
            (grouped,) = hvd.grouped_allgather([x])
            weights = tf.range(tf.shape(y)[0], dtype=tf.float32)
            loss = tf.reduce_sum((y + grouped) * weights[:, None] * (me + 1.0))
        return tape.gradient(loss, x)

    start = me * (me + 1) // 2
    mean = (size + 1) / 2
    wanted = np.repeat([[2 * mean * (start + i)] for i in range(me + 1)], 2, axis=1)
    np.testing.assert_allclose(runs(mode, gradient, tf.ones([me + 1, 2])), wanted)


@MODES
def test_gradient_of_broadcast_is_roots(mode):
    root = hvd.size() - 1

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.broadcast(x, root) * (hvd.rank() + 1.0)
        return tape.gradient(y, x)

    wanted = (hvd.size() + 1) / 2 if hvd.rank() == root else 0.0
    np.testing.assert_allclose(runs(mode, gradient, tf.ones([3])), [wanted] * 3)


@MODES
def test_gradient_of_alltoall_goes_back(mode):
    size, me = hvd.size(), hvd.rank()

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = hvd.alltoall(x, splits=[1] * size)
            y *= me + 1.0
        return tape.gradient(y, x)

    # One row is kept back: nothing flows to it.
    np.testing.assert_allclose(runs(mode, gradient, tf.ones([size + 1])), [*range(1, size + 1), 0])


@MODES
@pytest.mark.parametrize(("op", "factor"), [(hvd.Sum, hvd.size), (hvd.Average, lambda: 1)])
def test_gradient_of_reducescatter_is_gathered(mode, op, factor):
    size, me = hvd.size(), hvd.rank()

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.reducescatter(x, op=op, prescale_factor=2.0)
            (grouped,) = hvd.grouped_reducescatter([x], op=op)
            loss = (tf.reduce_sum(y) + tf.reduce_sum(grouped)) * (me + 1.0)
        return tape.gradient(loss, x)

    np.testing.assert_allclose(runs(mode, gradient, tf.ones([size])), [3.0 * factor() * (r + 1) for r in range(size)])


@MODES
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: [hvd.allreduce(x[0], op=hvd.Average)],
        lambda x: hvd.grouped_allreduce(x, op=hvd.Average),
        lambda x: [hvd.allgather(x[0])],
        hvd.grouped_allgather,
        lambda x: [hvd.broadcast(x[0], 0)],
        lambda x: [hvd.alltoall(x[0])],
        lambda x: [hvd.reducescatter(x[0])],
        hvd.grouped_reducescatter,
    ],
    ids=[
        *("allreduce", "grouped_allreduce", "allgather", "grouped_allgather"),
        *("broadcast", "alltoall", "reducescatter", "grouped_reducescatter"),
    ],
)
def test_what_flows_back_may_come_in_another_float_type(mode, operation):
    """In a group, of each type one; and what leaves has the type of what it belongs to."""

    def gradients(*inputs, brought):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = operation(list(inputs))
        weights = [tf.ones_like(y, dtype) for y, dtype in zip(outputs, brought, strict=False)]
        return tape.gradient(outputs, inputs[: len(outputs)], output_gradients=weights)

    inputs = [tf.ones([hvd.size(), 2]), tf.ones([hvd.size()])]
    wanted = runs(mode, lambda *x: gradients(*x, brought=[tf.float32, tf.float32]), *inputs)
    given = runs(mode, lambda *x: gradients(*x, brought=[tf.float64, tf.float16]), *inputs)
    for mine, right in zip(given, wanted, strict=True):
        assert mine.dtype == tf.float32
        np.testing.assert_allclose(mine, right)


@MODES
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_slices_are_gathered(mode, op):
    size, me = hvd.size(), hvd.rank()

    def reduce(values):
        slices = tf.IndexedSlices(values, tf.constant([me, 1]), dense_shape=tf.constant([size + 2, 2]))
        return tf.convert_to_tensor(hvd.allreduce(slices, op=op))

    wanted = np.zeros((size + 2, 2))
    for rank in range(size):
        wanted[rank] += rank + 1
        wanted[1] += rank + 1
    divisor = size if op == hvd.Average else 1
    np.testing.assert_allclose(runs(mode, reduce, tf.fill([2, 2], me + 1.0)), wanted / divisor)


@MODES
def test_slices_in_a_group_stay_in_their_process_set(mode):
    size, me = hvd.size(), hvd.rank()
    if size < 3:
        return
    some = hvd.add_process_set(range(size - 1))

    def reduce():
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([me]), dense_shape=tf.constant([size, 2]))
        # As in a model that has other scopes on every rank.
        with tf.name_scope(f"rank{me}"):
            dense, gathered = hvd.grouped_allreduce(
                [tf.ones([2]), slices], op=hvd.Sum, process_set=some, name="both", ignore_name_scope=True
            )
        return dense, tf.convert_to_tensor(gathered)

    if some.included():
        dense, gathered = runs(mode, reduce)
        np.testing.assert_allclose(dense, [size - 1] * 2)
        np.testing.assert_allclose(gathered, [[1.0, 1.0]] * (size - 1) + [[0.0, 0.0]])
    assert hvd.remove_process_set(some)


def test_slices_that_cannot_be_reduced():
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), dense_shape=tf.constant([3, 2]))
    for options in ({"op": hvd.Adasum}, {"op": hvd.Max}, {"prescale_factor": 2.0}):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(slices, **options)


def test_bool_travels():
    mine = tf.constant([hvd.rank() == 0, True])
    np.testing.assert_array_equal(hvd.broadcast(mine, 0), [True, True])
    np.testing.assert_array_equal(
        hvd.allgather(mine), np.concatenate([[rank == 0, True] for rank in range(hvd.size())])
    )
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError), match="list of allowed values"):
        hvd.allreduce(mine)


def test_fp16_compression():
    x = tf.constant([1.0, 2.5]) * (hvd.rank() + 1)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        y = hvd.allreduce(x, op=hvd.Sum, compression=compression)
        assert y.dtype == tf.float32
        np.testing.assert_allclose(y, np.array([1.0, 2.5]) * sum(range(1, hvd.size() + 1)))
    ints = hvd.allreduce(tf.constant([3]), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert ints.dtype == tf.int32


def test_who_am_i_in_a_graph():
    @tf.function
    def ask():
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()

    wanted = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), 1]
    assert [int(n) for n in ask()] == wanted


def test_a_process_set_chosen_when_the_graph_runs():
    if hvd.size() < 2:
        return
    first = hvd.add_process_set(range(hvd.size() - 1))

    @tf.function
    def reduce(x, set_id):
        members = hvd.size_op(set_id)
        reduced = hvd.allreduce(x, op=hvd.Sum, process_set=set_id, name="chosen")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Sum, process_set=set_id, name="chosen_too")
        return members, reduced, tape.gradient(y, x)

    x = tf.ones([2])
    members, reduced, gradient = reduce(x, tf.constant(0))
    assert (int(members), reduced.numpy().tolist()) == (hvd.size(), [hvd.size()] * 2)
    assert gradient.numpy().tolist() == [hvd.size()] * 2
    if first.included():
        members, reduced, gradient = reduce(x, tf.constant(first.process_set_id))
        assert (int(members), reduced.numpy().tolist()) == (first.size(), [first.size()] * 2)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not a member of the provided process set"):
            hvd.allreduce(x, process_set=tf.constant(first.process_set_id))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not been registered|does not exist"):
        hvd.allreduce(x, process_set=tf.constant(77))
    assert hvd.remove_process_set(first)


def test_in_a_loop_and_in_a_condition():
    @tf.function
    def loop(x):
        for _ in tf.range(10):
            x = hvd.allreduce(x, op=hvd.Average, name="loop") + 1.0
        if tf.reduce_sum(x) > 0.0:
            x = hvd.allreduce(x, op=hvd.Sum, name="yes")
        return x

    np.testing.assert_allclose(loop(tf.zeros([2])), [10.0 * hvd.size()] * 2)


def test_names_in_a_graph():
    graph = tf.Graph()
    with graph.as_default(), tf.name_scope("model"):
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        assert hvd.allreduce(x).name == "model/HorovodAllreduce_model_x_0:0"
        assert hvd.allreduce(x, name="mine").name == "model/mine:0"
        assert hvd.allreduce(x, name="mine", ignore_name_scope=True).op.get_attr("ignore_name_scope")
    assert mpi_ops._normalize_name("a/b:0") == "a_b_0"


def test_scopes_that_differ_can_be_ignored():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.name_scope(f"rank{hvd.rank()}"):
            y = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="same", ignore_name_scope=True)
        assert session.run(y).tolist() == [hvd.size()] * 2


def test_errors_keep_their_kind():
    size = hvd.size()
    if size == 1:
        return
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched data types"):
        hvd.allreduce(tf.ones([1], tf.float32 if hvd.rank() else tf.float64), name="types")
    with pytest.raises(tf.errors.InvalidArgumentError, match="invalid root rank"):
        hvd.broadcast(tf.ones([1]), size, name="root")
    with pytest.raises(tf.errors.AbortedError):
        hvd.reducescatter(tf.ones([1]), op=hvd.Max, name="max")
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank-zero"):
        hvd.reducescatter(tf.constant(1.0), name="scalar")
    with pytest.raises(tf.errors.FailedPreconditionError, match="a rank-zero tensor"):
        hvd.allgather(tf.constant(1.0), name="scalar too")
    with pytest.raises(tf.errors.InvalidArgumentError, match="1D splits"):
        hvd.alltoall(tf.ones([size]), splits=[[1] * size])
    np.testing.assert_allclose(hvd.allreduce(tf.ones([1]), name="fine again"), [1.0])


@MODES
def test_different_operations_under_one_name_are_an_error(mode):
    if hvd.size() == 1:
        return
    operation = hvd.allgather if hvd.rank() == 0 else hvd.allreduce
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched operations"):
        runs(mode, lambda x: operation(x, name=f"one name {mode}"), tf.ones([2]))


@MODES
@pytest.mark.parametrize("kind", [tf.errors.InvalidArgumentError, ValueError, TypeError])
def test_what_is_refused_without_a_node_is_an_error_of_every_kind(mode, kind):
    """Programs expect one or the other, as Horovod's TensorFlow, graph or kernel would notice first."""
    with pytest.raises(kind, match="32-bit integers"):
        runs(mode, lambda x: hvd.alltoall(x, tf.ones([hvd.size()], tf.int64)), tf.ones([hvd.size()]))
    unregistered = hvd.ProcessSet([0])
    with pytest.raises(kind, match="has not been registered"):
        runs(mode, lambda x: hvd.allreduce(x, process_set=unregistered), tf.ones([1]))


@MODES
@pytest.mark.parametrize(
    "call",
    [
        lambda x, number: hvd.allreduce(x, process_set=number),
        lambda x, number: hvd.grouped_allreduce([x], process_set=number),
        lambda x, number: hvd.allgather(x, process_set=number),
        lambda x, number: hvd.broadcast(x, 0, process_set=number),
        lambda x, number: hvd.alltoall(x, process_set=number),
        lambda x, number: hvd.reducescatter(x, process_set=number),
        lambda x, number: hvd.size_op(process_set_id=number),
        lambda x, number: hvd.process_set_included_op(process_set_id=number),
    ],
)
def test_a_number_that_is_no_process_set_is_refused_at_the_call(mode, call):
    """A kernel would notice too, but as an error of TensorFlow's, and in a graph only when it runs."""
    x = tf.ones([hvd.size()])
    with pytest.raises(ValueError, match="process set 77 does not exist"):
        runs(mode, lambda x: call(x, 77), x)
    if mode == "eager":
        with pytest.raises(ValueError, match="process set 77 does not exist"):
            call(x, tf.constant(77))


def test_an_error_in_a_graph_reaches_the_caller():
    if hvd.size() == 1:
        return
    bad = tf.function(lambda x: hvd.allreduce(x, name="bad") * 2.0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched ALLREDUCE tensor shapes"):
        bad(tf.ones([1 + hvd.rank()]))


def test_a_large_tensor_and_one_that_another_still_needs():
    @tf.function
    def reduce(x):
        kept = x * 1.0
        return hvd.allreduce(kept, op=hvd.Sum, name="big"), kept, hvd.allreduce(x + 1.0, op=hvd.Sum, name="gone")

    x = tf.range(300_000, dtype=tf.float32)
    reduced, kept, other = reduce(x)
    np.testing.assert_allclose(reduced, x * hvd.size())
    np.testing.assert_allclose(kept, x)
    np.testing.assert_allclose(other, (x + 1.0) * hvd.size())


@MODES
def test_large_results_stay_as_they_are_while_somebody_holds_them(mode):
    """Their memory is used again, but only once nobody has the tensor any more."""
    elements = (16 << 20) // 4
    rows = tf.ones([elements])

    def reduce(x):
        return hvd.allreduce(x, op=hvd.Sum, name=f"large.{mode}")

    def gather(x):
        return hvd.allgather(x, name=f"gathered.{mode}")

    reduce, gather = (reduce, gather) if mode == "eager" else (tf.function(reduce), tf.function(gather))
    held = []
    for step in range(6):
        # The input is held too, so that it is never given away.
        mine = rows * float(step + hvd.rank())
        held.append((step, mine, reduce(mine), gather(mine)))
        if step >= 3:
            held.pop(0)
        for then, brought, result, gathered in held:
            ranks = [float(then + rank) for rank in range(hvd.size())]
            assert brought[0] == brought[-1] == then + hvd.rank()
            assert result[0] == result[elements // 2] == result[-1] == sum(ranks), (step, then)
            assert gathered[::elements].numpy().tolist() == ranks, (step, then)


def test_a_saved_model(tmp_path):
    module = tf.Module()
    module.reduce = tf.function(
        lambda x: hvd.allreduce(x, op=hvd.Sum, name="saved"), input_signature=[tf.TensorSpec([None])]
    )
    path = str(tmp_path / f"model{hvd.rank()}")
    tf.saved_model.save(module, path)
    loaded = tf.saved_model.load(path)
    np.testing.assert_allclose(loaded.reduce(tf.ones([3])), [float(hvd.size())] * 3)


def test_compiled_by_xla():
    @tf.function(jit_compile=True)
    def reduce(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = hvd.allreduce(x * 2.0, op=hvd.Sum, postscale_factor=0.5)
            loss = tf.reduce_sum(total * y)
        from_root = hvd.broadcast(x, hvd.size() - 1)
        pair = hvd.grouped_allreduce([x, y], op=hvd.Max)
        return total + 1.0, tape.gradient(loss, x), from_root, pair

    size, me = hvd.size(), hvd.rank()
    before = count()
    for i in range(3):
        x = tf.constant([[1.0, 2.0]]) * (me + 1.0 + i)
        total, gradient, from_root, pair = reduce(x, tf.constant([[1.0, 3.0]]))
        factor = sum(rank + 1 + i for rank in range(size))
        np.testing.assert_allclose(total, np.array([[1.0, 2.0]]) * factor + 1.0)
        np.testing.assert_allclose(gradient, np.array([[1.0, 3.0]]) * size)
        np.testing.assert_allclose(from_root, np.array([[1.0, 2.0]]) * (size + i))
        np.testing.assert_allclose(pair[0], np.array([[1.0, 2.0]]) * (size + i))
    assert count() - before == 3 * 4


def test_what_cannot_be_compiled_says_what_to_change():
    compiled = tf.function(hvd.allgather, jit_compile=True)
    with pytest.raises(NotImplementedError, match="Leave jit_compile=True out"):
        compiled(tf.ones([2]))
    unknown = tf.function(hvd.allreduce, jit_compile=True, input_signature=[tf.TensorSpec([None])])
    with pytest.raises(NotImplementedError, match="shape is known"):
        unknown(tf.ones([2]))


def test_a_failure_in_compiled_code_is_an_error():
    if hvd.size() == 1:
        return
    compiled = tf.function(lambda x: hvd.allreduce(x, name="compiled and different") * 2.0, jit_compile=True)
    with pytest.raises(tf.errors.OpError, match="Mismatched ALLREDUCE tensor shapes"):
        compiled(tf.ones([2 + hvd.rank()]))
    np.testing.assert_allclose(hvd.allreduce(tf.ones([2]), name="after compiled"), [1.0, 1.0])


def test_operations_in_a_gpus_graph_take_their_tensors_from_host_memory():
    """TensorFlow then copies them there and back. (Whether a GPU's graph is right needs one: `make gpu`.)"""
    from tensorflow.python.framework import kernels, op_def_registry

    names = {kernel.op for kernel in kernels.get_all_registered_kernels().kernel if kernel.op.startswith("Horovod")}
    assert len(names) == 15
    for name in names:
        registered = {kernel.device_type: kernel for kernel in kernels.get_registered_kernels_for_op(name).kernel}
        assert set(registered) >= {"CPU", "GPU"}, name
        definition = op_def_registry.get(name)
        arguments = [argument.name for argument in (*definition.input_arg, *definition.output_arg)]
        assert sorted(registered["GPU"].host_memory_arg) == sorted(arguments), name
