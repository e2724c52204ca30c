# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.torch.sync_batch_norm itself.
from corro.torch.sync_batch_norm import *
