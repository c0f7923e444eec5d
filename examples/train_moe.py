"""Trains a mixture-of-experts language model on the Python standard library's sources.

Four local processes, tokens and gradients exchanged by `jax_uccl`:

    python -m jax_uccl.launch -n 4 examples/train_moe.py

The same run in one process with four CPU devices, with plain `jax.lax` instead; the losses agree
within float tolerance:

    python examples/train_moe.py --collectives lax --devices 4

One mesh axis, "ep", spans all devices of all processes. Each device holds `batch / devices`
sequences and `experts / devices` experts; everything else is replicated. A layer dispatches its
tokens to their experts and combines the results, and the backward pass does the same in reverse;
one `psum` a step sums the gradients of the replicated parameters. Losses are in nats per byte, to
be compared with the entropy of single bytes, which is what a model without any context could
reach.
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
from collections.abc import Callable
from typing import Any, Protocol

# The transport serves CPU devices; an accelerator found by JAX would only get in the way.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import text_data
from flax import nnx
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from loss_curve import save_loss_curve
from moe_model import ModelConfig, MoELanguageModel
from progress import ProgressBar
from weights import save_weights

import jax_uccl

AXIS = ModelConfig.axis_name
_MIN_LEARNING_RATE_RATIO = 0.05


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Means over the global batch of one step."""

    loss: float
    balance: float
    busiest: float  # load of the busiest expert of a layer, in mean loads; mean over layers


class Collectives(Protocol):
    """What the training step takes from `jax_uccl` or from `jax.lax`."""

    def psum(self, x: jax.Array, axis_name: str) -> jax.Array: ...


class Trainer:
    """Model, optimiser state and the two compiled functions, on a mesh of all devices."""

    def __init__(self, config: ModelConfig, args: argparse.Namespace, collectives: Collectives):
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self._collectives = collectives
        self._clip_norm = args.clip_norm
        schedule = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=args.learning_rate,
            warmup_steps=max(1, min(args.warmup, args.steps // 2)),
            decay_steps=max(2, args.steps),
            end_value=args.learning_rate * _MIN_LEARNING_RATE_RATIO,
        )
        self._optimizer = optax.adamw(
            schedule,
            b2=0.98,
            weight_decay=args.weight_decay,
            mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        )

        # Every process builds all parameters from the seed and keeps its shard: the values are
        # the same for every device count, and nothing is sent at start.
        model = MoELanguageModel(config, rngs=nnx.Rngs(args.seed))
        self._graph, state = nnx.split(model)
        params = nnx.to_pure_dict(state)
        self.num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
        # The layers say in their metadata which kernels are divided among the devices.
        specs = nnx.to_pure_dict(nnx.get_partition_spec(state))
        self._is_expert = jax.tree.map(lambda spec: AXIS in spec, specs)
        optimizer_state = self._optimizer.init(params)
        optimizer_specs = optax.tree_map_params(
            self._optimizer,
            lambda _, spec: spec,
            optimizer_state,
            specs,
            transform_non_params=lambda _: P(),
        )
        self._params = self._shard(params, specs)
        self._optimizer_state = self._shard(optimizer_state, optimizer_specs)

        self._train_step = self._compile(
            self._train_on_device,
            in_specs=(specs, optimizer_specs, P(AXIS)),
            out_specs=(specs, optimizer_specs, P()),
            donate=(0, 1),
        )
        self._eval_step = self._compile(
            self._evaluate_on_device, in_specs=(specs, P(AXIS)), out_specs=P(), donate=()
        )

    def step(self, crops: text_data.TokenArray) -> Metrics:
        """One optimiser step on a global batch `[sequence, time + 1]`, equal on all processes."""
        tokens = self._shard(crops, P(AXIS))
        self._params, self._optimizer_state, metrics = self._train_step(
            self._params, self._optimizer_state, tokens
        )
        return Metrics(*(float(value) for value in np.asarray(metrics)))

    def evaluate(self, crops: text_data.TokenArray) -> float:
        """Mean loss over the given crops."""
        return float(np.asarray(self._eval_step(self._params, self._shard(crops, P(AXIS))))[0])

    def save(self, path: str, *, write: bool) -> None:
        """Gathers the parameters on all processes, and writes them where `write` is true."""
        save_weights(path, self._params, write=write)

    def _compile(
        self,
        function: Callable[..., Any],
        *,
        in_specs: Any,
        out_specs: Any,
        donate: tuple[int, ...],
    ) -> Callable[..., Any]:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        return jax.jit(mapped, donate_argnums=donate)

    def _shard(self, tree: Any, specs: Any) -> Any:
        """Places host values that every process has in full, without communication."""

        def place(leaf: Any, spec: P) -> jax.Array:
            value = np.asarray(leaf)
            sharding = NamedSharding(self.mesh, spec)
            return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

        return jax.tree.map(place, tree, specs)

    # The functions below run once per device, inside shard_map.

    def _loss_on_device(self, params: Any, crops: jax.Array) -> tuple[jax.Array, jax.Array]:
        """This device's share of the global mean; the shares of all devices add up to it."""
        model = nnx.merge(self._graph, params)
        logits, report = model(crops[:, :-1])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, crops[:, 1:]).mean(axis=1)
        share = loss.sum() / (crops.shape[0] * self.mesh.size)
        load = report.load.max() / report.load.mean()
        # These two are of the global batch already, the same on every device.
        metrics = jnp.stack([report.balance_loss, load]) / self.mesh.size
        return share + report.loss_share, jnp.stack([share, *metrics])

    def _evaluate_on_device(self, params: Any, crops: jax.Array) -> jax.Array:
        _, metrics = self._loss_on_device(params, crops)
        return self._collectives.psum(metrics, AXIS)

    def _train_on_device(
        self, params: Any, optimizer_state: Any, crops: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        # Marked as varying, the replicated parameters get this device's gradient; otherwise
        # shard_map would insert its own sum, and the one below would be the second.
        local_params = jax.tree.map(
            lambda leaf, expert: leaf if expert else jax.lax.pcast(leaf, AXIS, to="varying"),
            params,
            self._is_expert,
        )
        gradient_of = jax.grad(self._loss_on_device, has_aux=True)
        grads, metrics = gradient_of(local_params, crops)

        # Experts already have their whole gradient: the transposed all_to_all brought the share
        # of every device. The rest is summed in one message, with the metrics and the squared
        # norm of the experts' gradient, so that a step waits for one reduction only.
        expert, replicated = _split(grads, self._is_expert)
        expert_square = sum((jnp.vdot(leaf, leaf) for leaf in expert), jnp.zeros(()))
        flat, unravel = ravel_pytree((replicated, metrics, expert_square))
        replicated, metrics, expert_square = unravel(self._collectives.psum(flat, AXIS))
        square = expert_square + sum(jnp.vdot(leaf, leaf) for leaf in replicated)
        scale = jnp.minimum(1.0, self._clip_norm * jax.lax.rsqrt(square + 1e-12))
        grads = _join(expert, replicated, self._is_expert)
        grads = jax.tree.map(lambda leaf: leaf * scale, grads)

        updates, optimizer_state = self._optimizer.update(grads, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, metrics


def _split(tree: Any, is_expert: Any) -> tuple[list[jax.Array], list[jax.Array]]:
    pairs = list(zip(jax.tree.leaves(tree), jax.tree.leaves(is_expert), strict=True))
    return [x for x, expert in pairs if expert], [x for x, expert in pairs if not expert]


def _join(expert: list[jax.Array], replicated: list[jax.Array], is_expert: Any) -> Any:
    sources = {True: iter(expert), False: iter(replicated)}
    return jax.tree.map(lambda flag: next(sources[flag]), is_expert)


def main() -> None:
    args = _parse_args()
    if args.devices is not None:
        if jax.distributed.is_initialized():
            sys.exit("--devices is for a single process; give the launcher --devices-per-process")
        jax.config.update("jax_num_cpu_devices", args.devices)
    collectives, transport = _load_collectives(args.collectives)
    config = ModelConfig(
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        experts=args.experts,
        hidden=args.hidden,
        sequence=args.sequence,
        balance_coefficient=args.balance_coefficient,
        implementation="reference" if args.collectives == "lax" else None,
    )
    num_devices = jax.device_count()
    for name in ("batch", "held_out_batch", "experts"):
        if getattr(args, name) % num_devices:
            sys.exit(f"--{name.replace('_', '-')} must be a multiple of {num_devices} devices")

    corpus = text_data.read_standard_library()
    trainer = Trainer(config, args, collectives)
    is_first = jax.process_index() == 0
    say = functools.partial(print, flush=True) if is_first else _say_nothing
    entropy = text_data.unigram_entropy(corpus.train)
    say(
        f"model      {trainer.num_params / 1e6:.2f}M parameters, {config.layers} layers x "
        f"{config.experts} experts (top-{config.top_k}), width {config.width}"
    )
    say(f"devices    {num_devices} CPU devices in {jax.process_count()} processes")
    say(f"transport  {transport}")
    say(
        f"data       {corpus.num_bytes / 1e6:.1f} MB in {corpus.num_files} files of the Python "
        f"library, crc {corpus.digest:08x}"
    )
    say(f"batch      {args.batch} x {args.sequence} bytes, {args.steps} steps")
    say(f"unigram    {_with_bits(entropy)}: the best any model without context can do")

    history = _train(trainer, corpus, args, is_first)
    history["unigram_entropy"] = entropy
    history["arguments"] = vars(args)
    history["devices"], history["processes"] = num_devices, jax.process_count()
    stats = (
        collectives.stats() if args.collectives == "uccl" else {"peers": {}, "shared_memory": {}}
    )
    history["peers"], history["shared_memory"] = stats["peers"], stats["shared_memory"]
    for line in _summary(history):
        say(line)
    if args.save:
        trainer.save(args.save, write=is_first)
    if is_first:
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(history, indent=1) + "\n")
        if args.out:
            folder = pathlib.Path(args.out)
            folder.mkdir(parents=True, exist_ok=True)
            title = f"{config.experts}-expert byte model, {num_devices} devices, {args.collectives}"
            say(f"curve      {save_loss_curve(folder / 'loss.png', history, title=title)}")

    if args.collectives == "uccl":
        collectives.shutdown()
    jax.distributed.shutdown()


def _train(
    trainer: Trainer, corpus: text_data.Corpus, args: argparse.Namespace, is_first: bool
) -> dict[str, Any]:
    """Runs all steps; returns losses per step, held-out losses and the speed."""
    held_out_crops = text_data.fixed_crops(corpus.held_out, args.held_out_batch, args.sequence)
    tokens_per_step = args.batch * args.sequence
    train: list[float] = []
    held_out: list[tuple[int, float]] = []
    busiest: list[float] = []
    speed = 0.0
    seconds_in_steps = 0.0
    bar = ProgressBar(args.steps, enabled=is_first)
    for step in range(1, args.steps + 1):
        crops = text_data.sample_batch(
            corpus.train, args.batch, args.sequence, seed=args.seed, step=step
        )
        start_s = time.monotonic()
        metrics = trainer.step(crops)
        if step > 1:  # The first step compiles.
            seconds_in_steps += time.monotonic() - start_s
            speed = tokens_per_step * (step - 1) / seconds_in_steps
        if not np.isfinite(metrics.loss):
            raise FloatingPointError(f"loss is {metrics.loss} at step {step}")
        train.append(metrics.loss)
        busiest.append(metrics.busiest)
        if step % args.eval_every == 0 or step == args.steps:
            loss = trainer.evaluate(held_out_crops)
            held_out.append((step, loss))
            recent = float(np.mean(train[-args.eval_every :]))
            bar.log(
                f"step {step:5d}  train {recent:.3f}  held-out {_with_bits(loss)}  "
                f"balance {metrics.balance:.3f}  busiest {metrics.busiest:.2f}"
            )
        bar.update(step, f"loss {metrics.loss:.3f} {speed:.0f} tok/s")
    return {
        "train": train,
        "held_out": held_out,
        "busiest": busiest,
        "tokens_per_s": speed,
    }


def _summary(history: dict[str, Any]) -> list[str]:
    loss = history["held_out"][-1][1]
    gain = history["unigram_entropy"] - loss
    side = "below" if gain >= 0 else "above"
    lines = [
        f"held-out   {_with_bits(loss)}, {abs(gain):.3f} nats {side} the unigram entropy",
        f"speed      {history['tokens_per_s']:.0f} tokens/s after the first step",
    ]
    neighbours = history["shared_memory"].values()
    if neighbours:
        sent = sum(neighbour["bytes_sent"] for neighbour in neighbours)
        whole = sum(neighbour["messages_sent"] for neighbour in neighbours)
        lines.append(
            f"memory     process 0 sent {sent / 1e6:.1f} MB to {len(neighbours)} processes of its host in "
            f"{whole} messages"
        )
    far = [p for rank, p in history["peers"].items() if rank not in history["shared_memory"]]
    if far:
        sent = sum(peer["bytes_sent"] for peer in far)
        packets = sum(peer["packets_sent"] for peer in far)
        again = sum(peer["retransmits_fast"] + peer["retransmits_timeout"] for peer in far)
        lines.append(
            f"network    process 0 sent {sent / 1e6:.1f} MB to {len(far)} peers in {packets} "
            f"packets, {again} of them again"
        )
    return [*lines, f"final      train {history['train'][-1]:.6f} held-out {loss:.6f}"]


def _with_bits(nats: float) -> str:
    return f"{nats:.3f} nats/byte ({text_data.to_bits(nats):.3f} bits)"


def _say_nothing(line: str) -> None:
    del line


def _load_collectives(name: str) -> tuple[Any, str]:
    """Returns the module that provides `psum`, and a line that describes it."""
    if name == "lax":
        return jax.lax, "jax.lax (XLA's own CPU collectives)"
    jax_uccl.init()  # The first collective would do it too; here, errors of the start come at once.
    settings = jax_uccl.stats()["settings"]
    if jax.process_count() == 1:
        return jax_uccl, "jax_uccl, direct memory inside one process"
    return jax_uccl, (
        f"jax_uccl, {settings['backend']} with {settings['paths']} paths between processes"
        + (", direct memory inside" if jax.local_device_count() > 1 else "")
    )


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--collectives", choices=("uccl", "lax"), default="uccl")
    add("--devices", type=int, help="CPU devices when run as a single process")
    add("--steps", type=int, default=300)
    add("--seed", type=int, default=0)
    add("--batch", type=int, default=32, help="sequences per step over all devices")
    add("--sequence", type=int, default=128, help="bytes per sequence")
    add("--width", type=int, default=ModelConfig.width)
    add("--layers", type=int, default=ModelConfig.layers)
    add("--heads", type=int, default=ModelConfig.heads)
    add("--experts", type=int, default=ModelConfig.experts)
    add("--hidden", type=int, default=ModelConfig.hidden, help="inner width of one expert")
    add("--learning-rate", type=float, default=3e-3)
    add("--warmup", type=int, default=30)
    add("--weight-decay", type=float, default=0.05)
    add("--clip-norm", type=float, default=1.0)
    add("--balance-coefficient", type=float, default=ModelConfig.balance_coefficient)
    add("--eval-every", type=int, default=50)
    add("--held-out-batch", type=int, default=64, help="held-out sequences per evaluation")
    add("--json", help="file for the losses of every step")
    add("--save", help="file for the trained parameters, for serve_moe.py --weights")
    add("--out", default="train_moe_out", help="folder for the loss curve; empty for none")
    args = parser.parse_args()
    if args.steps < 1 or args.eval_every < 1:
        parser.error("--steps and --eval-every must be at least 1")
    return args


if __name__ == "__main__":
    main()
