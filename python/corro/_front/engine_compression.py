"""Fewer bytes between hosts: what the engine's compression can be asked for, for all frameworks.

The engine does the work (see `docs/design/compression.md`); here its settings are written down and checked.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypedDict, cast

from corro import _native
from corro._front.auto_compression import Auto
from corro._front.process_sets import ProcessSet, global_process_set

# Which setting a tensor of this name and so many bytes has; None: it goes as it is.
Settings = Callable[[str, int], "str | None"]


class EngineCompression:
    """What the engine does with a tensor on its way between hosts. Made by the methods of `Compression`."""

    def __init__(self, method: str, **settings: Any) -> None:
        words = [method, *(f"{key}={_word(value)}" for key, value in settings.items() if value is not None)]
        self.spec, self.feedback, biased = _native.check_compression(" ".join(words))
        if biased:
            warnings.warn(
                f"compression {self.spec!r} leaves out the same things in every step, and without feedback nothing makes "
                "up for that: training may go astray. Say feedback=True.",
                stacklevel=3,
            )

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor as it is: the engine compresses."""
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The tensor as it is."""
        return tensor

    def __repr__(self) -> str:
        return f"Compression({self.spec!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineCompression) and other.spec == self.spec

    def __hash__(self) -> int:
        return hash(self.spec)


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


class Methods:
    """The engine's methods; each front adds Horovod's casts to them.

    All take `seed`, where random numbers begin; `feedback`, whether what is left out is kept and added the next time; and
    `inside`, whether also ranks of one host compress what they tell each other, which is for tests.
    """

    @staticmethod
    def int8(
        block: int = 256, rounding: str = "nearest", rotate: bool = False, feedback: bool = True, **more: Any
    ) -> EngineCompression:
        """8-bit integers with a scale for each `block`: a quarter of the bytes.

        `rounding` is "nearest" or "stochastic"; `rotate` spreads peaks out first.
        """
        return EngineCompression("int8", block=block, rounding=rounding, rotate=rotate, feedback=feedback, **more)

    @staticmethod
    def int4(
        block: int = 64, rounding: str = "nearest", rotate: bool = False, feedback: bool = True, **more: Any
    ) -> EngineCompression:
        """4-bit integers with a scale for each `block`: a seventh of the bytes."""
        return EngineCompression("int4", block=block, rounding=rounding, rotate=rotate, feedback=feedback, **more)

    @staticmethod
    def fp8(block: int = 256, rounding: str = "nearest", feedback: bool = True, **more: Any) -> EngineCompression:
        """8-bit floats (e4m3) with a scale for each `block`: a quarter of the bytes."""
        return EngineCompression("fp8", block=block, rounding=rounding, feedback=feedback, **more)

    @staticmethod
    def onebit(block: int = 2048, feedback: bool = True, **more: Any) -> EngineCompression:
        """The sign, and the mean magnitude of each `block`: a thirtieth of the bytes."""
        return EngineCompression("onebit", block=block, feedback=feedback, **more)

    @staticmethod
    def sign(**more: Any) -> EngineCompression:
        """-1 or 1, as most hosts have it (signSGD by majority): a thirtieth of the bytes. Use a small learning rate."""
        return EngineCompression("sign", **more)

    @staticmethod
    def qsgd(bits: int = 8, block: int = 512, feedback: bool = False, **more: Any) -> EngineCompression:
        """QSGD: integers by chance, right on average, with the norm of each `block` as scale."""
        return EngineCompression("qsgd", bits=bits, block=block, feedback=feedback, **more)

    @staticmethod
    def terngrad(block: int = 512, **more: Any) -> EngineCompression:
        """TernGrad: -1, 0 or 1 by chance, right on average, times the largest value of each `block`."""
        return EngineCompression("terngrad", block=block, **more)

    @staticmethod
    def topk(density: float = 0.01, feedback: bool = True, **more: Any) -> EngineCompression:
        """The largest values of each host, `density` of all."""
        return EngineCompression("topk", density=density, feedback=feedback, **more)

    @staticmethod
    def dgc(
        density: float = 0.001, momentum: float = 0.9, warmup: int = 0, clip: float = 0.0, **more: Any
    ) -> EngineCompression:
        """Deep gradient compression: the largest values of what momentum has gathered.

        The optimizer must have no momentum of its own. In the first `warmup` steps the density goes down from a quarter.
        Gradients of a tensor are clipped to the norm `clip`, divided by the root of the hosts; 0 does not clip.
        """
        return EngineCompression("dgc", density=density, momentum=momentum, warmup=warmup, clip=clip, **more)

    @staticmethod
    def randomk(density: float = 0.01, feedback: bool = True, **more: Any) -> EngineCompression:
        """Values at random places, the same for all hosts, `density` of all. Needs a small learning rate."""
        return EngineCompression("randomk", density=density, feedback=feedback, **more)

    @staticmethod
    def powersgd(
        rank: int = 4, start: int = 0, min_rate: float = 2.0, feedback: bool = True, **more: Any
    ) -> EngineCompression:
        """PowerSGD: matrices as products of two with `rank` columns.

        The first `start` steps are not compressed, nor are tensors that would not become smaller by `min_rate`.
        """
        return EngineCompression("powersgd", rank=rank, start=start, min_rate=min_rate, feedback=feedback, **more)

    @staticmethod
    def ef21(density: float = 0.01, **more: Any) -> EngineCompression:
        """EF21: the largest of what has changed since it was last sent, `density` of all."""
        return EngineCompression("ef21", density=density, **more)

    @staticmethod
    def auto(among: Sequence[EngineCompression] | None = None) -> Auto:
        """Whatever is fastest on the links there are, for each tensor by its size: none, or one of `among`.

        By default these are 16-bit floats and 8-bit integers, which rarely harm. Measures when the first tensor comes,
        in about a second, and rank 0 says what it found. `compression="auto"` is the same.
        """
        return Auto(among or (EngineCompression("bf16"), EngineCompression("int8")))


def settings_of(compression: Any, none: Any) -> Settings | None:
    """Which setting each tensor has, if the engine is to compress any.

    `compression` is one for all, if only its name ("int8 block=128"), or a dictionary of patterns of names with one for
    each, of which the first that fits counts. `none` is the framework's word for "as it is".
    """
    if isinstance(compression, str):
        compression = named(compression)
    if isinstance(compression, EngineCompression):
        spec = compression.spec
        return lambda _name, _nbytes: spec
    if isinstance(compression, Auto):
        return compression.setting
    if not isinstance(compression, Mapping):
        return None
    rules: list[tuple[str, Settings | None]] = []
    for pattern, value in compression.items():
        rule = None if value is None or value is none or isinstance(value, Mapping) else settings_of(value, none)
        if rule is None and not (value is None or value is none):
            raise ValueError(
                f"compression for {pattern!r}: {value!r} can't be chosen by name; say Compression.none, or one that the "
                "engine does, such as Compression.int8()."
            )
        rules.append((pattern, rule))

    def setting(name: str, nbytes: int) -> str | None:
        rule = next((rule for pattern, rule in rules if fnmatchcase(name, pattern)), None)
        return None if rule is None else rule(name, nbytes)

    return setting


# One for all who say "auto": what was measured once is known.
_auto = Methods.auto()


def named(text: str) -> Auto | EngineCompression:
    """What a string asks for: "auto", or a method with settings as the engine writes them ("int8 block=128")."""
    return _auto if text == "auto" else EngineCompression(text)


@functools.cache
def of_spec(spec: str) -> EngineCompression:
    """The compression with this setting."""
    return EngineCompression(spec)


def is_for_engine(compression: Any) -> bool:
    """Whether the engine is to compress: then `setting_for` says how. Else it is a class as Horovod knows them."""
    if isinstance(compression, Mapping):
        raise ValueError(
            "a dictionary chooses a compression by the names of parameters: give it to DistributedOptimizer or to the "
            "like of it. An operation takes one compression for all of its tensors."
        )
    # A tuple: torch.compile of older versions knows no unions.
    return isinstance(compression, (EngineCompression, Auto, str))


def name_apart(name: str, shapes: Iterable[Sequence[int | None]]) -> str:
    """A name that tells a model's gradients from those of others: what is kept of a tensor is kept by its name."""
    text = repr([tuple(shape) for shape in shapes])
    return f"{name}.{zlib.crc32(text.encode()):08x}"


def setting_for(compression: EngineCompression | Auto | str, name: str | None, nbytes: int) -> str | None:
    """The setting for the tensors of an operation. What is kept of a tensor is kept by its name, so it must have one."""
    chosen = named(compression) if isinstance(compression, str) else compression
    spec = chosen.setting(name or "", nbytes) if isinstance(chosen, Auto) else chosen.spec
    if spec is not None and name is None and "feedback=yes" in spec:
        raise ValueError(
            f"compression {spec!r} keeps what it leaves out for the next time that the same tensor is reduced: give the "
            "tensor a name=, or say feedback=False."
        )
    return spec


class CompressionEntry(TypedDict):
    """What compression has done with a tensor so far, on this rank."""

    compression: str
    calls: int
    plain_bytes: int
    sent_bytes: int
    ratio: float
    seconds: float
    residual_norm: float


def compression_state(process_set: ProcessSet = global_process_set) -> dict[str, bytes]:
    """What compression remembers of each tensor, by name, on this rank: save it beside the model, on every rank.

    `corro.torch.DistributedOptimizer` has it in its `state_dict()`.

    Example:
        >>> state = hvd.compression_state()
    """
    return _native.compression_state(process_set.process_set_id)


def load_compression_state(state: Mapping[str, bytes], process_set: ProcessSet = global_process_set) -> None:
    """Takes back what `compression_state` gave on this rank, perhaps in another job.

    Example:
        >>> hvd.load_compression_state(hvd.compression_state())
    """
    _native.load_compression_state(process_set.process_set_id, dict(state))


def compression_report(process_set: ProcessSet = global_process_set) -> dict[str, CompressionEntry]:
    """What compression has done with each tensor so far, by name, on this rank.

    `sent_bytes` is what this rank sent to other hosts, `plain_bytes` what it would have sent without compression, and
    `ratio` compares them. `seconds` include the waiting. `residual_norm` is the norm of what was left out and will be
    added later. Ranks that send nothing to other hosts have no entries.

    Example:
        >>> hvd.compression_report()
        {}
    """
    report: dict[str, CompressionEntry] = {}
    for name, entry in _native.compression_report(process_set.process_set_id).items():
        ratio = entry["plain_bytes"] / max(1, entry["sent_bytes"])
        report[name.removeprefix("allreduce.")] = cast("CompressionEntry", {**entry, "ratio": ratio})
    return report
