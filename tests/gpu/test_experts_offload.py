"""Mixtures of which a device has only some experts: the CPU's bits, whatever is copied, evicted or left to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kinetic import models
from kinetic.api import Model
from kinetic.backends import open_backend
from kinetic.backends.base import Experts, Routing
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.gpu import room as room_of
from kinetic.backends.gpu.expert_cache import (
    Costs,
    ExpertCache,
    ExpertOffload,
    expert_bytes,
    left_out,
    measured,
    shares,
)
from kinetic.backends.gpu.host_experts import HostExperts
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import trace
from kinetic.cli import main
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import assert_same, compile_all, inputs, rows_of
from tests.support.blocks import float_weight, integers, random_weight
from tests.support.whole_models import WRITERS

FAMILIES = ("mixtral", "qwen3moe", "granitemoe", "gpt-oss", "deepseek2", "nemotron_h_moe")
EXPERTS = 6
PASSES = (1, 2, 9, 33, 1, 1, 1)


def cpu():
    return open_backend("cpu", threads=1)


def steady(one: float, several: float, copy: float) -> Callable[[], float]:
    """A clock by which a row on the CPU takes ``one``, sixteen take ``several``, and a copy takes ``copy``."""
    steps = iter([step for cost in (one, several, copy) for step in (0.0, cost) * 3])
    now = [0.0]

    def clock() -> float:
        now[0] += next(steps)
        return now[0]

    return clock


WAYS: dict[str, tuple[int, tuple[float, float, float] | None]] = {
    "1 slot": (1, None),
    "2 slots": (2, None),
    "all but 1": (EXPERTS - 1, None),
    "all on the CPU": (0, None),
    "slots, and a CPU that is cheaper": (2, (1.0, 16.0, 1e9)),
    "slots, and a CPU that is dearer": (2, (2.0, 2.0, 1.0)),
    "both": (2, (1.0, 1.0, 2.5)),
}
SOME = ("1 slot", "all but 1", "both")
"""Of every family; all ways of one with biases."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """By family its tokens, its forward pass, and what the CPU makes of it all."""
    compile_all(cpu().isa)
    folder, files, known = tmp_path_factory.mktemp("models"), [], {}

    def get(name: str):
        if name not in known:
            files.append(open_model_file(WRITERS[name](folder / f"{name}.gguf")))
            family = models.build(files[-1].gguf, files[-1].weights)
            tokens = integers(9, 0, family.vocab_size, sum(PASSES)).tolist()
            program = cpu().load(family.forward, family.attention, None, None, family.states)
            known[name] = tokens, family, program.run(rows(tokens, 0))
            program.close()
        return known[name]

    yield get
    for file in files:
        file.close()


@pytest.fixture
def done(monkeypatch):
    """How many matrices were copied into slots, and how many rows of experts the CPU had."""
    counts: Counter[str] = Counter()
    put, run = DeviceWeights.put, HostExperts.run

    def counted_put(self, *arguments):
        counts["copied"] += 1
        put(self, *arguments)

    def counted_run(self, x, numbers):
        counts["on the CPU"] += len(x)
        return run(self, x, numbers)

    monkeypatch.setattr(DeviceWeights, "put", counted_put)
    monkeypatch.setattr(HostExperts, "run", counted_run)
    return counts


def rows(tokens, start: int) -> Batch:
    count = len(tokens)
    return Batch(tuple(tokens), tuple(range(start, start + count)), (0,) * count, tuple(range(count)))


def room(family, slots: int) -> int:
    """Bytes of so many experts of each mixture."""
    sizes = [expert_bytes(node["experts"]) for node in trace(family.forward) if node.op == "experts"]
    return slots * sum(sizes)


def load(device, family, offload: ExpertOffload):
    return GpuBackend(device, offload).load(family.forward, family.attention, None, None, family.states)


def fed(program, tokens) -> np.ndarray:
    out, start = [], 0
    for count in PASSES:
        out.append(program.run(rows(tokens[start : start + count], start)))
        start += count
    return np.concatenate(out)


CASES = [(name, way) for name in FAMILIES for way in (WAYS if name == "gpt-oss" else SOME)]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_model_has_the_bits_of_the_cpu(device, opened, done, name, way):
    tokens, family, expected = opened(name)
    slots, costs = WAYS[way]
    clock = steady(*costs) if costs else None
    program = load(device, family, ExpertOffload(cache_bytes=room(family, slots), clock=clock, host=cpu))
    done.clear()
    assert_same(fed(program, tokens), expected)
    assert program._executor._recordings.replayed > 0  # what is between mixtures
    program.close()
    is_copied, is_on_cpu = done["copied"] > 0, done["on the CPU"] > 0
    assert (is_copied, is_on_cpu) == {
        "all on the CPU": (False, True),
        "slots, and a CPU that is cheaper": (False, True),
        "both": (True, True),
    }.get(way, (True, False))


def test_receipts_name_the_cpu_where_it_computes_experts(device, opened):
    _, family, _ = opened("mixtral")

    def named(offload: ExpertOffload | None) -> tuple[str, str]:
        backend, lines = GpuBackend(device, offload), []
        backend.load(family.forward, family.attention, lines.append).close()
        assert ("experts" in backend.device_name) == ("cpu" in backend.device_class) == ("cpu:" in backend.engine_id)
        return backend.device_class, "".join(lines).removeprefix(f"{device.name} has ")

    def never():
        raise AssertionError("nothing runs on the CPU")

    assert named(None) == named(ExpertOffload(cache_bytes=10**9, host=never)) == ("opencl", "")
    said = "2 of 6 experts of 2 layers at a time: a missing one is copied"
    assert named(ExpertOffload(layers=9, host=never)) == ("opencl", said)
    all_there = "0 of 6 experts of 2 layers at a time: a missing one runs on the CPU"
    assert named(ExpertOffload(cache_bytes=0, host=cpu)) == ("cpu+opencl", all_there)
    dear = ExpertOffload(layers=9, clock=steady(2.0, 2.0, 1.0), host=cpu)
    assert named(dear) == ("opencl", said)
    both = ExpertOffload(layers=9, clock=steady(0.001, 0.001, 0.002), host=cpu)
    assert named(both) == ("cpu+opencl", f"{said} (2.00 ms), or runs on the CPU (1.00 ms a row)")


def test_slots_that_are_mixed_up_are_seen(device, opened, monkeypatch):
    """So the tests above can fail."""
    tokens, family, expected = opened("qwen3moe")
    bring = ExpertCache.bring
    monkeypatch.setattr(ExpertCache, "bring", lambda *a: {n: (s + 1) % 5 for n, s in bring(*a).items()})
    program = load(device, family, ExpertOffload(cache_bytes=room(family, 5)))
    with pytest.raises(AssertionError, match="values differ"):
        assert_same(program.run(rows(tokens, 0)), expected)


def test_a_copy_that_is_broken_off_leaves_nothing_wrong(device, opened, monkeypatch):
    tokens, family, expected = opened("qwen3moe")
    program = load(device, family, ExpertOffload(cache_bytes=room(family, 2)))
    program.run(rows(tokens[:9], 0))
    put, left = DeviceWeights.put, [5]

    def interrupted(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        put(self, *arguments)

    monkeypatch.setattr(DeviceWeights, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.run(rows(tokens[9:], 9))
    assert_same(program.run(rows(tokens, 0)), expected)


def test_scales_are_checked_before_anything_is_computed(device):
    """Those of every expert, whether it is ever copied or not."""
    up = random_weight("up", "Q8_0", 4 * 32, 64, seed=1)._replace(shape=(4, 32, 64))
    down = random_weight("down", "Q8_0", 4 * 64, 32, seed=2)._replace(shape=(4, 64, 32))
    data = down.data.copy()
    data[-1, :2] = 0, 0x7C  # an infinity in the last row of the last expert
    experts = Experts(None, up, down._replace(data=data), "silu")

    def forward(ops):
        routes = ops.route(inputs(ops, np.ones((1, 4), np.float32), "scores"), Routing(2))
        return ops.experts(inputs(ops, np.ones((1, 64), np.float32)), routes, experts)

    with pytest.raises(UnsupportedModel, match="down"):
        GpuBackend(device, ExpertOffload(layers=1)).load(forward, ())


def test_only_mixtures_that_wait_for_routes_stay_out_of_recordings(device, opened):
    _, family, _ = opened("qwen3moe")
    nodes = GpuBackend(device, ExpertOffload(layers=1)).load(family.forward, family.attention)._executor._stretches
    assert [(is_recordable, len(part)) for is_recordable, part in nodes if not is_recordable] == [(False, 1)]
    assert [part[0].op for is_recordable, part in nodes if not is_recordable] == ["experts"]


# ---- the cache, without a device


def test_the_one_not_used_for_longest_makes_room():
    cache, copied = ExpertCache(2), []

    def bring(*numbers: int) -> dict[int, int]:
        copied.clear()
        return cache.bring(numbers, lambda number, slot: copied.append((number, slot)))

    first = bring(7, 3)
    assert sorted(first.values()) == [0, 1] and copied == [(7, first[7]), (3, first[3])]
    assert bring(7) == {7: first[7]} and not copied
    assert bring(5) == {5: first[3]} and copied == [(5, first[3])]
    assert bring(3, 5) == {3: first[7], 5: first[3]} and copied == [(3, first[7])]


def test_rounds_begin_with_what_is_there():
    cache = ExpertCache(2)
    cache.bring((4, 1), lambda number, slot: None)
    assert cache.plan({0: 1, 1: 1, 2: 1, 3: 1, 4: 9}) == ([[1, 4], [0, 2], [3]], [])
    assert ExpertCache(0).plan({0: 1, 3: 5}) == ([], [0, 3])


def test_an_expert_is_copied_when_the_cpu_has_cost_as_much():
    cache = ExpertCache(1, Costs(copy=4.0, first=1.0, more=0.5))
    assert [cache.plan({2: 1}) for _ in range(3)] == [([], [2])] * 3
    assert cache.plan({2: 1, 5: 6}) == ([[2]], [5])
    cache.bring([2], lambda number, slot: None)
    assert cache.plan({2: 100, 5: 1}) == ([[2], [5]], [])
    cache.bring([5], lambda number, slot: None)
    assert cache.plan({2: 1}) == ([], [2])


@pytest.mark.parametrize("slots", [1, 3, 7])
def test_slots_hold_what_they_should(slots):
    """Whatever is wanted, and whatever is broken off."""
    cache, held = ExpertCache(slots, Costs(3.0, 1.0, 0.2)), {}
    random = np.random.default_rng(slots)

    def copy(number: int, slot: int) -> None:
        held[slot] = None
        if random.random() < 0.1:
            raise KeyboardInterrupt
        held[slot] = number

    for _ in range(300):
        wanted = random.choice(9, random.integers(1, 9), replace=False).tolist()
        groups, host = cache.plan({number: int(random.integers(1, 5)) for number in wanted})
        assert sorted([*host, *(number for group in groups for number in group)]) == sorted(wanted)
        for group in groups:
            assert len(group) <= slots
            try:
                places = cache.bring(group, copy)
            except KeyboardInterrupt:
                break
            assert len({*places.values()}) == len(group) and all(held[places[number]] == number for number in group)


def test_costs_are_the_shortest_times_for_a_byte():
    times = iter([0, 9, 10, 12, 20, 23] + [0, 32, 40, 80, 100, 140] + [0, 7, 10, 15, 20, 28])
    calls = []
    costs = measured(lambda: next(times), 2, lambda n: calls.append(n), lambda n, count: calls.append((n, count)))
    assert costs == Costs(copy=2.5, first=1.0, more=1.0)
    assert costs.on_host(4) == 4.0
    assert calls == [(0, 1), (1, 1), (2, 1), (0, 16), (1, 16), (2, 16), 0, 1, 2]


def mixtures(count: int):
    """Nodes of so many layers with six experts of 9216 bytes."""

    def several(name: str, outputs: int, width: int):
        return random_weight(name, "F32", 6 * outputs, width, seed=1)._replace(shape=(6, outputs, width))

    def forward(ops):
        x = inputs(ops, np.ones((1, 32), np.float32))
        for layer in range(count):
            names = [f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
            experts = Experts(several(names[0], 24, 32), several(names[1], 24, 32), several(names[2], 32, 24), "silu")
            routes = ops.route(inputs(ops, np.ones((1, 6), np.float32), f"scores {layer}"), Routing(2))
            x = ops.experts(x, routes, experts)
        return x

    nodes = trace(forward)
    return nodes, [node for node in nodes if node.op == "experts"]


def test_how_many_experts_the_device_has():
    nodes, (a, b, c) = mixtures(3)
    one = 9216
    assert expert_bytes(a["experts"]) == one
    assert shares(nodes, ExpertOffload(layers=0, cache_bytes=0)) == {}
    assert shares(nodes, ExpertOffload(layers=2)) == {a: 2, b: 2}
    assert shares(nodes, ExpertOffload()) == {a: 2, b: 2, c: 2}
    assert shares(nodes, ExpertOffload(layers=99, cache_bytes=9 * one)) == {a: 3, b: 3, c: 3}
    assert shares(nodes, ExpertOffload(layers=2, cache_bytes=9 * one)) == {a: 4, b: 4}
    assert shares(nodes, ExpertOffload(cache_bytes=18 * one - 1)) == {a: 5, b: 5, c: 5}
    assert shares(nodes, ExpertOffload(cache_bytes=18 * one)) == {}
    assert shares(nodes, ExpertOffload(cache_bytes=3 * one - 1)) == {a: 0, b: 0, c: 0}


def test_what_is_left_out_needs_no_memory():
    nodes, _ = mixtures(3)
    assert left_out(nodes, ExpertOffload(layers=0)) == 0
    assert left_out(nodes, ExpertOffload(layers=2)) == 2 * 4 * 9216
    assert left_out(nodes, ExpertOffload(cache_bytes=0)) == 18 * 9216


# ---- as somebody asks for it

FLAGS = {
    "all": "2 of 6 experts of 3 layers",
    "2": "2 of 6 experts of 2 layers",
    "auto": "4 of 6 experts of 3 layers",
    "0": "",
}


@pytest.mark.parametrize("asked", FLAGS)
def test_an_answer_is_the_same(device, opencl, tmp_path, monkeypatch, asked):
    """With the clock of this machine. The device has memory for four experts of each layer."""
    path = WRITERS["gpt-oss"](tmp_path / "model.gguf")
    with open_model_file(path) as file:
        family = models.build(file.gguf, file.weights)
        needed = room_of.needed(trace(family.forward), family.attention, family.states, 64) - room(family, 6)
        free = needed + room(family, 4) + 1000
    monkeypatch.setattr(opencl.Device, "free_memory", lambda self: int(free / room_of.SHARE) + 1)
    lines: list[str] = []
    options = {"raw": True, "max_tokens": 6, "seed": 3, "commit_logits": True}
    with Model(path, pack_cache=False, context=64) as model:
        expected = model.generate("one two three", **options)
    place = {"device": "opencl", "gpu_layers": "all", "cpu_moe": asked, "progress": lines.append}
    with Model(path, pack_cache=False, context=64, threads=1, **place) as model:
        answer = model.generate("one two three", **options)
    assert answer.tokens == expected.tokens
    assert answer.receipt()["commitments"] == expected.receipt()["commitments"]
    assert FLAGS[asked] in "".join(lines) and ("experts" in "".join(lines)) == (asked != "0")


def test_flags(device, tmp_path, capsys):
    path = WRITERS["mixtral"](tmp_path / "model.gguf")
    asked = ["run", str(path), "one", "--raw", "-n", "3", "--temp", "0", "--no-pack-cache", "--off", "drafts"]
    answers = []
    for flags in ([], ["--device", "opencl", "--cpu-moe"], ["--device", "opencl", "--n-cpu-moe", "1"]):
        assert main([*asked, *flags]) == 0
        answers.append(capsys.readouterr())
    assert answers[0].out == answers[1].out == answers[2].out != ""
    assert "2 of 6 experts of 2 layers" in answers[1].err and "2 of 6 experts of 1 layer at" in answers[2].err
    assert main([*asked, "--n-cpu-moe", "some"]) == 2
    assert "--n-cpu-moe is 'some', but must be a number of layers, all, or auto" in capsys.readouterr().err


# ---- choosing


@pytest.mark.parametrize("count", [1, 2, 8, 33, 65, 130])
@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_chosen"])
def test_lanes_choose_experts(device, count, gating):
    """Fewer experts than lanes, as many, more; ties between lanes."""
    scores = np.round(np.random.default_rng(count).standard_normal((9, count)) * 3).astype(np.float32)
    scores[0], scores[1, ::3], scores[2] = 0.0, np.nan, -np.inf
    routing = Routing(min(count, 7), gating, scale=1.5)
    bias = float_weight("bias", np.round(np.random.default_rng(1).standard_normal(count)).astype(np.float32))
    found, expected = (
        backend.load(lambda ops: ops.route(inputs(ops, scores), routing, bias), ()).run(rows_of(9))
        for backend in (GpuBackend(device), open_backend("reference"))
    )
    assert_same(found, expected)
