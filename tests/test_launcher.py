"""The launcher: output, exit codes, signals, timeouts, and that no process ever stays behind.

Most children are small scripts without JAX. A child that has to stay waits for a signal; a test
that needs to know when it is ready reads a line that it prints, and learns of its end from a pidfd.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import textwrap

import pytest

import jax_uccl
from jax_uccl._src.launch_job import Job, child_environment, reserved_address

PACKAGE_ROOT = pathlib.Path(jax_uccl.__file__).parents[1]
LIMIT_S = 60  # No test takes that long; it turns a hang into a failure.

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs Linux with pidfd_open to watch processes end"
)


HEAD = """
import os, signal, sys
rank = int(os.environ["JAX_UCCL_LAUNCH_RANK"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # Before the test can send it.
def wait_for_go():
    print("pid", rank, os.getpid())
    signal.sigwait([signal.SIGUSR1])
"""


class Launch:
    """One run of the launcher as a subprocess; `finish` waits for it."""

    def __init__(self, *args, **popen):
        command = [sys.executable, "-m", "jax_uccl.launch", *map(str, args)]
        path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = popen.pop("env", os.environ) | {"PYTHONPATH": path}
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, **(streams | popen)
        )

    def lines(self, count):
        """The next lines of standard output, without waiting for the end."""
        return [self.process.stdout.readline().decode().rstrip("\n") for _ in range(count)]

    def pids(self, count):
        """Rank and process id from the next lines, each of which ends in the two."""
        return [tuple(map(int, line.split()[-2:])) for line in self.lines(count)]

    def finish(self):
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def launch():
    """launch(*args) starts the launcher; what still runs at the end of the test is killed."""
    with contextlib.ExitStack() as stack:

        def start(*args, **popen):
            run = Launch(*args, **popen)
            stack.callback(run.process.wait)
            stack.callback(run.process.kill)
            return run

        yield start


@pytest.fixture
def script(tmp_path):
    """script(source) writes a child program that begins with `HEAD`."""

    def write(source, name="child.py"):
        path = tmp_path / name
        path.write_text(HEAD + textwrap.dedent(source))
        return path

    return write


@contextlib.contextmanager
def watching(pids):
    """Yields check(), which waits until all these processes have ended."""
    with contextlib.ExitStack() as stack:
        fds = []
        for pid in pids:
            fds.append(os.pidfd_open(pid))
            stack.callback(os.close, fds[-1])

        def check():
            for pid, fd in zip(pids, fds, strict=True):
                assert select.select([fd], [], [], LIMIT_S)[0], f"process {pid} still runs"

        yield check


PLAIN = ("--no-initialize",)


class TestOutput:
    def test_prefix_arguments_and_path(self, launch, script):
        path = script("print(sys.argv, sys.path[0], __name__); print('warn', file=sys.stderr)")
        code, out, err = launch("-n", 2, *PLAIN, path, "--x", "1", "-n", "9").finish()
        argv = [str(path), "--x", "1", "-n", "9"]
        assert code == 0
        assert sorted(out.splitlines()) == [
            f"[{rank}/2] {argv} {path.parent} __main__" for rank in (0, 1)
        ]
        assert sorted(err.splitlines()) == ["[0/2] warn", "[1/2] warn"]  # And nothing of ours.

    def test_module(self, launch, script, tmp_path):
        script("print(__name__, sys.argv[1:], __package__)", name="some_module.py")
        code, out, _ = launch(
            "-n", 1, *PLAIN, "-m", "some_module", "-m", "x", cwd=tmp_path
        ).finish()
        assert (code, out) == (0, "[0/1] __main__ ['-m', 'x'] \n")

    def test_lines_of_ranks_do_not_mix(self, launch, script):
        path = script("""
            for i in range(3000):
                sys.stdout.write(f"{rank}:{i}:" + "x" * (i % 97))
                sys.stdout.write("\\n")
            sys.stdout.write("end without newline")
        """)
        code, out, _ = launch("-n", 3, *PLAIN, path).finish()
        assert code == 0
        lines = out.splitlines()
        for rank in range(3):
            mine = [line.partition(" ")[2] for line in lines if line.startswith(f"[{rank}/3] ")]
            expected = [f"{rank}:{i}:" + "x" * (i % 97) for i in range(3000)]
            assert mine == [*expected, "end without newline"]
        assert len(lines) == 3 * 3001

    def test_line_appears_while_the_rank_runs(self, launch, script):
        run = launch("-n", 1, *PLAIN, script("print('ready'); signal.pause()"))
        assert run.lines(1) == ["[0/1] ready"]

    def test_input_is_closed(self, launch, script):
        code, out, _ = launch("-n", 2, *PLAIN, script("print(repr(sys.stdin.read()))")).finish()
        assert (code, sorted(out.split())) == (0, ["''", "''", "[0/2]", "[1/2]"])

    def test_progress_bar_in_a_file_is_not_a_line_per_redraw(self, launch, script):
        path = script("""
            for i in range(500):
                print(f"\\r{i} of 500", end="")
            print("\\rall done  ")
        """)
        code, out, _ = launch("-n", 2, *PLAIN, path).finish()
        assert code == 0
        lines = out.splitlines()
        assert {"[0/2] all done", "[1/2] all done"} <= set(lines)
        assert len(lines) <= 4  # On a very slow machine rank 0 may have shown its bar meanwhile.

    def test_progress_bar_on_a_terminal(self, launch, script, tmp_path):
        go = tmp_path / "go"
        path = script(f"""
            import os, time
            if rank == 1:
                print("line of one")
            else:
                for i in range(50):
                    print("\\rbar", str(i) + "." * (i % 5), end="")
                print("\\rlog line", " " * 10)
                print("\\r" + "long " * 20, end="", flush=True)
                while not os.path.exists({str(go)!r}):
                    time.sleep(0.01)
                for i in range(50, 100):
                    print("\\rbar", i, end="")
                print()
        """)
        master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 40))
        env = {"env": os.environ | {"TERM": "xterm"}}
        run = launch("-n", 2, *PLAIN, path, stdout=slave, stderr=slave, **env)
        os.close(slave)
        data = b""
        with contextlib.suppress(OSError):  # EIO: the last writer has closed the terminal.
            while chunk := os.read(master, 65536):
                data += chunk
                if b"long" in data:
                    go.touch()  # The long bar is on the screen, so what follows must replace it.
        os.close(master)
        assert run.process.wait(LIMIT_S) == 0
        # The bar was drawn in place, and never so long that it would wrap.
        drawn = re.findall(r"\r(\[0/2\] [^\r\n\x1b]*)\r\x1b\[2K", data.decode())
        assert drawn and max(map(len, drawn)) <= 39
        screen = [line.rstrip() for line in on_screen(data.decode())]
        assert sorted(screen) == sorted(["[0/2] log line", "[0/2] bar 99", "[1/2] line of one", ""])
        assert screen.index("[0/2] log line") < screen.index("[0/2] bar 99")

    def test_output_that_is_not_blocking(self, launch, script):
        # A pipe of the launcher's caller may be so; it fills, since nothing is read at first.
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        path = script("for i in range(9000): print('x' * 100)\nwait_for_go()")
        run = launch("-n", 1, *PLAIN, path, stdout=sink)
        os.close(sink)
        with os.fdopen(source) as lines:
            assert {lines.readline() for _ in range(9000)} == {"[0/1] " + "x" * 100 + "\n"}
            os.kill(int(lines.readline().split()[-1]), signal.SIGUSR1)
        assert run.process.wait(LIMIT_S) == 0

    def test_reader_gone(self, launch, script):
        run = launch("-n", 2, *PLAIN, script("while True: print('x' * 100)"))
        run.lines(1)
        run.process.stdout.close()
        assert run.process.wait(LIMIT_S) == 128 + signal.SIGPIPE


def on_screen(text):
    """What a terminal of endless size shows; knows the three controls that are used."""
    lines, column = [""], 0
    for token in re.findall(r"\x1b\[2K|[\r\n]|[^\x1b\r\n]+", text):
        if token == "\x1b[2K":
            lines[-1] = ""
        elif token == "\r":
            column = 0
        elif token == "\n":
            lines.append("")
            column = 0
        else:
            lines[-1] = lines[-1][:column].ljust(column) + token + lines[-1][column + len(token) :]
            column += len(token)
    return lines


class TestExitCode:
    @pytest.mark.parametrize(
        ("statement", "code"),
        [
            ("sys.exit(0)", 0),
            ("sys.exit(7)", 7),
            ("sys.exit('words')", 1),
            ("raise KeyError('missing')", 1),
            ("os._exit(3)", 3),
            ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
            ("os.abort()", 128 + 6),
        ],
    )
    def test_of_one_rank(self, launch, script, statement, code):
        assert launch("-n", 1, *PLAIN, script(statement)).finish()[0] == code

    def test_first_failure_ends_the_others(self, launch, script):
        path = script("""
            if rank == 1:
                wait_for_go()
                sys.exit(9)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
            print("pid", rank, os.getpid())
            while True:
                signal.pause()
        """)
        run = launch("-n", 3, *PLAIN, path)
        pids = dict(run.pids(3))
        with watching(pids.values()) as check:
            os.kill(pids[1], signal.SIGUSR1)
            code, _, err = run.finish()
            check()
        assert code == 9
        assert "[launch] rank 1 exited with code 9; ending the others" in err

    def test_rank_that_ignores_sigterm_is_killed(self, launch, script):
        path = script("""
            if rank == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            wait_for_go()
            sys.exit(5)
        """)
        run = launch("-n", 2, "--grace", 0.2, *PLAIN, path)
        pids = dict(run.pids(2))
        with watching(pids.values()) as check:
            os.kill(pids[1], signal.SIGUSR1)
            assert run.finish()[0] == 5
            check()

    def test_traceback_starts_in_the_script(self, launch, script):
        _, _, err = launch("-n", 1, *PLAIN, script("def f(): return 1 / 0\nf()")).finish()
        lines = [line.removeprefix("[0/1] ") for line in err.splitlines()]
        assert lines[0].startswith("Traceback")
        assert "child.py" in lines[1]
        assert "ZeroDivisionError: division by zero" in lines


class TestSignals:
    STAYS = """
        import atexit
        atexit.register(print, "cleaned", rank)
        print("pid", rank, os.getpid())
        while True:
            signal.pause()
    """

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_is_forwarded(self, launch, script, number):
        run = launch("-n", 3, *PLAIN, script(self.STAYS))
        pids = dict(run.pids(3))
        with watching(pids.values()) as check:
            run.process.send_signal(number)
            code, out, err = run.finish()
            check()
        assert code == 128 + number
        assert f"received {number.name}" in err
        if number == signal.SIGINT:  # A KeyboardInterrupt in each rank, so its clean-up runs.
            assert sorted(out.split()) == sorted(
                word for rank in range(3) for word in (f"[{rank}/3]", "cleaned", str(rank))
            )

    def test_rank_that_does_not_end_is_killed(self, launch, script):
        path = script("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            wait_for_go()
        """)
        run = launch("-n", 2, "--grace", 0.2, *PLAIN, path)
        pids = dict(run.pids(2))
        with watching(pids.values()) as check:
            run.process.send_signal(signal.SIGTERM)
            assert run.finish()[0] == 128 + signal.SIGTERM
            check()

    def test_second_interrupt_kills(self, launch, script):
        path = script("""
            def on_interrupt(*_):
                print("no")
            signal.signal(signal.SIGINT, on_interrupt)
            print("pid", rank, os.getpid())
            while True:
                signal.pause()
        """)
        run = launch("-n", 2, "--grace", 1000, *PLAIN, path)
        pids = dict(run.pids(2))
        with watching(pids.values()) as check:
            run.process.send_signal(signal.SIGINT)
            assert sorted(run.lines(2)) == ["[0/2] no", "[1/2] no"]
            run.process.send_signal(signal.SIGINT)
            assert run.finish()[0] == 130
            check()

    def test_ignored_signal_stays_ignored(self, launch, script):
        run = launch(
            *("-n", 1, *PLAIN),
            script("wait_for_go(); print('end')"),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
        ((_, pid),) = run.pids(1)
        run.process.send_signal(signal.SIGHUP)
        os.kill(pid, signal.SIGUSR1)
        assert run.finish()[:2] == (0, "[0/1] end\n")


class TestNoOrphans:
    # A rank with a child that ignores SIGTERM in the rank's group, and one in its own session.
    FAMILY = """
        import subprocess
        stay = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)\\n"
        stay += "while True: signal.pause()"
        for new_session in (False, True):
            child = subprocess.Popen([sys.executable, "-c", stay], start_new_session=new_session,
                                     stdout=subprocess.PIPE)
            child.stdout.readline()
            print("pid", rank, child.pid)
        wait_for_go()
    """

    def test_after_normal_end(self, launch, script):
        run = launch("-n", 1, *PLAIN, script(self.FAMILY))
        pids = [pid for _, pid in run.pids(3)]
        with watching(pids) as check:
            os.kill(pids[-1], signal.SIGUSR1)  # The rank itself prints last.
            assert run.finish()[0] == 0
            check()

    def test_after_failure(self, launch, script):
        path = script(self.FAMILY + "\n        sys.exit(3)\n")
        run = launch("-n", 2, "--grace", 0.2, *PLAIN, path)
        pids = run.pids(6)
        with watching([pid for _, pid in pids]) as check:
            os.kill(dict(pids)[1], signal.SIGUSR1)
            assert run.finish()[0] == 3
            check()

    def test_after_launcher_was_killed(self, launch, script):
        run = launch("-n", 2, *PLAIN, script(self.FAMILY))
        pids = [pid for _, pid in run.pids(6)]
        # What has left the session of its rank is out of reach of a launcher that was killed.
        daemons = [pid for pid in pids if os.getsid(pid) == pid and is_grandchild(pid, run)]
        assert len(daemons) == 2
        try:
            with watching([pid for pid in pids if pid not in daemons]) as check:
                run.process.kill()
                check()
        finally:
            for pid in daemons:
                os.kill(pid, signal.SIGKILL)

    def test_timeout(self, launch, script):
        path = script(
            "def waits_for_ever():\n"
            + textwrap.indent(textwrap.dedent(self.FAMILY), "    ")
            + "\nwaits_for_ever()\n"
        )
        run = launch("-n", 2, "--timeout", 8, "--grace", 0.2, *PLAIN, path)
        with watching([pid for _, pid in run.pids(6)]) as check:
            code, _, err = run.finish()
            check()
        assert code == 124
        assert "[launch] timeout after 8 s; still running: rank 0, 1" in err
        assert len(re.findall(r"^\[[01]/2\]   File .* in waits_for_ever$", err, re.M)) == 2


def is_grandchild(pid, run):
    parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent != run.process.pid


class TestSettings:
    def test_environment(self, launch, script):
        path = script("print(os.environ['A'], os.environ['JAX_NUM_CPU_DEVICES'])")
        run = launch("-n", 1, "--env", "A=b=c", "--devices-per-process", 3, *PLAIN, path)
        assert run.finish()[:2] == (0, "[0/1] b=c 3\n")

    def test_inherited_device_count_is_replaced(self, monkeypatch):
        flag = "--xla_force_host_platform_device_count=8"
        monkeypatch.setenv("XLA_FLAGS", f"--xla_a=1 {flag} --xla_b=2")
        env = child_environment(Job(command=["x"], size=1, devices_per_process=2), 0, "host:1")
        assert env["XLA_FLAGS"].split() == ["--xla_a=1", "--xla_b=2"]
        assert env["JAX_NUM_CPU_DEVICES"] == "2"

    @pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
    def test_freed_memory_is_kept(self, launch, script, monkeypatch):
        for name in [n for n in os.environ if n == "GLIBC_TUNABLES" or n.startswith("MALLOC_")]:
            monkeypatch.delenv(name)
        # In a thread, because large results are often made in one, and those have arenas of their own.
        path = script("""
            import resource, threading
            def allocate(times):
                for _ in range(times):
                    block = b"x" * (40 << 20)
                    del block
            def run():
                allocate(2)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                allocate(10)
                print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            thread = threading.Thread(target=run)
            thread.start(); thread.join()
        """)
        code, out, err = launch("-n", 1, *PLAIN, path).finish()
        # Ten times 40 MB are 200 huge pages, or 100,000 small ones.
        assert code == 0 and int(out.split()[-1]) < 150, out + err
        code, out, err = launch("-n", 1, "--no-keep-memory", *PLAIN, path).finish()
        assert code == 0 and int(out.split()[-1]) > 180, out + err

    @pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
    def test_an_allocator_that_was_set_up_is_left_alone(self, monkeypatch, name):
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
        monkeypatch.setenv(name, "4")
        env = child_environment(Job(command=["x"], size=1), 0, "host:1")
        assert env.get("GLIBC_TUNABLES") == os.environ.get("GLIBC_TUNABLES")
        assert env[name] == "4"

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["-n", "1"], "a script or -m module is needed"),
            (["-n", "0", "x.py"], "not at least 1"),
            (["x.py"], "required: -n"),
            (["-n", "1", "--env", "NAME", "x.py"], "not of the form NAME=VALUE"),
            (["-n", "1", "--timeout", "0", "x.py"], "not above 0"),
            (["-n", "1", "missing.py"], "no such file: missing.py"),
        ],
    )
    def test_wrong_usage(self, launch, args, message):
        code, out, err = launch(*args).finish()
        assert code == 2 and out == "" and message in err

    def test_reserved_ports_are_distinct_and_usable(self):
        with contextlib.ExitStack() as stack:
            addresses = [stack.enter_context(reserved_address()) for _ in range(100)]
            assert len(set(addresses)) == 100
            for address in addresses:
                with socket.socket() as server:  # As the coordinator does.
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    server.bind(("127.0.0.1", int(address.rpartition(":")[2])))
                    server.listen()

    def test_needs_no_jax_in_the_parent(self):
        # The package's own __init__ is replaced: what it imports is not the launcher's business.
        source = """
            import sys, types
            package = types.ModuleType("jax_uccl")
            package.__path__ = [sys.argv[1]]
            sys.modules |= {"jax_uccl": package, "jax": None, "numpy": None}
            import jax_uccl._src.launcher
        """
        folder = str(PACKAGE_ROOT / "jax_uccl")
        subprocess.run([sys.executable, "-c", textwrap.dedent(source), folder], check=True)


class TestWithJax:
    def test_unmodified_script(self, launch, script):
        path = script("""
            import jax
            jax.distributed.initialize()  # Scripts made for a cluster do this themselves.
            print(jax.process_index() == rank, jax.process_count(), jax.local_device_count(),
                  jax.device_count())
            try:
                jax.distributed.initialize(num_processes=5)
            except ValueError as error:
                print(error)
        """)
        code, out, err = launch("-n", 2, "--devices-per-process", 2, path).finish()
        assert code == 0, err
        for rank in (0, 1):
            mine = [line for line in out.splitlines() if line.startswith(f"[{rank}/2] ")]
            assert mine[0] == f"[{rank}/2] True 2 2 4"
            assert "num_processes=5) contradicts the launcher" in mine[1]

    @pytest.mark.parametrize("chosen, found", [(None, None), ("gloo", "gloo")])
    def test_one_process_exchanges_in_memory_unless_told_otherwise(
        self, launch, script, monkeypatch, chosen, found
    ):
        monkeypatch.delenv("JAX_CPU_COLLECTIVES_IMPLEMENTATION", raising=False)
        if chosen:
            monkeypatch.setenv("JAX_CPU_COLLECTIVES_IMPLEMENTATION", chosen)
        path = script("""
            import jax
            add = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")
            print(add(jax.numpy.arange(3.0)), jax.config.jax_cpu_collectives_implementation)
        """)
        code, out, err = launch("-n", 1, "--devices-per-process", 3, path).finish()
        assert code == 0, err
        assert f"[0/1] [3. 3. 3.] {found}" in out.splitlines()

    def test_failure_does_not_wait_for_the_other_ranks(self, launch, script):
        # JAX's exit handler would wait five minutes at a barrier for the rank that stays.
        path = script("""
            import atexit
            atexit.register(print, "script's exit handler")
            if rank == 1:
                raise ValueError("boom")
            signal.pause()
        """)
        # The long grace shows that SIGTERM is enough: JAX may not keep it from the other rank.
        code, out, err = launch("-n", 2, "--grace", 1000, path).finish()
        assert code == 1
        assert "[1/2] ValueError: boom" in err
        assert "[1/2] script's exit handler" in out

    def test_starts_again_after_shutdown(self, launch, script):
        path = script("""
            import pathlib, time
            import jax
            from jax._src import distributed
            rank = distributed.global_state.process_id
            stopped = pathlib.Path(__file__).with_name("stopped")
            jax.distributed.shutdown()
            # Rank 0 holds the coordination service: a rank that is early would find the old one, and be
            # ended by JAX when that goes.
            if rank == 0:
                stopped.touch()
            while not stopped.exists():
                time.sleep(0.01)
            jax.distributed.initialize()
            print(jax.process_index())
            # Nor must it leave while the other still needs it.
            distributed.global_state.client.wait_at_barrier("end", 60_000)
        """)
        code, out, err = launch("-n", 2, path).finish()
        assert code == 0, err
        assert sorted(out.splitlines()) == ["[0/2] 0", "[1/2] 1"]
