"""The engine alone, between two processes, against TCP: throughput, and the round trip of 1 KB.

No JAX: each process is benchmarks/engine_bench.cc, which `./dev bench engine` builds. Peers in the same run, in turn
with ours, round after round: one iperf3 stream with writes of the message's size (iperf3 takes at most 1 MB), and
blocking TCP sockets with TCP_NODELAY for the round trip. Networks:

  loopback  both processes on this host as it is
  veth      two network namespaces joined by a veth pair with an MTU of 1500; needs root
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 16 << 20}
IPERF_LARGEST = 1 << 20
IN_FLIGHT_BYTES = 8 << 20
ROUND_TRIP_BYTES = 1024
# Who answers: the engine thread, an application thread that spins, one that sleeps.
WAYS = ("callback", "poll", "wait")


@dataclass
class Network:
    """Where the two processes live and at which addresses."""

    name: str
    addresses: tuple[str, str] = ("127.0.0.1", "127.0.0.1")
    namespaces: tuple[str, str] | None = None

    def command(self, process: int, words: list[str]) -> list[str]:
        if self.namespaces is None:
            return words
        return ["ip", "netns", "exec", self.namespaces[process], *words]


@contextlib.contextmanager
def veth(mtu: int) -> Iterator[Network]:
    """Two namespaces and a cable between them, gone afterwards."""
    names = ("uccl-bench-a", "uccl-bench-b")
    addresses = ("10.98.7.1", "10.98.7.2")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    for name in names:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
    try:
        for name in names:
            ip("netns", "add", name)
        ends = ("ucclbench0", "ucclbench1")
        ip(
            "link",
            "add",
            ends[0],
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            ends[1],
            "netns",
            names[1],
        )
        for name, end, address in zip(names, ends, addresses, strict=True):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "mtu", str(mtu), "up")
        yield Network("veth", addresses, names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


class Pair:
    """Two engine_bench processes that are connected."""

    def __init__(self, program: pathlib.Path, kind: str, network: Network, settings: list[str]):
        self.processes = []
        for process in (0, 1):
            words = [str(program), kind, str(process), f"address={network.addresses[process]}"]
            self.processes.append(
                subprocess.Popen(
                    network.command(process, words + settings),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        addresses = [self._line(p).removeprefix("address ") for p in (0, 1)]
        # The accepting side first.
        self._write(1, f"connect {addresses[0]}")
        self._write(0, f"connect {addresses[1]}")
        self._answers()

    def _write(self, process: int, text: str) -> None:
        pipe = self.processes[process].stdin
        assert pipe is not None
        pipe.write(text + "\n")
        pipe.flush()

    def _line(self, process: int) -> str:
        pipe = self.processes[process].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise SystemExit(f"engine_bench ended with {self.processes[process].wait()}")
        return line.rstrip("\n")

    def _answers(self) -> tuple[dict[str, float], dict[str, float]]:
        results = []
        for process in (0, 1):
            line = self._line(process)
            word, *pairs = line.split()
            if word != "done":
                raise SystemExit(f"engine_bench: {line}")
            results.append({k: float(v) for k, v in (pair.split("=") for pair in pairs)})
        return results[0], results[1]

    def ask(self, command: str) -> tuple[dict[str, float], dict[str, float]]:
        """Both processes' answers to one command; process 1 hears it first."""
        self._write(1, command)
        self._write(0, command)
        return self._answers()

    def close(self) -> None:
        for process in (0, 1):
            self._write(process, "quit")
        for process in self.processes:
            process.wait(timeout=20)


def engine_stream(pair: Pair, size: int, seconds: float) -> dict[str, float]:
    in_flight = max(2, IN_FLIGHT_BYTES // size)
    warm = max(in_flight, (16 << 20) // size)
    speed = warm * size / pair.ask(f"stream {size} {warm} {in_flight}")[0]["seconds"]
    messages = max(in_flight, int(speed * seconds / size))
    sender, receiver = pair.ask(f"stream {size} {messages} {in_flight}")
    return {
        "gb_per_s": messages * size / sender["seconds"] / 1e9,
        "sender_cpu": sender["cpu_s"] / sender["seconds"],
        "receiver_cpu": receiver["cpu_s"] / receiver["seconds"],
    }


def iperf_stream(network: Network, size: int, seconds: float) -> dict[str, float]:
    port, address = str(random.randint(20000, 30000)), network.addresses[1]
    server = subprocess.Popen(
        network.command(1, ["iperf3", "-s", "-1", "-B", address, "-p", port, "--forceflush"]),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    for line in server.stdout:
        if "listening" in line:
            break
    length = str(min(size, IPERF_LARGEST))
    words = [
        "iperf3",
        "-c",
        address,
        "-p",
        port,
        "-l",
        length,
        "-t",
        f"{max(1, round(seconds))}",
        "--json",
    ]
    done = subprocess.run(network.command(0, words), capture_output=True, text=True)
    server.stdout.read()
    server.wait(timeout=20)
    report = json.loads(done.stdout)
    if "error" in report:
        raise SystemExit(f"iperf3: {report['error']}")
    end = report["end"]
    return {
        "gb_per_s": end["sum_received"]["bits_per_second"] / 8e9,
        "sender_cpu": end["cpu_utilization_percent"]["host_total"] / 100,
        "receiver_cpu": end["cpu_utilization_percent"]["remote_total"] / 100,
    }


def round_trip(pair: Pair, rounds: int, how: str) -> dict[str, float]:
    pair.ask(f"pingpong {ROUND_TRIP_BYTES} {rounds // 10 + 1} {how}")
    answer = pair.ask(f"pingpong {ROUND_TRIP_BYTES} {rounds} {how}")[0]
    return {k: answer[k] for k in ("median_us", "p99_us", "mean_us")}


@dataclass
class Case:
    """One thing measured in several ways, side by side; the last way is the peer."""

    what: str
    size: str
    unit: str
    ways: dict[str, Callable[[], dict[str, float]]]
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)


def run_network(network: Network, options: argparse.Namespace) -> list[dict[str, Any]]:
    settings = options.setting
    pairs: list[Pair] = []

    def pair(kind: str, extra: list[str]) -> Pair:
        pairs.append(Pair(options.program, kind, network, extra))
        return pairs[-1]

    ours = pair("engine", settings)
    tcp = pair("tcp", [])
    variants = {"jax_uccl": ours}
    if network.name == "veth":
        variants = {
            "jax_uccl, no offload": pair(
                "engine", [*settings, "udp_segments=1", "udp_receive_offload=0"]
            ),
            **variants,
        }
    cases = []
    for label, size in SIZES.items():
        ways: dict[str, Callable[[], dict[str, float]]] = {
            name: lambda p=p, size=size: engine_stream(p, size, options.seconds)
            for name, p in variants.items()
        }
        ways["iperf3"] = lambda size=size: iperf_stream(network, size, options.seconds)
        cases.append(Case("one way", label, "gb_per_s", ways))
    ways = {
        f"jax_uccl, {how}": lambda how=how: round_trip(ours, options.round_trips, how)
        for how in WAYS
    }
    ways["TCP"] = lambda: round_trip(tcp, options.round_trips, "wait")
    cases.append(Case("round trip", "1 KB", "median_us", ways))
    for number in range(options.rounds):
        print(
            f"{network.name}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True
        )
        for case in cases:
            # In turn forwards and backwards, so that a drift of the machine's speed favours nobody.
            for way in list(case.ways)[:: 1 if number % 2 == 0 else -1]:
                case.rounds.setdefault(way, []).append(case.ways[way]())
    for p in pairs:
        p.close()
    rows = []
    for case in cases:
        for way in case.ways:
            row = {"network": network.name, "what": case.what, "size": case.size, "unit": case.unit}
            rows.append({**row, "way": way, "rounds": case.rounds[way]})
    return rows


def cell(values: list[float], unit: str) -> str:
    digits = 2 if unit == "gb_per_s" else 1
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def print_table(rows: list[dict[str, Any]]) -> None:
    peers = {
        (row["network"], row["what"], row["size"]): row
        for row in rows
        if row["way"] in ("iperf3", "TCP")
    }
    print("| network | what | size | by | median (least-most) | ratio to TCP | busy cores |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        unit = row["unit"]
        values = [r[unit] for r in row["rounds"]]
        peer = peers[row["network"], row["what"], row["size"]]
        # Of the rounds, pair by pair: what disturbed one is likely to have disturbed the other.
        ratios = [a[unit] / b[unit] for a, b in zip(row["rounds"], peer["rounds"], strict=True)]
        ratio = "" if row is peer else cell(ratios, "gb_per_s")
        busy = ""
        if unit == "gb_per_s":
            busy = " + ".join(
                f"{statistics.median(r[side] for r in row['rounds']):.2f}"
                for side in ("sender_cpu", "receiver_cpu")
            )
        label = "GB/s" if unit == "gb_per_s" else "us"
        print(
            f"| {row['network']} | {row['what']} | {row['size']} | {row['way']} "
            f"| {cell(values, unit)} {label} | {ratio} | {busy} |"
        )


def find_program() -> pathlib.Path:
    built = [p for p in ROOT.glob("build/*/engine_bench") if p.is_file()]
    if not built:
        raise SystemExit("engine_bench is not built; run this as ./dev bench engine")
    return max(built, key=lambda p: p.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one stream")
    parser.add_argument("--round-trips", type=int, default=4000)
    parser.add_argument("--networks", default="loopback,veth")
    parser.add_argument("--mtu", type=int, default=1500, help="of the veth pair")
    parser.add_argument("--setting", action="append", default=[], help="name=value for the engines")
    parser.add_argument("--program", type=pathlib.Path, default=None, help="engine_bench")
    parser.add_argument("--json", default=None, help="where to write all figures")
    options = parser.parse_args()
    options.program = options.program or find_program()
    if shutil.which("iperf3") is None:
        raise SystemExit("this needs iperf3: apt-get install iperf3")
    rows = []
    for name in options.networks.split(","):
        if name == "loopback":
            rows += run_network(Network("loopback"), options)
            continue
        if name != "veth":
            raise SystemExit(f"no such network: {name}; there are loopback and veth")
        with veth(options.mtu) as network:
            rows += run_network(network, options)
    print_table(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
