"""The exchange of gradients runs beside the backward pass: shown on the timeline that RACKWEAVE_TRACE leaves."""

import json

import jobs

LAYERS, STEPS = 6, 6


def exchanges(path):
    """Returns when each exchange began and ended, by tensor, step after step."""
    found = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] in "be" and event["name"].startswith("pushpull"):
            found.setdefault(event["id"], {"name": event["name"]})[event["ph"]] = event["ts"]
    by_name = {}
    for e in sorted(found.values(), key=lambda e: e["b"]):
        by_name.setdefault(e["name"], []).append((e["b"], e["e"]))
    return by_name


def test_gradients_of_the_last_layers_are_exchanged_before_those_of_the_first_are_there(tmp_path):
    # MXNet may run up to 15 operators as one, whose gradients are there all at once.
    jobs.rackweave(2, "overlap.py", LAYERS, STEPS, RACKWEAVE_TRACE=str(tmp_path), MXNET_EXEC_BULK_EXEC_TRAIN="0")
    for rank in range(2):
        by_name = exchanges(tmp_path / f"rank-{rank}.json")
        assert {len(steps) for steps in by_name.values()} == {STEPS} and len(by_name) == LAYERS
        first, last = by_name["pushpull 0"], by_name[f"pushpull {LAYERS - 1}"]
        assert any(end < began for (began, _), (_, end) in zip(first, last)), by_name
