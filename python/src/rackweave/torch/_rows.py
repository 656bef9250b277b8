"""Sparse gradients, of embeddings: they have the rows that a step touched, and travel as these rows and their ids."""

from __future__ import annotations

from typing import Set

import torch

from .. import _lib, _rows
from .._session import Handle, Session
from ..errors import TensorError


def sparse_of(model: torch.nn.Module) -> Set[int]:
    """Returns the identities of parameters with sparse gradients: as DistributedDataParallel, by the first module that has one."""
    sparse = {}
    for module in model.modules():
        embeds = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
        for p in module.parameters(recurse=False):
            sparse.setdefault(id(p), embeds)
    return {i for i, is_sparse in sparse.items() if is_sparse}


def check_layout(grad: torch.Tensor, sparse: bool, name: str, rank: int) -> None:
    """Refuses a gradient that is not as its parameter was declared."""
    if grad.layout != (torch.sparse_coo if sparse else torch.strided):
        place, has = ("is", "dense") if sparse else ("is not", "sparse")
        raise TensorError(
            f"parameter {name!r} {place} the weight of an embedding with sparse=True and has a {has} gradient at rank {rank}: "
            "use it in such embeddings alone, or make them with sparse=False"
        )


class Table:
    """A sparse tensor of a session, with memory for the rows that come back."""

    def __init__(self, session: Session, number: int, like: torch.Tensor) -> None:
        self._session, self._number, self._like = session, number, like
        self._sums = torch.empty(like.shape, dtype=like.dtype)  # takes memory as rows are written
        self._union = _rows.Union(session, number)

    def start(self, kind: int, grad: torch.Tensor) -> Handle:
        """Starts to push a gradient, which is coalesced; PUSHPULL: for the sum."""
        ids, rows = grad._indices()[0].cpu().contiguous(), grad._values().detach().cpu().contiguous()
        if kind == _lib.PUSH:
            return _rows.push(self._session, self._number, ids, rows, -self._number)
        return _rows.push_pull(self._session, self._number, ids, rows, self._sums, self._union, -self._number)

    def touched(self) -> torch.Tensor:
        """Returns the ids of the rows that came back last."""
        if not len(self._union):
            return torch.empty(0, dtype=torch.int64)
        return torch.frombuffer(self._union.ids, dtype=torch.int64).clone()

    def sum(self) -> torch.Tensor:
        """Returns what came back last, coalesced."""
        ids = self.touched()
        total = torch.sparse_coo_tensor(ids.unsqueeze(0), self._sums[ids], self._like.shape)
        return total._coalesced_(True).to(self._like.device)

    def pull(self, ids: torch.Tensor) -> Handle:
        """Starts to get rows of the parameter; land puts them in their places."""
        self._pulled = ids, torch.empty((len(ids), *self._like.shape[1:]), dtype=self._like.dtype)
        return _rows.pull(self._session, self._number, *self._pulled, -self._number)

    def land(self) -> None:
        """Writes the rows that pull got."""
        ids, rows = self._pulled
        self._like.data[ids.to(self._like.device)] = rows.to(self._like.device)
