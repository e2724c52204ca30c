"""The four places where Keras itself must know that it is one rank of several.

| place | what it learns |
| --- | --- |
| the progress bar | `verbose="auto"`, the default, shows it on rank 0 only; `verbose=1` shows it where it is said |
| `compile(jit_compile=...)` | where XLA can't hold what reduces gradients, "auto" avoids it and `True` is refused |
| `fit` | the ranks compare what they train, now and then (see `watching`) |
| `LossScaleOptimizer` | whether gradients are finite is decided together: ranks that skip different steps wait forever |

Each is a method of Keras's that asks us first; nothing changes for models with a plain optimizer, except the progress bar.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from corro._front import basics, checks
from corro._front.arguments import Min
from corro._keras.backends import backend_of
from corro._keras.gradients import distributed_part, is_distributed
from corro._keras.installed import is_keras2
from corro._keras.watching import callback_for

_PATCHED = "_corro_patched"


def patch_progress_bar(keras: Any) -> None:
    """Has the progress bar ask which rank this is."""
    logger = keras.callbacks.ProgbarLogger
    if is_keras2(keras):
        return
    _around(logger, "set_params", _set_params)


def patch_training(keras: Any) -> None:
    """Has Keras ask about what only matters with a distributed optimizer."""
    if is_keras2(keras):
        return
    trainer = next(cls for cls in keras.Model.__mro__ if "compile" in cls.__dict__)
    _around(trainer, "compile", functools.partial(_compile, backend_of(keras)))
    fitting = next(cls for cls in keras.Model.__mro__ if "fit" in cls.__dict__)
    _around(fitting, "fit", functools.partial(_fit, keras))
    _around(keras.optimizers.LossScaleOptimizer, "check_finite", _check_finite)


def _around(cls: Any, method: str, ours: Callable[..., Any]) -> None:
    """`cls.method(...)` becomes `ours(original, ...)`, once."""
    original = cls.__dict__[method]
    if hasattr(original, _PATCHED):
        return

    @functools.wraps(original)
    def asks(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(original, self, *args, **kwargs)

    setattr(asks, _PATCHED, True)
    setattr(cls, method, asks)


def _set_params(original: Callable[..., Any], logger: Any, params: dict[str, Any]) -> Any:
    if params.get("verbose") == "auto" and basics.is_initialized() and basics.rank() != 0:
        params = {**params, "verbose": 0}
    return original(logger, params)


def _compile(backend: Any, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    distributed = distributed_part(args[0] if args else kwargs.get("optimizer"))
    if distributed is not None:
        # Keras has forgotten this argument. Horovod told its users to give it, and all of its examples do.
        kwargs.pop("experimental_run_tf_function", None)
    given = inspect.signature(original).bind(model, *args, **kwargs)
    # A model that is compiled without an optimizer brings its own, which may well be distributed.
    problem = ""
    if distributed is not None:
        problem = distributed._reducer.jit_problem()
    elif "optimizer" not in given.arguments:
        problem = backend.jit_problem()
    wanted = given.arguments.get("jit_compile", "auto") not in ("auto", False, None)
    if problem and distributed is None:
        if not wanted:
            given.arguments["jit_compile"] = False
    elif problem:
        if wanted:
            raise ValueError(
                f"jit_compile=True does not work with a DistributedOptimizer here: {problem}. "
                f"Say model.compile(..., jit_compile=False), or leave it out."
            )
        given.arguments["jit_compile"] = False
    elif wanted and distributed is not None:
        distributed._reducer.prepare_for_compiled_steps()
    return original(*given.args, **given.kwargs)


def _fit(keras: Any, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    distributed = distributed_part(getattr(model, "optimizer", None))
    if distributed is None or checks.level() == 0:
        return original(model, *args, **kwargs)
    given = inspect.signature(original).bind(model, *args, **kwargs)
    callbacks = given.arguments.get("callbacks")
    # A `CallbackList` of the program's own is closed: Keras takes it as it is, and so do we.
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        listed = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
        # The last one, after what broadcasts the weights and what sets the learning rate.
        given.arguments["callbacks"] = [*listed, callback_for(keras, distributed)]
        with distributed._watched_elsewhere():
            return original(*given.args, **given.kwargs)
    return original(*given.args, **given.kwargs)


def _check_finite(original: Callable[..., Any], scaler: Any, grads: Any) -> Any:
    finite = original(scaler, grads)
    # A distributed optimizer around the scaler has reduced the gradients already, and with them what is not finite.
    inner = scaler.inner_optimizer
    if not is_distributed(inner) or inner._reducer.alone:
        return finite
    reducer = inner._reducer
    backend = reducer.backend
    number = backend.as_number(finite)
    none = backend.Compression.none
    name = f"{reducer.name}.finite"
    (everywhere,) = backend.grouped_allreduce([number], name, Min, 1.0, 1.0, none, reducer.process_set)
    return everywhere > 0
