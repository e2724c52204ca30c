"""Training that talks seldom: ranks take steps of their own, and meet now and then (local SGD, DiLoCo, gossip).

| module | holds |
| --- | --- |
| `parameters` | what is asked of a model; messages of flat vectors |
| `averaging` | local SGD: parameters are averaged every so many steps |
| `diloco`, `outer` | an outer optimizer on what ranks have learned since they last met, fragment by fragment |
| `gossip` | each step half of everything goes to one peer |
| `hosts` | the ranks of this rank's host |
| `elastic` | the state of an elastic job whose ranks keep their own steps |

All work on flat vectors of float32 in host memory, so that a framework adds nothing but how its parameters are read
and written. The step counter is the same on all ranks: by it they know when to meet, without asking.
"""
