"""What the fronts (torch, TensorFlow, Keras, JAX, MXNet, numpy) share; nothing here knows a framework.

| module | holds |
| --- | --- |
| `basics` | init, shutdown, who am I |
| `process_sets` | named subsets of the ranks |
| `adapter`, `ops` | what a front gives the engine for a tensor; the operations on that |
| `arguments` | what a call may say: reduce ops, splits, names |
| `waiting` | poll, synchronize, barrier, join |
| `watching` | values and steps, for those who watch the job |
| `objects` | any Python object, broadcast or gathered |
| `compression`, `engine_compression`, `auto_compression` | fewer bytes: casts, what the engine can do, what pays |
| `checks` | mistakes that otherwise only show as a bad model |
| `elastic`, `sampler` | state that survives a change of the ranks; which samples are left |
| `local` | training that talks seldom |
| `mpi` | worlds and process sets from communicators of mpi4py |
| `last_words` | why this process ends |

A front adds how its tensors become (address, shape, dtype, device), and its own signatures.
"""
