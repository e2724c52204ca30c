"""What `corro.keras` and `corro.tensorflow.keras` share: Keras 3 on TensorFlow, PyTorch and JAX.

| module | holds |
| --- | --- |
| `installed` | which Keras is meant: Keras 3 or the old one |
| `backends` | which backend Keras runs on, and the front that reduces its tensors |
| `on_tensorflow`, `on_torch`, `on_jax` | reducing tensors of one backend, also inside a compiled step |
| `gradients` | which gradients are reduced, how, and in which groups |
| `optimizer` | `DistributedOptimizer`: the user's optimizer with reduced gradients |
| `served` | the same by parameter servers |
| `values` | collectives on values, and the broadcast of variables: outside of any compiled step |
| `callbacks`, `elastic` | what the callbacks and states do, whichever Keras they plug into |
| `local` | local SGD, DiLoCo and gossip, as callbacks |
| `embedding` | `ShardedEmbedding` |
| `saving` | `load_model` |
| `keras2` | `DistributedOptimizer` for the optimizers of the old Keras |
| `watching` | has `fit` look whether the ranks train one model together |
| `patches` | the places where Keras itself must know that it is one rank of several |

Only the three `on_*` modules know a backend; a new way to reduce tensors of one is a change in one of them.
"""
