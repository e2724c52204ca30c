# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.spark.keras.datamodule itself.
from corro.spark.keras.datamodule import *
