"""The small helpers under `horovod.runner` and `horovod.common` that programs use to start processes of their own."""

import io
import os
import signal
import socket
import socketserver
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from horovod.common.util import _cache
from horovod.runner.common.util import codec, env, host_hash, safe_shell_exec, secret, settings, timeout
from horovod.runner.util import network, streams, threads

PATIENCE = 60


def until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def run(command, **options):
    out, err = io.StringIO(), io.StringIO()
    code = safe_shell_exec.execute(command, stdout=out, stderr=err, **options)
    return code, out.getvalue(), err.getvalue()


# --- safe_shell_exec ---


def test_a_command_has_its_output_its_variables_and_its_exit_code():
    code, out, err = run("printf 'a\\nb'; echo $WORD >&2; exit 3", env={"WORD": "hello", "PATH": os.environ["PATH"]})
    assert (code, out, err) == (3, "a\nb", "hello\n")
    assert run("kill -KILL $$")[0] == 128 + signal.SIGKILL


def test_output_goes_to_files_of_bytes_and_of_text(tmp_path):
    for mode in ("w", "wb"):
        with (tmp_path / mode).open(mode) as file:
            assert safe_shell_exec.execute("printf 'grün'", stdout=file) == 0
        assert (tmp_path / mode).read_text(encoding="utf-8") == "grün"


def test_lines_have_a_prefix():
    _, out, err = run("printf 'one\\ntwo\\rthree'; echo bad >&2", index=7)
    assert out == "[7]<stdout>:one\n[7]<stdout>:two\n[7]<stdout>:three\n"
    assert err == "[7]<stderr>:bad\n"
    _, out, _ = run("echo one", index=0, prefix_output_with_timestamp=True)
    when, text = out.split("[0]", 1)
    assert text == "<stdout>:one\n"
    time.strptime(when, "%a %b %d %H:%M:%S %Y")


def test_a_character_that_arrives_in_two_pieces_stays_whole():
    source = io.BytesIO("grün\n".encode())
    source.read1 = lambda _: io.BytesIO.read(source, 1)
    into = io.StringIO()
    safe_shell_exec.forward_stream(source, into, "stdout", 1)
    assert into.getvalue() == "[1]<stdout>:grün\n"


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:  # it ended just now
        return False


# Two processes, of which the second is not the shell's child any more and the first does not listen to SIGTERM.
STUBBORN = "trap '' TERM; (sleep 1000 & echo $! > {there}/second); echo $$ > {there}/first; while :; do sleep 1; done"


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_event_ends_a_command_and_what_it_started(tmp_path, stubborn):
    command = STUBBORN if stubborn else STUBBORN.removeprefix("trap '' TERM; ")
    event, never = threading.Event(), threading.Event()
    codes = []
    caller = threads.in_thread(
        lambda: codes.append(run(command.format(there=tmp_path), events=[never, event])[0]), daemon=True
    )
    until(lambda: (tmp_path / "first").exists() and (tmp_path / "first").read_text().strip(), "the start")
    pids = [int((tmp_path / name).read_text()) for name in ("first", "second")]
    assert all(map(_alive, pids))
    event.set()
    caller.join(PATIENCE)
    assert codes == [128 + (signal.SIGKILL if stubborn else signal.SIGTERM)]
    assert not any(map(_alive, pids))


def test_a_command_may_clean_up(tmp_path):
    event = threading.Event()
    command = f"trap 'sleep 0.5; echo cleaned; exit 9' TERM; touch {tmp_path}/begun; while :; do sleep 0.05; done"
    results = []
    caller = threads.in_thread(lambda: results.append(run(command, events=[event])))
    until((tmp_path / "begun").exists, "the start")
    event.set()
    caller.join(PATIENCE)
    assert [result[:2] for result in results] == [(9, "cleaned\n")]


def test_a_command_ends_with_its_caller(tmp_path):
    script = "import sys; from horovod.runner.common.util import safe_shell_exec; safe_shell_exec.execute(sys.argv[1])"
    caller = subprocess.Popen([sys.executable, "-c", script, f"echo $$ > {tmp_path}/pid; sleep 1000"])
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the start")
    caller.kill()
    caller.wait()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _alive(pid), "the end of the command")


# --- threads ---


def test_a_thread_prints_what_it_raises_unless_it_is_silent(capfd):
    done = []
    threads.in_thread(done.append, (1,), name="appends").join(PATIENCE)
    assert done == [1]

    def fails():
        raise RuntimeError("as expected")

    threads.in_thread(fails, silent=True).join(PATIENCE)
    assert "as expected" not in capfd.readouterr().err
    with pytest.raises(ValueError, match=r"\(arg,\)"):
        threads.in_thread(print, "text")


def test_what_waits_for_an_event():
    event, stop, calls = threading.Event(), threading.Event(), []
    waiting = threads.on_event(event, calls.append, ("called",), stop=stop, check_stop_interval_s=0.01)
    event.set()
    waiting.join(PATIENCE)
    assert calls == ["called"]
    stopped = threads.on_event(threading.Event(), calls.append, ("never",), stop=stop, check_stop_interval_s=0.01)
    stop.set()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()
    assert calls == ["called"]
    with pytest.raises(ValueError, match="an event"):
        threads.on_event(None, print)


def test_many_calls_at_a_time():
    here, most = [], []

    def call(x, y):
        here.append(x)
        most.append(len(here))
        time.sleep(0.01)
        here.remove(x)
        return x + y

    arguments = [(i, 100) for i in range(12)]
    results = threads.execute_function_multithreaded(call, arguments, max_concurrent_executions=3)
    assert results == {i: i + 100 for i in range(12)}
    assert max(most) <= 3
    assert threads.execute_function_multithreaded(call, []) == {}

    def fails(_):
        raise KeyError("of a call")

    with pytest.raises(KeyError, match="of a call"):
        threads.execute_function_multithreaded(fails, [(1,)])
    done = threading.Event()
    assert threads.execute_function_multithreaded(lambda _: done.set(), [(1,)], block_until_all_done=False) is None
    assert done.wait(PATIENCE)


# --- streams ---


def test_a_pipe_hands_over_piece_by_piece():
    pipe = streams.Pipe()
    written = []
    writer = threads.in_thread(
        lambda: [written.append(pipe.write(piece)) for piece in ("first", "second")] and pipe.close()
    )
    assert pipe.read(2, timeout=PATIENCE) == "fi"
    assert pipe.read(timeout=PATIENCE) == "rst"
    assert pipe.read(100, timeout=PATIENCE) == "second"
    assert pipe.read(timeout=PATIENCE) is None
    writer.join(PATIENCE)
    assert written == [5, 6]
    with pytest.raises(RuntimeError, match="closed"):
        pipe.write("more")


def test_a_pipe_does_not_wait_for_ever():
    pipe = streams.Pipe()
    with pytest.raises(TimeoutError, match="nothing was written"):
        pipe.read(timeout=0.01)
    pipe.write(b"bytes too")
    pipe.flush()
    pipe.close()
    assert pipe.read() == b"bytes too"
    assert pipe.read() is None


# --- network ---


def test_the_addresses_of_this_machine():
    assert "127.0.0.1" in network.get_local_host_addresses()
    assert ("127.0.0.1", 0) in network.get_local_intfs()["lo"]
    assert set(network.get_local_intfs("lo")) == {"lo"}
    assert "lo" in network.get_local_host_intfs()
    assert network.get_local_intfs("no such") == {}
    assert network.get_driver_ip(["no such", "lo"]) == "127.0.0.1"
    with pytest.raises(RuntimeError, match=r"There are: .*lo"):
        network.get_driver_ip(["no such"])


def test_which_hosts_are_others():
    assert network.resolve_host_address("localhost") == "127.0.0.1"
    assert network.resolve_host_address("no-such-host.invalid") is None
    assert network.filter_local_addresses(["localhost", "192.0.2.7", "no-such-host.invalid"]) == [
        "192.0.2.7",
        "no-such-host.invalid",
    ]


def test_a_port_that_is_free():
    tried = []

    def make(address):
        tried.append(address)
        if len(tried) == 1:
            raise OSError("taken")
        return socketserver.TCPServer(("127.0.0.1", address[1]), socketserver.BaseRequestHandler)

    server, port = network.find_port(make)
    with server, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
        assert server.server_address[1] == port
    assert len(tried) >= 2


# --- the rest of `runner.common.util`, and `common.util` ---


def test_a_digest_proves_a_secret():
    key = secret.make_secret_key()
    assert len(key) == secret.SECRET_LENGTH
    assert key != secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == secret.DIGEST_LENGTH
    assert secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"massage", digest)
    assert not secret.check_digest(secret.make_secret_key(), b"message", digest)


def test_objects_as_text():
    for to_ascii, kind in ((True, str), (False, bytes)):
        text = codec.dumps_base64({"f": lambda x: x + 1}, to_ascii=to_ascii)
        assert isinstance(text, kind)
        assert codec.loads_base64(text)["f"](1) == 2


def test_a_deadline():
    plenty = timeout.Timeout(PATIENCE, "Timed out waiting for {activity}.")
    plenty.check_time_out_for("anything")
    assert 0 < plenty.remaining() <= PATIENCE
    over = timeout.Timeout(0.0, 'Timed out waiting for {activity} of {"json": 1}.')
    until(over.timed_out, "the end of no time")
    assert over.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match=r"waiting for ranks of .*Timeout after 0.0 seconds"):
        over.check_time_out_for("ranks")


def test_hosts_have_hashes():
    name = host_hash.host_hash()
    assert name == host_hash.host_hash()
    assert name.startswith(socket.gethostname().split(".")[0] + "-")
    assert host_hash.host_hash(salt="task 1") not in (name, host_hash.host_hash(salt="task 2"))


def test_which_variables_travel():
    assert env.is_exportable("PATH")
    for name in ("BASH_FUNC_module%%", "OLDPWD", "CUDA_VISIBLE_DEVICES", secret.HOROVOD_SECRET_KEY):
        assert not env.is_exportable(name), name
    assert env.is_exportable("OLDPWD_OF_MINE")


def test_settings_take_a_timeout():
    from corro.runner.gloo_run import flags

    given = settings.Settings(num_proc=2, start_timeout=timeout.Timeout(7, "too late"))
    assert "--start-timeout=7" in flags(given)


def test_a_function_is_called_once_for_each_argument():
    calls = []

    @_cache
    def function(x, *, y=0):
        calls.append((x, y))
        return x + y

    assert [function(1), function(1), function(1, y=2), function(1, y=2), function(2)] == [1, 1, 3, 3, 2]
    assert calls == [(1, 0), (1, 2), (2, 0)]
    assert function.__name__ == "function"


def test_these_are_corros_modules():
    script = """
        import horovod.runner.util.threads, corro.runner.util.threads
        import horovod.runner.common.util.safe_shell_exec as one, corro.runner.common.util.safe_shell_exec as other
        assert one is other and horovod.runner.util.threads is corro.runner.util.threads
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=PATIENCE)
