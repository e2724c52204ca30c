"""Whether the ranks train one model together: mistakes that otherwise only show as a bad one.

A rank states `Facts`: what it knows of its training, by kind and name. Ranks that train together state the same. They
compare a digest of them, which costs next to nothing; only if that differs do they exchange the facts and say which
one differs, on which ranks, and how.

| kind of fact | mistake |
| --- | --- |
| `MODEL` | the ranks have different models |
| `PARAMETER` | nobody broadcast the parameters, or a rank has changed them, or its gradients, by itself |
| `RATE` | the ranks train with different learning rates |
| `STEPS` | a rank has left out a step, or goes on from another checkpoint |

Two ranks that compute the very same gradients train on the same samples: `Watch.start` looks for that too.

`CORRO_CHECKS`: 0 is no check, 1 (the default) the cheap ones, which warn; 2 looks at everything in every round, and
raises `TrainingMistake`. All of a round's collectives are submitted by all ranks or by none: whether a round is looked
at follows from its number, and what follows a difference from digests that all have seen.
"""

from __future__ import annotations

import ctypes
import itertools
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corro import _native
from corro._environment import setting
from corro._errors import HorovodInternalError
from corro._front import basics
from corro._front.adapter import CPU, INT64
from corro._front.arguments import Max
from corro._front.objects import allgather_object
from corro._front.process_sets import ProcessSet

# By kind, then by what it is about: {("learning rate", "of group 0"): 0.1}.
Facts = Mapping[tuple[str, str], Any]

MODEL = "the model's"
PARAMETER = "parameter"
RATE = "the learning rate"
STEPS = "the number of steps"

# Rounds that are looked at: the first ones closely, so that the first epoch shows it, then one in so many: looks that take
# a millisecond or two (JAX, MXNet) are then less than a thousandth of steps that take ten.
EVERY = 256
# How many parameters a later round looks at, in turn, and how many elements of each.
PARAMETERS = 4
ELEMENTS = 8

_ADVICE = {
    MODEL: "All ranks must build the same model, with the same options.",
    PARAMETER: "Call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step, on every rank, "
    "and change parameters and gradients in the same way on all of them.",
    RATE: "Set the learning rate by the same rule on every rank, or call hvd.broadcast_optimizer_state(optimizer, "
    "root_rank=0) after loading a checkpoint.",
    STEPS: "Every rank must call optimizer.step() for every batch, and start from the same checkpoint: "
    "hvd.broadcast_optimizer_state(optimizer, root_rank=0).",
}
_SILENCE = "CORRO_CHECKS=0 turns this check off."


class TrainingMistake(RuntimeError):
    """The ranks do something that cannot train one model together."""


def level() -> int:
    """What `CORRO_CHECKS` asks for."""
    text = (setting("CHECKS") or "1").strip().lower()
    words = {"off": 0, "no": 0, "false": 0, "on": 1, "yes": 1, "true": 1}
    return words.get(text, int(text) if text.isdigit() else 1)


def is_due(round_number: int) -> bool:
    """Whether this round (the first is 1) is looked at: 1, 2, 4, ... 256, then every 256th."""
    return round_number % EVERY == 0 or (round_number < EVERY and round_number & (round_number - 1) == 0)


def digest(facts: Any) -> int:
    """A number of 32 bits, never 0, that is the same for the same facts."""
    return zlib.crc32(repr(facts).encode()) or 1


def positions(count: int, round_number: int = 0) -> range:
    """Which of `count` elements to look at: a few, spread over all of them, others in each round."""
    step = max(1, count // ELEMENTS)
    # Scattered: rounds that are due are powers of two or multiples of `EVERY`, and most steps are powers of two.
    first = (round_number * 0x9E3779B1 >> 16) % step
    return range(first, count, step)[:ELEMENTS]


def in_turn(names: Sequence[Any], round_number: int) -> list[Any]:
    """The few parameters to look at in this round; over the rounds, all of them."""
    if level() > 1 or len(names) <= PARAMETERS:
        return list(names)
    # Not the number of the round: rounds that are due would choose the same again and again.
    turn = round_number.bit_length() if round_number < EVERY else EVERY.bit_length() - 1 + round_number // EVERY
    return [names[(turn * PARAMETERS + i) % len(names)] for i in range(PARAMETERS)]


# A digest that rides along with gradients. These are averaged or summed, perhaps in 16 bits, and a rank that has joined
# adds zeros. So each bit travels twice, as it is and turned over: if both come back above zero, ranks differ in it. The
# verdict is the same on all ranks, as the reduced gradients are.
RIDER = 64


def to_ride(number: int) -> list[float]:
    """The digest as numbers that may be summed over the ranks."""
    bits = [float(number >> i & 1) for i in range(32)]
    return [*bits, *(1.0 - bit for bit in bits)]


def disagree(summed: Sequence[float]) -> bool:
    """Whether ranks had different digests."""
    return any(one > 0 and other > 0 for one, other in zip(summed[:32], summed[32:RIDER], strict=True))


def exchange(numbers: Sequence[int], process_set: ProcessSet, name: str) -> dict[int, tuple[int, ...]]:
    """The numbers of every rank of the set that takes part. They must be above zero, at least one of them.

    A reduction and not a gather, so that ranks that have joined need not take part.
    """
    ranks = process_set.ranks or []
    width = len(numbers)
    table = (ctypes.c_int64 * (width * len(ranks)))()
    mine = (process_set.rank() or 0) * width
    table[mine : mine + width] = list(numbers)
    view = (ctypes.addressof(table), (len(table),), INT64, CPU)
    _native.run("allreduce", view, view, process_set.process_set_id, name, Max)
    rows = {rank: tuple(table[i * width : (i + 1) * width]) for i, rank in enumerate(ranks)}
    return {rank: row for rank, row in rows.items() if any(row)}


# How many trainings have begun in each process set. Counted by their first rounds, in which all ranks take part, and not
# by how many optimizers there are, which a rank may have for itself.
_begun: dict[int | None, itertools.count[int]] = {}
basics.after_shutdown(_begun.clear)


class Watch:
    """Looks after one training: an optimizer's, say. Counts its rounds and compares what the ranks say of them."""

    def __init__(self, process_set: ProcessSet, name: str = "") -> None:
        self._process_set = process_set
        self._level = level()
        self._said: set[str] = set()
        # What all ranks call this training; if that is not known, they count their trainings.
        self._own_name = name
        self._name = ""
        self._suspects: list[list[int]] = []
        self.rounds = 0

    @property
    def wanted(self) -> bool:
        """Whether there is anything to look after."""
        return self._level > 0 and len(self._process_set.ranks or ()) > 1

    def next_round(self) -> bool:
        """Counts a round; whether facts are wanted of it. To be asked on all ranks alike."""
        self.rounds += 1
        if not self.wanted:
            return False
        return self._level > 1 or is_due(self.rounds)

    def begin_anew(self) -> None:
        """The ranks are others now, some of them new: all begin with round 1."""
        self.rounds = 0
        self._name = ""
        self._suspects = []

    @property
    def wants_data(self) -> bool:
        """Whether this round compares what the ranks train on: the first, and the second if the first looked alike."""
        return self.rounds == 1 or (self.rounds == 2 and bool(self._suspects))

    @property
    def will_want_data(self) -> bool:
        """The same of the round to come."""
        return self.wanted and (self.rounds == 0 or (self.rounds == 1 and bool(self._suspects)))

    def compare(self, facts: Facts, data: int = 0) -> None:
        """Compares the facts of all ranks by a collective of its own. `data` is the digest of the gradients before they
        were reduced, if `wants_data`; 0 where these say nothing.
        """
        mine = [digest(list(facts.items()))]
        if self.wants_data:
            mine.append(data)
        rows = exchange(mine, self._process_set, self.name)
        if len({row[0] for row in rows.values()}) > 1:
            self.explain(facts)
        if len(mine) > 1:
            self._compare_data({rank: row[1] for rank, row in rows.items() if row[1]})

    def explain(self, facts: Facts) -> None:
        """The ranks' digests differ: finds out in what, and says so. To be called on all ranks."""
        try:
            everyone = allgather_object(dict(facts), f"{self.name}.facts", self._process_set)
        except HorovodInternalError as error:
            self._say(PARAMETER, f"the ranks do not train the same model any more, and asking why failed: {error}")
            return
        found = difference(dict(zip(self._process_set.ranks or [], everyone, strict=True)))
        if found is not None:
            kind, text = found
            self._say(kind, f"the ranks do not train the same model: {text}. {_ADVICE.get(kind, '')}")

    @property
    def name(self) -> str:
        """What the collectives of this training's checks are called."""
        if self._own_name:
            return f"checks.{self._own_name}"
        if not self._name:
            number = next(_begun.setdefault(self._process_set.process_set_id, itertools.count()))
            self._name = f"checks.{number}"
        return self._name

    def _compare_data(self, digests: Mapping[int, int]) -> None:
        alike: dict[int, list[int]] = {}
        for rank, number in digests.items():
            alike.setdefault(number, []).append(rank)
        suspects = [ranks for ranks in alike.values() if len(ranks) > 1]
        # Twice the same is no accident: a first batch may be one that is only there to warm up.
        for ranks in suspects if self.rounds > 1 or self._level > 1 else ():
            self._warn(
                f"{_ranks(ranks)} computed exactly the same gradients: they seem to train on the same data. Give each "
                f"rank its own part, for example with DistributedSampler(dataset, num_replicas=hvd.size(), "
                f"rank=hvd.rank()). {_SILENCE}"
            )
        self._suspects = suspects

    def _say(self, kind: str, text: str) -> None:
        # With different models there is nothing to go on with.
        if self._level > 1 or kind == MODEL:
            raise TrainingMistake(text)
        if kind not in self._said:
            self._said.add(kind)
            self._warn(f"{text} {_SILENCE}")

    def _warn(self, text: str) -> None:
        # All know; one is enough to say it.
        if _native.rank() == min(self._process_set.ranks or [0]):
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def difference(everyone: Mapping[int, Facts]) -> tuple[str, str] | None:
    """The first fact in which ranks differ: its kind, and who has what; None if they agree."""
    keys: dict[tuple[str, str], None] = {}
    for facts in everyone.values():
        keys.update(dict.fromkeys(facts))
    for kind, name in keys:
        parties: dict[str, list[int]] = {}
        for rank, facts in everyone.items():
            parties.setdefault(_shown(facts.get((kind, name), "missing")), []).append(rank)
        if len(parties) > 1:
            # The smaller party first: it is more likely the one to be mended.
            sides = sorted(parties.items(), key=lambda side: len(side[1]))
            said = " but ".join(f"{value} on {_ranks(ranks)}" for value, ranks in sides)
            return kind, f"{f'{kind} {name}'.strip()} is {said}"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}{', ...' if len(value) == ELEMENTS else ''}]"
    return str(value)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def rates(groups: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """The facts about learning rates: of each group of parameters its own."""
    return {(RATE, f"of group {i}"): float(group["lr"]) for i, group in enumerate(groups) if "lr" in group}
