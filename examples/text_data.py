"""Bytes of the Python standard library as a language-modelling data set.

The text is present wherever the example can run, so nothing is downloaded. Files are read in
sorted order and assigned to train or held-out by a hash of their name, and every crop is drawn
from a generator seeded by (seed, step): each process rebuilds the same global batch by itself and
keeps its own rows, so no data travels between processes.

Entropies and losses are in nats per byte.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sysconfig
import zlib

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
TokenArray = npt.NDArray[np.int32]

# Test suites are left out: some distributions do not install them, and half of their bytes are
# tables of expected values rather than code.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
_HELD_OUT_MODULUS = 20  # One file in twenty is never trained on.


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Training and held-out text, each one contiguous array of bytes."""

    train: ByteArray
    held_out: ByteArray
    num_files: int
    digest: int  # CRC-32 of all bytes: equal on two machines that train on the same text.

    @property
    def num_bytes(self) -> int:
        return int(self.train.size + self.held_out.size)


def read_standard_library() -> Corpus:
    """Reads every `.py` file of the running interpreter's standard library.

    Raises:
      FileNotFoundError: the interpreter has no readable library sources.
    """
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    train: list[bytes] = []
    held_out: list[bytes] = []
    digest = 0
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if _SKIPPED_FOLDERS.isdisjoint(name.split("/"))]
    for name in names:
        content = (root / name).read_bytes()
        digest = zlib.crc32(content, digest)
        is_held_out = zlib.crc32(name.encode()) % _HELD_OUT_MODULUS == 0
        (held_out if is_held_out else train).append(content)
    if not train or not held_out:
        raise FileNotFoundError(f"no Python library sources under {root}")
    return Corpus(
        train=np.frombuffer(b"".join(train), np.uint8),
        held_out=np.frombuffer(b"".join(held_out), np.uint8),
        num_files=len(names),
        digest=digest,
    )


def unigram_entropy(text: ByteArray) -> float:
    """Entropy of single bytes in nats: the loss of the best model that ignores all context."""
    frequency = np.bincount(text, minlength=256) / text.size
    frequency = frequency[frequency > 0]
    return float(-(frequency * np.log(frequency)).sum())


def to_bits(nats: float) -> float:
    return nats / math.log(2.0)


def sample_batch(text: ByteArray, batch: int, length: int, *, seed: int, step: int) -> TokenArray:
    """Draws `batch` random crops of `length + 1` bytes: inputs and, shifted by one, targets."""
    rng = np.random.default_rng((seed, step))
    starts = rng.integers(0, text.size - length, size=batch)
    return text[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def fixed_crops(text: ByteArray, batch: int, length: int) -> TokenArray:
    """Crops at even distances over the whole text: the same held-out rows in every evaluation."""
    starts = np.linspace(0, text.size - length - 1, num=batch).astype(np.int64)
    return text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
