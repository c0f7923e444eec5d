"""Goodput over four equal paths: jax_uccl's transport and collectives beside TCP and JAX with gloo.

    python benchmarks/paths.py [--rounds 3] [--rates 50,200] [--losses 0,1/4096,1/256,0.01] [--parts stream,tcp,jax,cut]

Makes two hosts of network namespaces, joined by four rate-limited paths between two routers that hash
addresses and ports (tests/integration/path_network.py), so it needs root, iproute2, nftables and iperf3; nothing is
left behind. A round takes six minutes.

- stream: csrc/engine without JAX, one way, with 1, 4, 16 and 64 paths and otherwise default settings.
- tcp: iperf3 with 1 and 4 connections.
- jax: psum and all_to_all of 8 MB a rank, 2 and 4 processes (half of them on each host), jax_uccl and jax.lax
  with gloo in one job. A round is a fresh job, so connections hash anew.
- cut: a stream over 16 paths; one of the four links swallows everything for 1.5 s.

`--segments 8` leaves bundles of the segmentation offload of up to 8 packets whole, as hosts do with a NIC that cuts
them: for rates at which forwarding single packets in software takes all of the machine. Only without loss.

Contenders take turns, round after round. Goodput is payload delivered once, per second. The share is that of the
aggregate payload capacity: rate x paths x payload / (payload + all headers with Ethernet) of a full packet of
the contender. For a collective it counts the bytes that its algorithm moves between the hosts, one way.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from path_network import PathNetwork, free_port, missing  # noqa: E402

PARTS = ("stream", "tcp", "jax", "cut")
STREAM_PATHS = (1, 4, 16, 64)
TCP_CONNECTIONS = (1, 4)
PROCESSES = (2, 4)
JAX_BYTES = 8 << 20
JAX_CALLS = {"uccl": 4, "gloo": 2}  # after one that is not counted
STREAM_SECONDS = 3.0
WARM_UP_SECONDS = 1.0
# Payload in a packet of 1500 bytes: less IP, UDP and the header of DATA (docs/wire_format.md); less IP and TCP with
# timestamps.
OUR_PAYLOAD, TCP_PAYLOAD = 1500 - 28 - 40, 1500 - 52
# A cut, and what of the timeline is looked at.
CUT_AT, HEALED_AT, CUT_SECONDS = 1.5, 3.0, 5.0
TICK_MS = 10
SMOOTH_TICKS = 5

Row = dict[str, Any]


def probability(text: str) -> float:
    """ "1/256" or "0.01"."""
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


# ---- streams ----


@dataclasses.dataclass(frozen=True)
class Stream:
    """What came of one: payload received by the receiver's clock (that of time.monotonic), and the sender's sums."""

    ticks: list[tuple[float, int]]
    sums: dict[str, int]
    marks: list[float]

    def goodput_mbit(self) -> float:
        begin = self.ticks[0][0] + WARM_UP_SECONDS
        inside = [t for t in self.ticks if t[0] >= begin]
        (t0, b0), (t1, b1) = inside[0], inside[-1]
        return (b1 - b0) * 8 / (t1 - t0) / 1e6

    def rates_mbit(self) -> list[tuple[float, float]]:
        """Beginning of each tick, and the goodput in it and the next few."""
        pairs = zip(self.ticks, self.ticks[SMOOTH_TICKS:], strict=False)
        return [(t0, (b1 - b0) * 8 / (t1 - t0) / 1e6) for (t0, b0), (t1, b1) in pairs]


def stream(
    net: PathNetwork,
    program: pathlib.Path,
    settings: list[str],
    seconds: float,
    events: list[tuple[float, Callable[[], None]]] | None = None,
) -> Stream:
    """Runs both ends of benchmarks/stream.cc, and `events` at their times."""
    ends = []
    for role, host in (("send", "a"), ("receive", "b")):
        arguments = [role, seconds, 1 << 20, 8, TICK_MS, f"address={net.address(host)}", *settings]
        command = [*net.enter(host), str(program), *map(str, arguments)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        ends.append(subprocess.Popen(command, text=True, **pipes))
    try:
        addresses = [end.stdout.readline().removeprefix("address ") for end in ends]
        for end, address in zip(ends, reversed(addresses), strict=True):
            end.stdin.write(address)
            end.stdin.flush()
        start = time.monotonic()
        marks = []
        for when, event in events or []:
            time.sleep(max(0.0, start + when - time.monotonic()))
            event()
            marks.append(time.monotonic())
        outputs = [end.communicate(timeout=seconds + 60) for end in ends]
    finally:
        for end in ends:
            end.kill()
            end.wait()
    for end, (_, errors) in zip(ends, outputs, strict=True):
        if end.returncode != 0:
            raise RuntimeError(f"{' '.join(end.args)} failed:\n{errors}")
    words = [[line.split() for line in out.splitlines()] for out, _ in outputs]
    ticks = [(int(w[1]) / 1e9, int(w[2])) for w in words[1] if w[0] == "tick"]
    return Stream(ticks, {w[1]: int(w[2]) for w in words[0] if w[0] == "sum"}, marks)


def stream_row(net: PathNetwork, program: pathlib.Path, paths: int, settings: list[str]) -> Row:
    result = stream(net, program, [f"paths={paths}", *settings], STREAM_SECONDS)
    kept = ("packets_sent", "retransmits_fast", "retransmits_timeout", "timeouts", "srtt_ns")
    return {
        "contender": f"jax_uccl, {paths} path{'s' if paths > 1 else ''}",
        "goodput_mbit": result.goodput_mbit(),
        "payload_share": net.payload_share(OUR_PAYLOAD),
        "sums": {name: result.sums[name] for name in kept},
    }


def cut_row(net: PathNetwork, program: pathlib.Path, settings: list[str]) -> Row:
    """How long the goodput takes to reach 95 % of three paths after one is cut, and of four after it healed."""
    events = [(CUT_AT, lambda: net.cut(1)), (HEALED_AT, net.heal)]
    result = stream(net, program, ["paths=16", *settings], CUT_SECONDS, events)
    full = net.total_mbit * net.payload_share(OUR_PAYLOAD)
    rates = result.rates_mbit()
    cut, healed = result.marks

    remaining = full * (net.paths - 1) / net.paths

    def back(since: float, level: float) -> float | None:
        return next((1e3 * (t - since) for t, r in rates if t >= since and r >= level), None)

    return {
        "contender": "jax_uccl, 16 paths",
        "back_ms": back(cut, 0.95 * remaining),
        "reused_ms": back(healed, 0.95 * full),
        "lowest_share": min(r for t, r in rates if cut <= t <= cut + 0.5) / remaining,
        "timeline_mbit": [
            [round(1e3 * (t - cut)), round(r, 1)]
            for t, r in rates
            if cut - 0.2 < t < cut + 0.5 or healed - 0.1 < t < healed + 0.5
        ],
        "payload_share": net.payload_share(OUR_PAYLOAD),
        "sums": result.sums,
    }


# ---- TCP ----


def tcp_row(net: PathNetwork, connections: int) -> Row:
    port = str(free_port(net, "b", sys.executable))
    server = subprocess.Popen(
        [*net.enter("b"), "iperf3", "-s", "-1", "--forceflush", "-p", port],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for text in server.stdout:
            if "listening" in text:
                break
        client = [*net.enter("a"), "iperf3", "-c", net.address("b"), "-p", port, "-J"]
        client += ["-P", str(connections), "-t", f"{STREAM_SECONDS - WARM_UP_SECONDS:g}"]
        client += ["-O", f"{WARM_UP_SECONDS:g}"]
        done = subprocess.run(client, capture_output=True, text=True, timeout=60, check=True)
    finally:
        server.kill()
        server.wait()
    received = json.loads(done.stdout)["end"]["sum_received"]
    return {
        "contender": f"TCP, {connections} connection{'s' if connections > 1 else ''}",
        "goodput_mbit": received["bits_per_second"] / 1e6,
        "payload_share": net.payload_share(TCP_PAYLOAD),
    }


# ---- JAX ----


def crossing(library: str, op: str, n: int) -> float:
    """Bytes that go from one host to the other, one way, per byte of a rank's operand, with half of n ranks on each
    side. Ours exchanges directly, an all-reduce twice; gloo's all-reduce is a ring."""
    if op == "psum" and library == "gloo":
        return 2 * (n - 1) / n
    return (2 if op == "psum" else 1) * n / 4


def jax_rows(
    net: PathNetwork, processes: int, losses: list[str], set_loss: Callable[[str], None]
) -> Iterator[Row]:
    """One job: both libraries, both operations, every loss."""
    coordinator = f"{net.address('a')}:{free_port(net, 'a', sys.executable)}"
    ranks = []
    for rank in range(processes):
        command = [*net.enter("ab"[2 * rank // processes]), sys.executable, __file__]
        command += ["--child", f"{rank},{processes},{coordinator}", "--losses", ",".join(losses)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        env["JAX_UCCL_SHARED_MEMORY"] = "off"  # namespaces of one host are to be several hosts
        first = rank == 0
        ranks.append(
            subprocess.Popen(
                command,
                env=env,
                text=True,
                stdin=subprocess.PIPE if first else subprocess.DEVNULL,
                stdout=subprocess.PIPE if first else subprocess.DEVNULL,
            )
        )
    try:
        for line in ranks[0].stdout:
            word, _, rest = line.partition(" ")
            if word == "loss":
                set_loss(rest.strip())
                ranks[0].stdin.write("ready\n")
                ranks[0].stdin.flush()
            elif word == "row":
                yield _jax_row(net, json.loads(rest))
        codes = [rank.wait(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(codes):
        raise RuntimeError(f"a process of the JAX job failed: exit codes {codes}")


def _jax_row(net: PathNetwork, measured: Row) -> Row:
    library, op, n = measured["library"], measured["op"], measured["processes"]
    moved = JAX_BYTES * crossing(library, op, n)
    return {
        **measured,
        "contender": f"{'jax_uccl' if library == 'uccl' else 'JAX with gloo'}, {op}, {n} processes",
        "goodput_mbit": moved * 8 / measured["seconds"] / 1e6,
        "payload_share": net.payload_share(OUR_PAYLOAD if library == "uccl" else TCP_PAYLOAD),
    }


def jax_child(spec: str, losses: list[str]) -> None:
    """One process of a JAX job. Rank 0 asks for each loss on standard output and waits for the answer."""
    rank, processes, coordinator = spec.split(",")
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, int(processes), int(rank))
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_uccl

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def make(library: Any, op: str) -> Any:
        def f(v: Any) -> Any:
            if op == "psum":
                return library.psum(v, "x")
            return library.all_to_all(v, "x", 0, 0, tiled=True)

        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        )

    value = np.ones((n * (JAX_BYTES // 4),), np.float32)
    arg = jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("x")), lambda i: value[i])
    libraries = {"uccl": jax_uccl, "gloo": lax}
    calls = {
        (name, op): make(lib, op)
        for op in ("psum", "all_to_all")
        for name, lib in libraries.items()
    }
    for loss in losses:
        if rank == "0":
            print("loss", loss, flush=True)
            sys.stdin.readline()
        for (name, op), f in calls.items():
            jax.block_until_ready(f(arg))  # everybody is here, windows are open
            start = time.perf_counter()
            for _ in range(JAX_CALLS[name]):
                jax.block_until_ready(f(arg))
            seconds = (time.perf_counter() - start) / JAX_CALLS[name]
            if rank == "0":
                row = {"library": name, "op": op, "processes": n, "seconds": seconds}
                print("row", json.dumps(row), flush=True)
    jax_uccl.shutdown()
    jax.distributed.shutdown()


# ---- all of it ----


def find_stream() -> pathlib.Path:
    """The newest build of stream.cc."""
    built = [p for p in ROOT.glob("build/*/uccl_stream") if p.is_file()]
    if not built:
        sys.exit(
            "paths.py: uccl_stream is not built; run this as ./dev bench paths, or name it by --stream"
        )
    return max(built, key=lambda p: p.stat().st_mtime)


class Session:
    """One network and the rows that come of it."""

    def __init__(self, net: PathNetwork, number: int, rows: list[Row]):
        self.net, self.number, self.rows, self.loss = net, number, rows, "0"

    def set_loss(self, text: str) -> None:
        self.net.lose(probability(text))
        self.loss = text

    def add(self, part: str, row: Row) -> None:
        row = {"loss": self.loss, "round": self.number, **row}
        network = {"rate_mbit": self.net.rate_mbit, "segments": self.net.segments}
        row = {"part": part, **network, **row}
        if "goodput_mbit" in row:
            row["share"] = row["goodput_mbit"] / (self.net.total_mbit * row["payload_share"])
        self.rows.append(row)
        print(line(row), file=sys.stderr, flush=True)


def measure(options: argparse.Namespace, rows: list[Row]) -> None:
    parts, losses = options.parts.split(","), options.losses.split(",")
    stream_paths = [int(p) for p in options.stream_paths.split(",")]
    processes = [int(p) for p in options.processes.split(",")]
    program = options.stream or find_stream()
    first = 1 + max((row["round"] for row in rows), default=-1)
    for number in range(first, first + options.rounds):
        for rate in (float(r) for r in options.rates.split(",")):
            with PathNetwork(rate_mbit=rate, segments=options.segments) as net:
                session = Session(net, number, rows)
                for loss in losses:
                    session.set_loss(loss)
                    if "stream" in parts:
                        for paths in stream_paths:
                            session.add("stream", stream_row(net, program, paths, options.settings))
                    if "tcp" in parts:
                        for connections in TCP_CONNECTIONS:
                            session.add("tcp", tcp_row(net, connections))
                session.set_loss("0")
                if "cut" in parts:
                    session.add("cut", cut_row(net, program, options.settings))
                if "jax" in parts:
                    for n in processes:
                        for row in jax_rows(net, n, losses, session.set_loss):
                            session.add("jax", row)


def line(row: Row) -> str:
    head = f"{row['rate_mbit']:g} Mbit/s, loss {row['loss']:6}  {row['contender']:38}"
    if "share" in row:
        return f"{head} {row['goodput_mbit']:7.1f} Mbit/s {100 * row['share']:5.1f} %"
    times = [row["back_ms"], row["reused_ms"]]
    back, reused = ("never" if t is None else f"{t:.0f} ms" for t in times)
    lowest = 100 * row["lowest_share"]
    return f"{head} back after {back} (lowest {lowest:.0f} %), path used again after {reused}"


def table(rows: list[Row]) -> str:
    """Markdown: a line per contender and rate, a column per loss; share in per cent, median (lowest-highest)."""
    out = []
    measured = [r for r in rows if "share" in r]
    losses = list(dict.fromkeys(r["loss"] for r in measured))
    for rate, segments in dict.fromkeys((r["rate_mbit"], r["segments"]) for r in measured):
        bundles = f", bundles of {segments} packets" if segments > 1 else ""
        out += [f"4 x {rate:g} Mbit/s{bundles}", ""]
        out += ["| | " + " | ".join(f"loss {loss}" for loss in losses) + " |"]
        out += ["| --- |" + " --- |" * len(losses)]
        here = [r for r in measured if (r["rate_mbit"], r["segments"]) == (rate, segments)]
        for contender in dict.fromkeys(r["contender"] for r in here):
            cells = []
            for loss in losses:
                shares = [
                    100 * r["share"]
                    for r in here
                    if (r["contender"], r["loss"]) == (contender, loss)
                ]
                spread = (
                    f"{statistics.median(shares):.1f} ({min(shares):.1f}-{max(shares):.1f})"
                    if shares
                    else ""
                )
                cells.append(spread)
            out.append(f"| {contender} | " + " | ".join(cells) + " |")
        out.append("")
    for rate in dict.fromkeys(r["rate_mbit"] for r in rows if r["part"] == "cut"):
        cuts = [r for r in rows if r["part"] == "cut" and r["rate_mbit"] == rate]
        for key, what in (("back_ms", "one path cut: back"), ("reused_ms", "healed: used again")):
            times = [r[key] for r in cuts]
            if None in times:
                out.append(f"{what} after: never in {times.count(None)} of {len(times)} runs")
                continue
            spread = f"{statistics.median(times):.0f} ms ({min(times):.0f}-{max(times):.0f})"
            out.append(f"4 x {rate:g} Mbit/s, {what} after {spread}, {len(times)} runs")
        lowest = [100 * r["lowest_share"] for r in cuts]
        out.append(
            f"4 x {rate:g} Mbit/s, lowest {SMOOTH_TICKS * TICK_MS} ms after the cut, per cent of what remains: "
            f"{statistics.median(lowest):.0f} ({min(lowest):.0f}-{max(lowest):.0f})"
        )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="settings of the streams, name=value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="50,200", help="of each path, Mbit/s")
    parser.add_argument(
        "--losses", default="0,1/4096,1/256,0.01", help="of each path and direction"
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--stream-paths", default=",".join(map(str, STREAM_PATHS)))
    parser.add_argument(
        "--processes", default=",".join(map(str, PROCESSES)), help="of the JAX jobs"
    )
    parser.add_argument("--segments", type=int, default=1, help="most packets of a bundle")
    parser.add_argument("--stream", type=pathlib.Path, help="a built uccl_stream")
    parser.add_argument("--json", type=pathlib.Path, help="where to write all measurements")
    parser.add_argument("--add", action="store_true", help="to those that are there already")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum)
    )  # unwinds and cleans up
    if options.child:
        return jax_child(options.child, options.losses.split(","))
    reason = missing("iperf3")
    if reason is not None:
        sys.exit(f"paths.py: {reason}")
    if options.segments > 1 and options.losses != "0":
        sys.exit("paths.py: --segments above 1 would lose whole bundles; give --losses 0")
    rows: list[Row] = []
    if options.add and options.json.exists():
        rows = json.loads(options.json.read_text())
    try:
        measure(options, rows)
    finally:
        if options.json and rows:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
