"""Serves a small mixture-of-experts language model: reads prompts, then writes byte by byte.

    python -m jax_uccl.launch -n 4 examples/serve_moe.py

Weights are random unless `--weights` names a file that `train_moe.py --save` wrote. The model runs
twice with the same parameters: prefill reads the prompts of all sequences at once and uses the
exchange in throughput mode; decode adds one byte to each sequence a step, and uses low-latency
mode, where a dispatch needs one network step instead of two, which is what counts for so few
tokens. Both modes give the same values.

Each device serves its own sequences and holds `experts / devices` experts. A sequence that has
ended (at a line break with `--stop-at-newline`, or when its text is as long as asked) stays in the
batch as a padding token: the layer sends it nowhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import sys
import time
from typing import Any

# The transport serves CPU devices; an accelerator found by JAX would only get in the way.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import text_data
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from moe_model import Cache, ModelConfig, MoELanguageModel
from weights import load_weights

import jax_uccl

AXIS = ModelConfig.axis_name
NEWLINE = 10


@dataclasses.dataclass(frozen=True)
class Speed:
    """Seconds and bytes of one phase; compilation is not in it."""

    seconds: float
    tokens: int

    def __str__(self) -> str:
        return f"{self.tokens / self.seconds:.0f} tokens/s ({self.tokens} in {self.seconds:.3f} s)"


class Server:
    """Parameters on the mesh, and the two compiled programs."""

    def __init__(self, config: ModelConfig, args: argparse.Namespace):
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self.config = config
        self._stop_at_newline = args.stop_at_newline
        self._temperature = args.temperature
        self._seed = args.seed
        decode_config = dataclasses.replace(config, mode=args.decode_mode)
        # Every process makes all parameters and keeps its slice; the graphs differ in the mode only.
        model = MoELanguageModel(config, rngs=nnx.Rngs(args.seed))
        self._prefill_graph, state = nnx.split(model)
        abstract = nnx.eval_shape(lambda: MoELanguageModel(decode_config, rngs=nnx.Rngs(0)))
        self._decode_graph = nnx.split(abstract)[0]
        params = nnx.to_pure_dict(state)
        specs = nnx.to_pure_dict(nnx.get_partition_spec(state))
        if args.weights:
            params = load_weights(args.weights, params)
        self.num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
        self._params = jax.tree.map(self._place, params, specs)
        self.layout = ""
        psum = jax.lax.psum if args.collectives == "lax" else jax_uccl.psum
        map_over = functools.partial(jax.shard_map, mesh=self.mesh)
        rows = P(AXIS)
        self._prefill = jax.jit(
            map_over(self._prefill_on_device, in_specs=(specs, rows), out_specs=rows)
        )
        self._decode = jax.jit(
            map_over(
                self._decode_on_device,
                in_specs=(specs, rows, rows, rows, P()),
                out_specs=(rows, rows, rows),
            ),
            donate_argnums=(2,),
        )
        self._total = jax.jit(
            map_over(lambda flags: psum(flags.sum(), AXIS), in_specs=P(None, AXIS), out_specs=P())
        )

    def generate(
        self, prompts: np.ndarray, new_tokens: int
    ) -> tuple[np.ndarray, Speed, Speed, float]:
        """Continues `prompts` `[batch, time]` by `new_tokens` bytes each.

        Returns this process's rows with their continuation, the speed of both phases over the whole
        batch, and the median seconds of a decode step.
        """
        prompts = self._place(prompts, P(AXIS))
        batch, length = prompts.shape
        start_s = time.monotonic()
        token, caches, alive = jax.block_until_ready(self._prefill(self._params, prompts))
        prefill = Speed(time.monotonic() - start_s, batch * length)
        written, steps, counts = [token], [], []
        for position in range(length, length + new_tokens - 1):
            counts.append(alive)
            step_s = time.monotonic()
            token, caches, alive = self._decode(
                self._params, token, caches, alive, jnp.int32(position)
            )
            jax.block_until_ready(token)  # as a server that streams its answers
            steps.append(time.monotonic() - step_s)
            written.append(token)
        rows = [_local_rows(prompts)] + [_local_rows(t) for t in written]
        served = int(self._total(jnp.stack(counts)))  # afterwards: it is no part of serving
        return np.concatenate(rows, axis=1), prefill, Speed(sum(steps), served), np.median(steps)

    def _place(self, value: Any, spec: P) -> jax.Array:
        value = np.asarray(value)
        sharding = NamedSharding(self.mesh, spec)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    # The functions below run once per device, inside shard_map.

    def _prefill_on_device(
        self, params: Any, prompts: jax.Array
    ) -> tuple[jax.Array, list[Cache], jax.Array]:
        model = nnx.merge(self._prefill_graph, params)
        self.layout = str(model.blocks[0].moe.describe())  # while tracing, once
        caches = jax.tree.map(
            lambda leaf: jax.lax.pcast(leaf, AXIS, to="varying"),
            model.empty_cache(prompts.shape[0]),
        )
        logits, caches = model.extend(prompts, caches, 0)
        token = self._choose(logits, prompts.shape[1])
        return token, caches, self._goes_on(token)

    def _decode_on_device(
        self,
        params: Any,
        token: jax.Array,
        caches: list[Cache],
        alive: jax.Array,
        position: jax.Array,
    ) -> tuple[jax.Array, list[Cache], jax.Array]:
        model = nnx.merge(self._decode_graph, params)
        logits, caches = model.extend(token, caches, position, valid=alive)
        chosen = self._choose(logits, position + 1)
        token = jnp.where(alive, chosen, NEWLINE)  # a text that has ended stays so
        return token, caches, alive & self._goes_on(token)

    def _choose(self, logits: jax.Array, position: Any) -> jax.Array:
        """The next byte of each sequence, `[batch, 1]`: the likeliest, or drawn at a temperature."""
        if self._temperature == 0:
            return jnp.argmax(logits, axis=-1)[:, None].astype(jnp.int32)
        key = jax.random.fold_in(jax.random.key(self._seed), position)
        # A key for each sequence, so that texts do not depend on the number of devices.
        number = jax.lax.axis_index(AXIS) * logits.shape[0] + jnp.arange(logits.shape[0])
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, number)
        token = jax.vmap(jax.random.categorical)(keys, logits / self._temperature)
        return token[:, None].astype(jnp.int32)

    def _goes_on(self, token: jax.Array) -> jax.Array:
        return token != NEWLINE if self._stop_at_newline else token == token


def _local_rows(x: jax.Array) -> np.ndarray:
    """What this process holds of an array divided along its first axis."""
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def main() -> None:
    args = _parse_args()
    if args.devices is not None:
        if jax.distributed.is_initialized():
            sys.exit("--devices is for a single process; give the launcher --devices-per-process")
        jax.config.update("jax_num_cpu_devices", args.devices)
    num_devices = jax.device_count()
    for name in ("batch", "experts"):
        if getattr(args, name) % num_devices:
            sys.exit(f"--{name} must be a multiple of {num_devices} devices")
    config = ModelConfig(
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        experts=args.experts,
        hidden=args.hidden,
        sequence=args.prompt + args.new_tokens,
        implementation="reference" if args.collectives == "lax" else None,
    )
    corpus = text_data.read_standard_library()
    prompts = text_data.fixed_crops(corpus.held_out, args.batch, args.prompt - 1)
    server = Server(config, args)
    say = functools.partial(print, flush=True) if jax.process_index() == 0 else _say_nothing

    compile_s = time.monotonic()
    server.generate(prompts, min(args.new_tokens, 2))
    compile_s = time.monotonic() - compile_s
    say(f"model      {server.num_params / 1e6:.2f}M parameters, {config.layers} layers")
    for line in server.layout.splitlines():
        say(f"           {line}")
    say(f"devices    {num_devices} CPU devices in {jax.process_count()} processes")
    say(f"batch      {args.batch} prompts of {args.prompt} bytes, {args.new_tokens} new ones each")
    say(f"start      {compile_s:.1f} s, compiled both programs")
    texts, prefill, decode, step_s = server.generate(prompts, args.new_tokens)
    for text in texts[: args.show]:
        prompt, answer = bytes(text[: args.prompt].tolist()), bytes(text[args.prompt :].tolist())
        say(f"text       {_printable(prompt[-32:])!r} -> {_printable(answer[:64])!r}")
    say(f"prefill    {prefill} in {config.mode} mode")
    say(f"decode     {decode} in {args.decode_mode} mode, {1e3 * step_s:.2f} ms a step")
    if args.json:
        path = pathlib.Path(f"{args.json}.{jax.process_index()}")
        result = dict(
            texts=texts.tolist(),
            prefill_tokens_per_s=prefill.tokens / prefill.seconds,
            decode_tokens_per_s=decode.tokens / decode.seconds,
            decode_tokens=decode.tokens,
        )
        path.write_text(json.dumps(result) + "\n")
    if args.collectives == "uccl":
        jax_uccl.shutdown()
    jax.distributed.shutdown()


def _printable(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


def _say_nothing(line: str) -> None:
    del line


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--collectives", choices=("uccl", "lax"), default="uccl")
    add("--decode-mode", choices=("low_latency", "throughput"), default="low_latency")
    add("--devices", type=int, help="CPU devices when run as a single process")
    add("--weights", help="file written by train_moe.py --save, of a model with the same sizes")
    add("--seed", type=int, default=0)
    add("--batch", type=int, default=16, help="sequences served at a time over all devices")
    add("--prompt", type=int, default=64, help="bytes of a prompt")
    add("--new-tokens", type=int, default=64, help="bytes to add to each sequence")
    add("--temperature", type=float, default=0.0, help="0 takes the likeliest byte")
    add("--stop-at-newline", action="store_true", help="a text ends with its line")
    add("--width", type=int, default=ModelConfig.width)
    add("--layers", type=int, default=ModelConfig.layers)
    add("--heads", type=int, default=ModelConfig.heads)
    add("--experts", type=int, default=ModelConfig.experts)
    add("--hidden", type=int, default=ModelConfig.hidden, help="inner width of one expert")
    add("--show", type=int, default=2, help="texts to print")
    add("--json", help="prefix of a file for each process with its texts and speeds")
    args = parser.parse_args()
    if args.prompt < 1 or args.new_tokens < 2:
        parser.error("--prompt must be at least 1 and --new-tokens at least 2")
    if args.temperature < 0:
        parser.error("--temperature must not be negative")
    return args


if __name__ == "__main__":
    main()
