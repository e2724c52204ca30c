from typing import Any

import numpy as np
from numpy.typing import NDArray

def load_digits(*, return_X_y: bool) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...
def __getattr__(name: str) -> Any: ...
