"""Two hosts joined by several rate-limited paths, made of network namespaces. Needs root and `ip`.

      host A --- router A ==== paths (TBF) ==== router B --- host B
      10.77.1.2   ECMP, layer-4 hashing both ways      10.77.2.2

The routers pick a path by a hash of addresses and ports (fib_multipath_hash_policy=1), as a data-centre
fabric does, so one UDP port pair or TCP connection stays on one path. Nothing leaves the namespaces, and nothing
of it is left when the context ends, whatever happened inside.

    with PathNetwork(rate_mbit=50) as net:
        net.lose(1 / 256)
        net.cut(1)
        subprocess.run([*net.enter("a"), "ping", "-c1", net.address("b")])
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import socket
import subprocess
from types import TracebackType

ETHERNET_BYTES = 14  # TBF counts them; there is no FCS on a veth
IP_BYTES, UDP_BYTES = 20, 8
_HOSTS_FOLDER = pathlib.Path("/etc/netns")  # `ip netns exec` mounts what is here over /etc


def missing(*programs: str) -> str | None:
    """Why a PathNetwork cannot be made on this machine; None when it can."""
    if os.name != "posix" or os.uname().sysname != "Linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "nft", "sysctl", *programs):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install iproute2 nftables procps iperf3)"
    return _refused()


@functools.cache
def _refused() -> str | None:
    """What the kernel says to the parts that containers and small kernels lack."""
    name = f"uccl-try-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", "v0", "netns", name, "type", "veth", "peer", "name", "v1")
        _run("ip", "netns", "exec", name, *"tc qdisc add dev v0 root tbf".split(), *_shape(50, 20))
        _nft(name, "add table inet uccl\n")
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return None


def _run(*command: str, stdin: str | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, input=stdin).stdout


def _nft(namespace: str, rules: str) -> None:
    _run("ip", "netns", "exec", namespace, "nft", "-f", "-", stdin=rules)


def _shape(rate_mbit: float, queue_ms: float) -> list[str]:
    """Arguments of TBF. A burst no longer than a few packets: what a longer one lets through at once would count as
    goodput beyond the rate."""
    limit = max(int(rate_mbit * 1e6 / 8 * queue_ms / 1000), 16_000)
    return f"rate {rate_mbit:g}mbit burst 16kb limit {limit}".split()


class PathNetwork:
    """The namespaces of one network; a context manager.

    Args:
      rate_mbit: of each path and direction.
      paths: number of paths between the routers.
      mtu: of every link.
      queue_ms: how long a full queue of a path is.
      segments: most packets that links carry as one bundle of the segmentation offload. 1 is a wire: shaping, hashing
        and loss act on each packet. A bundle costs little more CPU than a packet and takes one path as a whole.
    """

    def __init__(
        self,
        rate_mbit: float = 50,
        paths: int = 4,
        mtu: int = 1500,
        queue_ms: float = 20,
        segments: int = 1,
    ):
        self.rate_mbit, self.paths, self.mtu, self.queue_ms = rate_mbit, paths, mtu, queue_ms
        self.segments = segments
        self._prefix = f"uccl{os.getpid()}"
        self._loss = 0.0
        self._cut: set[int] = set()

    def __enter__(self) -> PathNetwork:
        reason = missing()
        if reason is not None:
            raise OSError(reason)
        try:
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._down()

    def address(self, host: str) -> str:
        """IPv4 address of host "a" or "b"."""
        return {"a": "10.77.1.2", "b": "10.77.2.2"}[host]

    def enter(self, host: str) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self._name(host)]

    def payload_share(self, packet_payload_bytes: int) -> float:
        """Most of the rate that a payload of so many bytes in each full packet can reach."""
        return packet_payload_bytes / (self.mtu + ETHERNET_BYTES)

    @property
    def total_mbit(self) -> float:
        return self.rate_mbit * self.paths

    def lose(self, probability: float) -> None:
        """Every path and direction drops so many of its packets at random; 0: none."""
        self._loss = probability
        self._apply()

    def cut(self, path: int) -> None:
        """Swallows what enters a path, both ways; the routers do not notice and go on using it."""
        self._cut.add(path)
        self._apply()

    def heal(self) -> None:
        self._cut.clear()
        self._apply()

    def sent_bytes(self, side: str = "a") -> list[int]:
        """What the router of this side has sent into each path."""
        text = _run(
            *["ip", "netns", "exec", self._name("r" + side), "sh", "-c"],
            "cat "
            + " ".join(f"/sys/class/net/p{i}/statistics/tx_bytes" for i in range(self.paths)),
        )
        return [int(word) for word in text.split()]

    def _name(self, role: str) -> str:
        return f"{self._prefix}-{role}"

    def _up(self) -> None:
        for role in ("a", "b", "ra", "rb"):
            name = self._name(role)
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            settings = ["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"]
            if role in ("ra", "rb"):
                settings += ["net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=1"]
            _run("ip", "netns", "exec", name, "sysctl", "-qw", *settings)
        for i, host in enumerate("ab", start=1):
            self._join("eth0", self._name(host), "h0", self._name("r" + host))
            self._give(self._name(host), "eth0", f"10.77.{i}.2/24")
            self._give(self._name("r" + host), "h0", f"10.77.{i}.1/24")
            _run("ip", "-n", self._name(host), "route", "add", "default", "via", f"10.77.{i}.1")
            # gloo binds to the address of the host's name.
            folder = _HOSTS_FOLDER / self._name(host)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(
                f"127.0.0.1 localhost\n{self.address(host)} {socket.gethostname()}\n"
            )
        hops: dict[str, list[str]] = {"ra": [], "rb": []}
        for i in range(self.paths):
            self._join(f"p{i}", self._name("ra"), f"p{i}", self._name("rb"))
            for end, role in enumerate(("ra", "rb"), start=1):
                self._give(self._name(role), f"p{i}", f"10.78.{i}.{end}/30")
                shape = _shape(self.rate_mbit, self.queue_ms)
                tc = ["tc", "qdisc", "add", "dev", f"p{i}", "root", "tbf", *shape]
                _run("ip", "netns", "exec", self._name(role), *tc)
                hops[role] += ["nexthop", "via", f"10.78.{i}.{3 - end}", "dev", f"p{i}"]
        for i, role in ((2, "ra"), (1, "rb")):
            _run("ip", "-n", self._name(role), "route", "add", f"10.77.{i}.0/24", *hops[role])
        self._apply()

    def _join(self, name: str, namespace: str, peer: str, other: str) -> None:
        size = ["mtu", str(self.mtu)]
        end = ["peer", "name", peer, *size, "netns", other]
        _run("ip", "link", "add", name, *size, "netns", namespace, "type", "veth", *end)
        segments = ["gso_max_segs", str(self.segments)]
        for where, link in ((namespace, name), (other, peer)):
            _run("ip", "-n", where, "link", "set", link, *segments, "up")

    def _give(self, namespace: str, link: str, address: str) -> None:
        _run("ip", "-n", namespace, "addr", "add", address, "dev", link)

    def _apply(self) -> None:
        rules = ["add table inet uccl", "delete table inet uccl", "add table inet uccl"]
        rules += ["add chain inet uccl in { type filter hook prerouting priority -300; }"]
        add = "add rule inet uccl in "
        for path in sorted(self._cut):
            rules.append(add + f'iifname "p{path}" counter drop')
        if self._loss > 0:
            inverse = 1 / self._loss
            if abs(inverse - round(inverse)) < 1e-6:
                chance = f"numgen random mod {round(inverse)} 0"
            else:
                chance = f"numgen random mod 1000000 < {round(self._loss * 1e6)}"
            rules.append(add + f'iifname "p*" {chance} counter drop')
        for role in ("ra", "rb"):
            _nft(self._name(role), "\n".join(rules) + "\n")

    def _down(self) -> None:
        for role in ("a", "b", "ra", "rb"):
            name = self._name(role)
            with contextlib.suppress(OSError):
                pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
                for pid in pids.stdout.split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(_HOSTS_FOLDER / name, ignore_errors=True)


def free_port(net: PathNetwork, host: str, python: str) -> int:
    """A TCP port that is free on this host at the moment."""
    code = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
    return int(_run(*net.enter(host), python, "-c", code))
