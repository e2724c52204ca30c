"""What `DistributedGradientTape` gives, for type checkers. Nothing here exists when a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:

    class DistributedTape(tf.GradientTape):
        """A tape of the class that it was made from, whose gradients are those of all ranks."""

        def gradient(  # type: ignore[override]
            self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
        ) -> list[Any]: ...
        def register_local_source(self, source: Any) -> None: ...
        def get_local_and_global_gradients(
            self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
        ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]: ...
