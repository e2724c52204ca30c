"""`ShardedEmbedding` as a layer of whichever Keras is in use: its rows are at parameter servers, and updated there."""

from __future__ import annotations

from typing import Any

from corro._front.process_sets import global_process_set
from corro._keras.backends import backend_of
from corro._keras.installed import is_keras2
from corro.ps._table import TableAtServers

_DOC = """A table of embeddings of which every server of the job has a part: each rank's, or `corro run --servers`'s.

    `optimizer`, one of `corro.ps`, updates rows where they are, with their gradient averaged over ranks; the model's
    optimizer does not see the table, of which the model has one number that stays 0. `pooling` sums ("sum") or
    averages ("mean") over the last dimension of the ids. `init(shape)` gives the first value, on the first rank; by
    default it is N(0, 1). Every rank must train equally many steps. `save_table(folder)` and `load_table(folder)`
    keep it, for any number of ranks; models are saved without it.

    Example:
        >>> emb = hvd.layers.ShardedEmbedding(1000, 8, optimizer=corro.ps.Adagrad(lr=0.1), table="items")
        >>> model = keras.Sequential([keras.Input((2,), dtype="int32"), emb, keras.layers.Flatten(), keras.layers.Dense(1)])
        >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        >>> loss = model.train_on_batch(np.array([[3, 999], [3, 0]]), np.ones((2, 1)))
    """


class _OnlyInKeras3:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise ValueError("ShardedEmbedding is a layer of Keras 3; the old Keras of tf_keras has none.")


def layer_class(keras: Any) -> Any:
    """The class, for this Keras."""
    if is_keras2(keras):
        return _OnlyInKeras3

    class ShardedEmbedding(keras.layers.Layer):  # type: ignore[misc]
        __doc__ = _DOC

        def __init__(
            self,
            rows: int,
            dim: int,
            *,
            optimizer: Any = None,
            pooling: str | None = None,
            init: Any = None,
            table: str = "embedding",
            seed: int = 0,
            process_set: Any = global_process_set,
            servers: Any = None,
            **options: Any,
        ) -> None:
            if pooling not in (None, "sum", "mean"):
                raise ValueError(f'pooling is "sum", "mean" or None, not {pooling!r}.')
            super().__init__(**options)
            self.rows, self.dim, self.pooling = rows, dim, pooling
            # Not by `setattr`, which would have Keras track what it does not know.
            at_servers = TableAtServers(rows, dim, optimizer, init, table, seed, process_set, servers)
            self.__dict__["_table"] = at_servers
            self.__dict__["_look_up"] = backend_of(keras).look_up
            # What autograd works backward to: the table is not there.
            self.anchor = self.add_weight(shape=(), initializer="zeros", name="anchor")

        def call(self, ids: Any) -> Any:
            """The rows of `ids`, of any shape."""
            ids = keras.ops.cast(ids, "int32" if self.rows < 2**31 else "int64")
            vectors = self._look_up(self._table, keras.ops.convert_to_tensor(self.anchor), ids)
            if self.pooling is None:
                return vectors
            return keras.ops.sum(vectors, -2) if self.pooling == "sum" else keras.ops.mean(vectors, -2)

        def compute_output_spec(self, ids: Any) -> Any:
            """What `call` gives, for models that are made before anything is looked up."""
            shape = (*(ids.shape if self.pooling is None else ids.shape[:-1]), self.dim)
            return keras.KerasTensor(shape, dtype="float32")

        def save_table(self, folder: Any) -> None:
            """Writes the table and what the optimizer remembers of it to a folder of the first rank's. All ranks must."""
            self._table.store.save(folder)

        def load_table(self, folder: Any) -> None:
            """Takes what `save_table` has written, with any number of ranks and servers."""
            self._table.store.load(folder)

    return ShardedEmbedding
