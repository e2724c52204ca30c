"""The settings of an elastic launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corro.runner.common.util.settings import Settings
from corro.runner.elastic.discovery import HostDiscovery


class ElasticSettings(Settings):
    """See `corro.runner.gloo_run.gloo_run_elastic`. Names and order are Horovod's; `kwargs` are those of `Settings`."""

    def __init__(
        self,
        discovery: HostDiscovery,
        min_num_proc: int | None,
        max_num_proc: int | None,
        elastic_timeout: float | None,
        reset_limit: int | None,
        cooldown_range: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"elastic": True, **kwargs})
        self.discovery = discovery
        self.min_num_proc = min_num_proc
        self.max_num_proc = max_num_proc
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range
