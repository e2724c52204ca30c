"""The engine, as Python sees it: `crates/corro-python`, compiled. Fronts call it; users do not."""

from collections.abc import Callable, Sequence
from typing import Any

from corro._front.adapter import View

# An exception: its class, what it says, and (file, line, function) of where it was raised, last.
_Raised = tuple[str, str, Sequence[tuple[str, int, str]]]

class Output:
    """Memory that the engine has allocated for a result whose size it learned from the other ranks."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_on_gpu(self) -> bool:
        """Whether it is in the memory of a GPU. Then `copy_to` is the way to have it."""

    def copy_to(self, address: int, stream: int) -> None:
        """Has a stream copy it to `nbytes` bytes at `address`, on the same GPU."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def received_splits(self) -> list[int]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(self, *, stream: Any = None, **ignored: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# Where an array lies, and how long it is.
_Memory = tuple[int, int]

class ParameterServer:
    """A parameter server in a thread of this process."""

    def __new__(cls, one_host: bool, launched: bool) -> ParameterServer: ...
    @property
    def addresses(self) -> list[str]: ...
    def stop(self, together: bool) -> None:
        """Stops it; with `together`, when all workers have left, but soon in any case."""

class Pulled:
    """A value that was asked for."""

class PulledRows:
    """Rows that were asked for."""

class StoreClient:
    """A worker's end of a store of parameters. Arrays must stay where they are until a call returns."""

    def __new__(
        cls,
        store: int,
        me: int,
        workers: int,
        kind: str,
        bound: int,
        servers: Sequence[tuple[Sequence[str], float]],
        launched: bool,
    ) -> StoreClient: ...
    def init(
        self,
        name: str,
        dtype: int,
        shape: tuple[int, int],
        rule: str,
        striped: bool,
        memory: _Memory | None,
        compression: str | None,
    ) -> None: ...
    def push(self, name: str, memory: _Memory, priority: int, rate: float | None) -> None: ...
    def push_rows(self, name: str, rows: _Memory, elements: _Memory, priority: int, rate: float | None) -> None: ...
    def pull(self, name: str, priority: int) -> Pulled: ...
    def value(self, pull: Pulled, into: _Memory) -> int: ...
    def has_come(self, pull: Pulled) -> bool: ...
    def pull_rows(self, name: str, rows: _Memory, priority: int) -> PulledRows: ...
    def rows(self, pull: PulledRows, into: _Memory) -> None: ...
    def clock(self) -> None: ...
    def barrier(self) -> None: ...
    def set_optimizer(self, name: str, numbers: Sequence[tuple[str, float]]) -> None: ...
    def stats(self) -> list[list[tuple[str, int]]]: ...
    def traffic(self) -> tuple[int, int, list[int]]: ...
    def save(self, file: str) -> None: ...
    def load(self, file: str) -> None: ...
    def close(self, together: bool) -> None: ...

def launched_servers() -> tuple[bool, list[list[str]]]:
    """Whether the servers that the launcher has started have hosts of their own, and the addresses of each."""

def add_rows(dtype: int, row_bytes: int, into: tuple[int, int], to: tuple[int, int], rows: tuple[int, int], /) -> None:
    """Adds rows to those of a table that have the numbers `to` (int64), one after the other; all as address and bytes."""

def take_rows(row_bytes: int, into: tuple[int, int], which: tuple[int, int], table: tuple[int, int], /) -> None:
    """Fills `into` with the rows of a table that have the numbers `which` (int64); all as address and bytes."""

def distinct(given: tuple[int, int], found: tuple[int, int], which: tuple[int, int], /) -> int:
    """Writes numbers (int64) to `found`, each once, as they first come; to `which` which of them each is. Says how many
    were found."""

def deal(given: tuple[int, int], hands: int, dealt: tuple[int, int], moved: tuple[int, int], /) -> list[int]:
    """Deals numbers (int64): n goes to n mod `hands`, as n / `hands`. `dealt` gets those of the first, then of the second,
    and so on; `moved` where each has gone. Says how many each has got."""

def server_shares(worker_hosts: int, spare_hosts: int) -> tuple[float, float]:
    """The shares of one spare host and of one worker host in the parameters."""

def takes_gpu_memory() -> bool:
    """Whether tensors on GPUs can be handed over where they are: there is a driver and a GPU."""

def also_look_for_nccl_in(folder: str) -> None:
    """Where a framework's own NCCL is, for all that look for it from now on."""

def nccl_version() -> int:
    """The version of NCCL that ranks with GPUs would use; 0 if there is none, or no GPU."""

def check_running() -> None:
    """Raises if the job is over."""

def register_streams(streams: Callable[[int], int]) -> None:
    """`streams(device)` gives the number of the framework's current stream on a GPU."""

def setting(name: str) -> str | None:
    """What the user set for the knob called `name` (without prefix); None when it is unset or empty."""

def flag(name: str, default: bool = False) -> bool:
    """Horovod's rule: true if the leading integer of the value is above zero; the common words work too."""

def foreign(name: str) -> str | None:
    """A variable that another launcher or the system sets; None when it is unset or empty."""

def init() -> None: ...
def shutdown(after: _Raised | None = None) -> None:
    """Ends the job; `after` is the exception that the program deals with just now, for the other ranks to know."""

def expect_foreign_threads() -> None:
    """From now on tensors may come from threads that work for others, such as a framework's."""

def open_statements() -> None:
    """From now on this process can say why it ends, and no program that it starts can say so in its name."""

def leaving(raised: _Raised | None, uncaught: bool, code: int | None, texts: Sequence[str]) -> None:
    """This process comes to its end: by `raised`, or with exit code `code` (if known) after it.

    `texts` are what `raised` and the exceptions behind it say.
    """

def thread_raised(raised: _Raised) -> None:
    """An exception has ended a thread of this process, which goes on."""

def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> bool: ...
def epoch() -> int:
    """How often the ranks of this job have met anew."""

def set_progress(progress: int) -> None:
    """In an elastic job: how far this rank's state is. Who has the highest number is rank 0 of the next epoch."""

def host_changes() -> int:
    """In an elastic job: the changes that wait for the next commit, as bits: 1 hosts leave, 2 hosts come, 4 the job ends.

    Never waits.
    """

def end_early() -> None:
    """This process ends because an elastic job does so at a commit: `leave` tells the driver that there is work left."""

def leave() -> None:
    """In an elastic job: this rank has done its work, and will end with success."""

# kind: "allreduce", "allgather", "broadcast", "alltoall", "reducescatter".
# output: where the result goes; None for kinds whose result the engine allocates.
# name: None gives "<kind>.noname.<n>", where n counts the unnamed operations of this kind in this process set,
# and starts over at 256.
def run(
    kind: str,
    view: View,
    output: View | None,
    set_id: int | None,
    name: str | None,
    op: int = 1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: Sequence[int] | None = None,
    compression: str | None = None,
) -> Output | None:
    """Runs one collective and waits for it, without the GIL."""

def submit(
    kind: str,
    view: View,
    output: View | None,
    set_id: int | None,
    name: str | None,
    keep: Any,
    result: Any,
    complete: Callable[[Any, Output | None], Any] | None,
    op: int = 1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: Sequence[int] | None = None,
    compression: str | None = None,
) -> int:
    """Starts one collective. `wait` on the returned handle gives `result`, or what `complete(result, output)` makes of it.

    `keep` owns the memory of `view`; it and `result` live at least as long as the operation.
    """

def submit_group(
    kind: str,
    views: Sequence[View],
    outputs: Sequence[View] | None,
    set_id: int | None,
    name: str | None,
    keep: Any,
    results: Sequence[Any],
    complete: Callable[[Any, Output | None], Any] | None,
    op: int = 1,
    prescale: float | Sequence[float] = 1.0,
    postscale: float | Sequence[float] = 1.0,
    compression: str | None = None,
) -> int:
    """Starts several collectives that complete together; `wait` gives the tuple of their results.

    Several factors are one for each tensor.
    """

def check_compression(text: str) -> tuple[str, bool, bool]:
    """A compression, written in full; whether it has feedback; whether it is biased without."""

def compression_report(set_id: int | None) -> dict[str, dict[str, Any]]: ...
def compression_state(set_id: int | None) -> dict[str, bytes]:
    """What compression remembers of tensors, by their names in the engine. None of them may be in flight."""

def load_compression_state(set_id: int | None, states: dict[str, bytes]) -> None: ...
def forget_compression(set_id: int | None, names: Sequence[str]) -> None:
    """Forgets what is owed of these tensors."""

def scale_compression(set_id: int | None, factor: float, names: Sequence[str]) -> None:
    """Multiplies what is owed of these tensors."""

def poll(handle: int) -> bool:
    """Whether the operation has ended; `ValueError` for a handle that is not in flight."""

def wait(handle: int) -> Any:
    """Waits for the operation and forgets the handle; None for a handle that is not in flight."""

def join() -> int: ...
def barrier(set_id: int | None) -> None: ...
def shared_memory(set_id: int | None, bytes: int) -> Output | None:  # noqa: A002
    """Memory that the ranks of a set share, if all are on one host: tensors that lie there at the same places on all of
    them are reduced without a copy. All must call this, in the same order.
    """

def add_process_set(ranks: Sequence[int]) -> int: ...
def reserve_process_set(ranks: Sequence[int]) -> int: ...
def remove_process_set(set_id: int) -> bool: ...
def process_set(set_id: int) -> list[int] | None: ...
def start_timeline(path: str, mark_cycles: bool) -> None: ...
def stop_timeline() -> None: ...
def is_watched() -> bool:
    """Whether anybody is told what `log_value` says."""

def log_warning(text: str) -> None:
    """Writes a line to the log of this process."""

def log_value(step: int, name: str, value: float) -> None:
    """Tells those who watch the job a value of its training."""

def dumps_on(signal: int) -> None:
    """This process writes down where its threads are when it gets this signal."""

def mark_step() -> None:
    """Tells them that a step has ended. Does nothing without a job."""

def metrics() -> str:
    """What this rank's engine has counted so far, in Prometheus' text format."""

def object_call(set_id: int | None, name: str) -> tuple[int, str, int]:
    """The next sending of objects by this name; all ranks of the set must ask."""

def object_proof(call: tuple[int, str, int], sender: int, data: bytes) -> bytes:
    """32 bytes that prove that rank `sender` sends `data` in this call."""

def check_object(call: tuple[int, str, int], sender: int, sealed: bytes) -> None:
    """Raises unless `sealed` is what rank `sender` sent in this call, with its proof behind it."""

def flight_record() -> str:
    """The last operations of this rank, as text."""

def start_job(wanted: dict[str, Any]) -> tuple[list[bytes | None], tuple[str, int | None] | None]:
    """Runs a job to its end: the results of its ranks; why it failed, if it did, and because of which rank.

    See `corro.runner`.
    """

def payload() -> bytes:
    """In a rank: what the starter of the job has sent."""

def give_result(bytes: bytes) -> None:  # noqa: A002
    """In a rank: what the starter of the job is to get."""

def tensorflow_problem() -> str | None:
    """Why TensorFlow has no operations of Corro's; None if `tf.load_op_library` has registered them."""

def tensorflow_xla_problem() -> str | None:
    """Makes collectives known to XLA; why that is not possible, or None."""

def jax_handlers(futures: int | None = None) -> tuple[Any, Any]:
    """The functions that compiled programs call, as XLA takes them: with host memory, and with that of a GPU. `futures` is
    where XLA has its functions for futures.
    """

def jax_failure(text: str) -> BaseException | None:
    """The exception behind an error of XLA's with this text, if that is why a collective has failed."""
