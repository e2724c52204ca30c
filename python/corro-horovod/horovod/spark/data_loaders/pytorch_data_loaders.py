# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.spark.data_loaders.pytorch_data_loaders itself.
from corro.spark.data_loaders.pytorch_data_loaders import *
