"""What the fronts (torch, numpy, and the ones to come) share; nothing here knows a framework.

| module | holds |
| --- | --- |
| `basics` | init, shutdown, who am I |
| `process_sets` | named subsets of the ranks |
| `adapter`, `ops` | what a front gives the engine for a tensor; the operations on that |
| `arguments` | what a call may say: reduce ops, splits, names |
| `waiting` | poll, synchronize, barrier, join |
| `watching` | values and steps, for those who watch the job |
| `objects` | any Python object, broadcast or gathered |
| `checks` | mistakes that otherwise only show as a bad model |
| `elastic`, `sampler` | state that survives a change of the ranks; which samples are left |

A front adds how its tensors become (address, shape, dtype, device), and its own signatures.
"""
