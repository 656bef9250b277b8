"""Prints what this machine has for RackWeave. Usage: python -m rackweave [--json]."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from typing import Any, Dict

from . import __version__, _host, _lib, _settings
from ._control import Control
from .errors import ConfigError, Error

_FRAMEWORKS = ("torch", "mxnet", "numpy")
_SECRETS = ("RACKWEAVE_TOKEN", "RACKWEAVE_ADMIN_TOKEN")


def found() -> Dict[str, Any]:
    """Returns what this machine has: versions, transports, settings, and whether the aggregator answers. It has no secret."""
    out: Dict[str, Any] = {"rackweave": __version__, "python": platform.python_version()}
    try:
        out["library"] = _lib.library()._name
    except Error as e:
        out["library_error"] = str(e)
    out["providers"] = _host.providers()
    out["frameworks"] = {name: _version(name) for name in _FRAMEWORKS}
    names = sorted(name for name in os.environ if name.startswith("RACKWEAVE_"))
    out["environment"] = {name: "(set)" if name in _SECRETS else os.environ[name] for name in names}
    try:
        s = _settings.read()
    except ConfigError as e:
        out["settings_error"] = str(e)
        try:  # whoever runs this by hand has no rank
            s = _settings.read(rank=0, world_size=1)
        except ConfigError as e:
            out["settings_error"] = str(e)
            return out
    else:
        out["settings"] = {"address": s.address, "job": s.job, "rank": s.rank, "world_size": s.world_size, "run": s.run}
    out["aggregators"] = {address: _answers(address, s) for address in s.address.split(",")}
    return out


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _answers(address: str, s: _settings.Settings) -> str:
    try:
        Control(address, s.ca, s.token, s.insecure).call("Status", {}, 2.0)
    except Error as e:
        return str(e)
    return "answers"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rackweave", description="Prints what this machine has for RackWeave.")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    as_json, it = parser.parse_args().json, found()
    if as_json:
        print(json.dumps(it, indent=2))
    else:
        for name, value in it.items():
            shown = ", ".join(value) if isinstance(value, list) else value
            if isinstance(shown, dict):
                print(f"{name}:")
                for key, one in shown.items():
                    print(f"  {key}: {one}")
            else:
                print(f"{name.replace('_', ' ')}: {shown}")
    silent = any(said != "answers" for said in it.get("aggregators", {}).values())
    unusable = "aggregators" not in it and "RACKWEAVE_ADDR" in it["environment"]
    return 1 if "library_error" in it or silent or unusable else 0


if __name__ == "__main__":
    sys.exit(main())
