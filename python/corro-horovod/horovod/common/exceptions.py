# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.common.exceptions itself.
from corro.common.exceptions import *
