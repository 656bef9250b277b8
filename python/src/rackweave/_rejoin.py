"""How a worker whose job has failed finds its rack's aggregator, and its own place, in the job's next run."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Dict, List, Mapping, TypeVar

from ._control import Control
from ._settings import Settings
from .errors import ConfigError, Error, RefusedError, ServerLostError

_AGAIN = 0.2  # seconds between two tries
_WHEREABOUTS_IN = 2.0  # seconds for an aggregator to say who serves a rack
_LEAST = 0.001  # a try's timeout, when there is no time left
# Refusals that a later try would meet, too.
_LASTING = ("invalid_argument", "permission_denied", "unauthenticated", "unimplemented")
_T = TypeVar("_T")


def lasts(error: Error) -> bool:
    """Tells whether a later try would meet the error, too."""
    if isinstance(error, RefusedError) and error.code in _LASTING:
        return True
    return error.final or isinstance(error, ConfigError)


@dataclasses.dataclass
class Seat:
    """A worker's place in its job, as long as no rack is left out.

    Attributes:
        rank, world_size: of the worker.
        rack: its rack's name; empty: the job has no racks.
        racks: the racks' aggregators: url, ca and rack of each.
        workers: how many each rack has.
    """

    rank: int
    world_size: int
    rack: str
    racks: List[Dict[str, Any]]
    workers: List[int]

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Seat":
        """Returns the one that Join's answer tells."""
        workers = [int(n) for n in info.get("rackWorkers", [])]
        return cls(info.get("rank", 0), int(info["workers"]), info.get("rack", ""), list(info.get("racks", [])), workers)

    def after(self, now: "Seat") -> "Seat":
        """Returns this seat with what is known of aggregators now."""
        urls = {r.get("rack"): r for r in now.racks if r.get("url")}
        return dataclasses.replace(self, racks=[urls.get(r.get("rack"), r) for r in self.racks])

    def where_now(self, settings: Settings, until: float) -> Settings:
        """Returns what to join with now.

        It asks the aggregators of the job's racks, from the one after this worker's own: the own one is likely to be gone.
        """
        settings = dataclasses.replace(settings, rank=self.rank, world_size=self.world_size)
        own = self._number(self.rack)
        for i in range(len(self.racks)):
            r = self.racks[(own + 1 + i) % len(self.racks)]
            if not r.get("url"):
                continue
            address, ca = r["url"], r.get("ca") or settings.ca
            if r.get("rack") == self.rack:
                address, ca = settings.address, settings.ca
            within = max(min(_WHEREABOUTS_IN, until - time.monotonic()), _LEAST)
            try:
                control = Control(address, ca, settings.token, settings.insecure)
                status = control.call("Status", {}, within, grace=0)
            except Error:
                continue
            if status.get("membership") is not None:
                return self.place(settings, status["membership"])
        return settings

    def place(self, settings: Settings, plan: Mapping[str, Any]) -> Settings:
        """Changes what to join with to what the plan of an aggregator's status says."""
        own, sizes, left = self._number(self.rack), [0] * len(self.racks), settings.world_size  # size 0: the rack is out
        for holder in plan.get("racks", []):
            name, url, out = holder.get("name", ""), holder.get("url", ""), holder.get("out", False)
            i = self._number(name)
            if i < 0:
                continue
            if not out:
                sizes[i] = max(holder.get("size", 0), 1)
            if i == own and not url:
                epoch = plan.get("epoch", 0)
                raise ServerLostError(f"none serves rack {name!r} by the plan of epoch {epoch}: start it with --rack {name}")
            if i == own and url != self.racks[own].get("url", ""):
                settings = dataclasses.replace(settings, address=url.rstrip("/"), ca=self.racks[own].get("ca") or settings.ca)
            elif out:
                rank = settings.rank - (self.workers[i] if i < own else 0)
                settings = dataclasses.replace(settings, rank=rank, world_size=settings.world_size - self.workers[i])
        if settings.world_size < left:
            self._evenly(sizes)
        return settings

    def _evenly(self, sizes: List[int]) -> None:
        """Refuses racks of which one has more workers for its size than another.

        With fewer racks they would be divided otherwise than they are.
        """
        first = next((i for i, n in enumerate(sizes) if n > 0), 0)
        for i, n in enumerate(sizes):
            if n > 0 and self.workers[i] * sizes[first] != self.workers[first] * n:
                raise RefusedError(
                    f"racks {self.racks[first]['rack']!r} and {self.racks[i]['rack']!r} have {self.workers[first]} and "
                    f"{self.workers[i]} workers, by sizes {sizes[first]} and {n}: to go on without another, declare as a rack's "
                    "size how many workers it has, and join again",
                    "invalid_argument",
                )

    def _number(self, rack: str) -> int:
        return next((i for i, r in enumerate(self.racks) if r.get("rack", "") == rack), -1)


def keep_trying(seat: Seat, settings: Settings, until: float, once: Callable[[Settings], _T]) -> _T:
    """Returns what once does with the settings to join with, and tries again until that succeeds.

    What cannot pass ends it, as until does; it then raises the last error.
    """
    while True:
        try:
            return once(seat.where_now(settings, until))
        except Error as e:
            if lasts(e) or time.monotonic() + _AGAIN >= until:
                raise
        time.sleep(_AGAIN)


def bounded(settings: Settings, until: float) -> Settings:
    """Returns settings whose waits end when until has come, if not earlier."""
    return dataclasses.replace(settings, timeout=max(min(settings.timeout, until - time.monotonic()), _LEAST))
