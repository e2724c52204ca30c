# Keras has no types: here is what a type checker must know to read the examples.
from typing import Any

from keras import callbacks as callbacks

def __getattr__(name: str) -> Any: ...
