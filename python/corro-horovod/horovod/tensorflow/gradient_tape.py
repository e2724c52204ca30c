# Made by scripts/horovod_modules.py (`make gen`), for tools that read it: a program that imports this module gets the
# module corro.tensorflow.gradient_tape itself.
from corro.tensorflow.gradient_tape import *
