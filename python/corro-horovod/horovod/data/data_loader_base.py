# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.data.data_loader_base itself.
from corro.data.data_loader_base import *
