"""How the launcher cuts the output of a process into lines; the rest is in test_launcher.py."""

from __future__ import annotations

import random

from jax_uccl._src.launch_output import LineAssembler


class TestLineAssembler:
    def feed(self, *pieces):
        assembler = LineAssembler()
        lines = [line for piece in pieces for line in assembler.feed(piece)]
        return lines, assembler

    def test_lines_across_reads(self):
        lines, assembler = self.feed(b"on", b"e\ntwo\nth", b"ree")
        assert lines == [b"one", b"two"]
        assert assembler.pending == b"three"
        assert assembler.finish() == [b"three"]
        assert assembler.finish() == []

    def test_redraw_keeps_last_version(self):
        lines, assembler = self.feed(b"\r 10%", b"\r 20%", b"\r")
        assert lines == [] and assembler.pending == b" 20%" and assembler.is_redrawn
        assert assembler.feed(b"done    \n") == [b"done"]
        assert assembler.pending == b"" and not assembler.is_redrawn

    def test_windows_line_end_split_between_reads(self):
        lines, _ = self.feed(b"one\r", b"\ntwo\r\n")
        assert lines == [b"one", b"two"]

    def test_endless_line_is_bounded(self):
        lines, assembler = self.feed(*[b"x" * 1000] * 200)
        assert len(lines) >= 3
        assert b"".join([*lines, assembler.pending]) == b"x" * 200_000

    def test_any_cut_gives_the_same_lines(self):
        rng = random.Random(7)
        for _ in range(300):
            data = bytes(rng.choice(b"ab \r\n\n\r") for _ in range(rng.randrange(60)))
            cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
            pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            whole, whole_state = self.feed(data)
            cut, cut_state = self.feed(*pieces)
            assert (cut, cut_state.pending) == (whole, whole_state.pending), (data, cuts)
