# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.spark.torch.datamodule itself.
from corro.spark.torch.datamodule import *
