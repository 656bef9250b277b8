"""Parameters and buffers of a model, made those of rank 0."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from .. import _lib
from .._session import Session, Tensor
from . import _arena
from ._exchange import Exchange


PAGE = 1 << 20  # elements of an exchange, of 4 bytes


class Buffers:
    """A module's buffers (running means and the like) of any type, broadcast as the bytes they are, in one tensor."""

    def __init__(self, exchange: Exchange, module: torch.nn.Module) -> None:
        self._session, self._module = exchange.session, module
        self._packed: Optional[torch.Tensor] = None
        words = sum(_words(b) for b in self._all())
        if words:
            self._packed = _arena.empty_like(torch.empty(words))
            self._number = self._session.register([Tensor("buffers", (words,), compress=False)])[0]

    def broadcast(self) -> None:
        """Gives every rank rank 0's buffers."""
        if self._packed is None:
            return
        with torch.no_grad():
            raw, at, places = self._packed.view(torch.uint8), 0, []
            for b in self._all():
                places.append((b, raw[at : at + b.numel() * b.element_size()]))
                at += 4 * _words(b)
            if self._session.rank == 0:
                for b, place in places:
                    place.copy_(b.cpu().contiguous().view(-1).view(torch.uint8))
            self._session.broadcast(self._number, self._packed.numpy()).wait()
            if self._session.rank != 0:
                for b, place in places:
                    b.copy_(place.clone().view(b.dtype).view(b.shape))

    def _all(self) -> List[torch.Tensor]:
        return [b for b in self._module.buffers() if b.numel() > 0]


class BeforeForward:
    """The hook of a model's forward. A copy of the model, or a pickled one, is a model of its own: its hook does nothing."""

    def __init__(self, call: Optional[Callable[[torch.nn.Module], None]] = None) -> None:
        self._call = call

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        if self._call is not None:
            self._call(module)

    def __deepcopy__(self, _: Any) -> "BeforeForward":
        return BeforeForward()

    def __reduce__(self) -> Any:
        return BeforeForward, ()


def _words(b: torch.Tensor) -> int:
    """How many f32 elements hold the bytes of b."""
    return (b.numel() * b.element_size() + 3) // 4


def broadcast_parameters(exchange: Exchange, numbers: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
    """Gives every rank rank 0's parameters."""
    with torch.no_grad():
        dense = [p.data if _arena.is_dense(p) else p.data.contiguous() for p in parameters]
        exchange.start(_lib.BROADCAST, list(zip(numbers, dense)))
        exchange.drain()
        for p, d in zip(parameters, dense):
            if d.data_ptr() != p.data_ptr():
                p.data.copy_(d)


def broadcast_frozen(exchange: Exchange, module: torch.nn.Module) -> None:
    """Gives every rank rank 0's parameters that have no gradients, of any type."""
    frozen = [p.data for p in module.parameters() if not p.requires_grad and p.numel() > 0]
    words = sum(_words(p) for p in frozen)
    if not words:
        return
    page = torch.zeros(min(words, PAGE))
    name = f"{4 * words} bytes of frozen parameters"  # ranks that have others learn so
    number = exchange.session.register([Tensor(name, (len(page),), compress=False)])[0]
    flat = [p.contiguous() for p in frozen]
    broadcast_pages(exchange.session, number, page, flat)
    for p, f in zip(frozen, flat):
        if f.data_ptr() != p.data_ptr():
            p.copy_(f)


def broadcast_pages(session: Session, number: int, page: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Broadcasts contiguous tensors as the bytes they are, one after the other, by a tensor of a session, which is a page."""
    raw, held = page.view(torch.uint8), 0
    places: List[Tuple[torch.Tensor, torch.Tensor]] = []  # a part of a tensor, and of the page

    def turn() -> None:
        if session.rank == 0:
            for part, place in places:
                place.copy_(part)
        session.broadcast(number, page.numpy()).wait()
        if session.rank != 0:
            for part, place in places:
                part.copy_(place)
        places.clear()

    for tensor in tensors:
        rest = tensor.view(-1).view(torch.uint8)
        while rest.numel():
            n = min(rest.numel(), raw.numel() - held)
            places.append((rest[:n], raw[held : held + n]))
            rest, held = rest[n:], held + n
            if held == raw.numel():
                turn()
                held = 0
    if places:
        turn()
