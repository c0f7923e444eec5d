"""Saves and loads a model's parameters as one .npz file, whole arrays by their path."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def _paths(params: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def save_weights(path: str, params: Any, *, write: bool) -> None:
    """Writes host arrays. All processes must take part: sharded arrays are gathered.

    Args:
      path: file to write.
      params: nested dicts of arrays, over all processes.
      write: True on one process only.
    """
    from jax.experimental import multihost_utils

    def whole(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    arrays = {name: whole(leaf) for name, leaf in _paths(params).items()}
    if write:
        with open(path, "wb") as file:
            np.savez(file, **arrays)


def load_weights(path: str, params: Any) -> Any:
    """`params` with the values of a file; ValueError unless names and shapes are the same."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    wanted = {name: np.shape(leaf) for name, leaf in _paths(params).items()}
    found = {name: array.shape for name, array in arrays.items()}
    wrong = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{path} does not fit the model in {len(wrong)} parameters; {name} has shape {found.get(name)} in the "
            f"file and {wanted.get(name)} here. Give the sizes that the model was trained with"
        )
    return jax.tree.unflatten(jax.tree.structure(params), [arrays[n] for n in _paths(params)])
