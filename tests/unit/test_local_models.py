"""Models of Ollama, LM Studio and the Hugging Face cache: found, named, never touched."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from kinetic import local_models, model_names, store
from kinetic.errors import FileProblem, UsageError
from kinetic.model_names import HubName, choose, hub_name, label

GGUF = b"GGUF and the rest"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "kinetic"))
    for name in ("OLLAMA_MODELS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    real = local_models._ollama_folders
    monkeypatch.setattr(local_models, "_ollama_folders", lambda: real()[:1])  # not what this machine may have
    return tmp_path


def write(path: Path, data: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def ollama(folder: Path, name: str, data: bytes = GGUF, kinds: tuple[str, ...] = ("model", "template")) -> Path:
    """A model as ``ollama pull`` leaves it; ``name`` is HOST/OWNER/MODEL/TAG."""
    digest = hashlib.sha256(data).hexdigest()
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}
        for kind in kinds
    ]
    write(folder / "manifests" / name, json.dumps({"schemaVersion": 2, "layers": layers}).encode())
    return write(folder / "blobs" / f"sha256-{digest}", data)


def cached(hub: Path, repo: str, commit: str, files: dict[str, bytes], main: bool = True) -> None:
    """A repository as the hub's client leaves it: links to blobs."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    for path, data in files.items():
        blob = write(folder / "blobs" / hashlib.sha256(data).hexdigest(), data)
        link = folder / "snapshots" / commit / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if main:
        write(folder / "refs" / "main", commit.encode())


def names() -> list[str]:
    return [model.name for model in local_models.list_local()]


def test_nothing_is_there(home):
    assert names() == [] and not (home / "kinetic").exists()


# --- Ollama ---


def test_ollama(home, monkeypatch):
    folder = home / ".ollama" / "models"
    first = ollama(folder, "registry.ollama.ai/library/llama3.2/1b")
    ollama(folder, "registry.ollama.ai/library/tiny/latest", b"GGUF tiny")
    ollama(folder, "registry.ollama.ai/someone/tiny/v1", b"GGUF someone's")
    ollama(folder, "hf.co/bartowski/X-GGUF/Q4_K_M", b"GGUF x")
    assert names() == [
        "ollama:hf.co/bartowski/X-GGUF:Q4_K_M",
        "ollama:llama3.2:1b",
        "ollama:someone/tiny:v1",
        "ollama:tiny:latest",
    ]
    assert store.resolve("ollama:llama3.2:1b") == first
    assert store.resolve("ollama:tiny") == store.resolve("ollama:tiny:latest")
    assert local_models.list_local()[1] == ("ollama:llama3.2:1b", "ollama", first, len(GGUF))
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert names() == []


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{", b"[]", b'{"layers": 1}', b'{"layers": [{}]}', b'{"layers": [1]}', b"\xff", b"[" * 100_000,
     b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../x"}]}',
     b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 7}]}'],
)  # fmt: skip
def test_manifests_that_are_not_as_ollama_writes_them(home, manifest):
    write(home / ".ollama/models/manifests/h/o/m/t", manifest)
    assert names() == []


def test_what_ollama_has_that_is_no_single_model(home):
    folder = home / ".ollama" / "models"
    ollama(folder, "registry.ollama.ai/library/other/latest", b"PK not a model")
    ollama(folder, "registry.ollama.ai/library/split/latest", b"GGUF 1", ("model", "model"))
    ollama(folder, "registry.ollama.ai/library/adapter/latest", b"GGUF 2", ("adapter", "projector"))
    ollama(folder, "registry.ollama.ai/library/gone/latest", b"GGUF 3").unlink()
    manifest = ollama(folder, "registry.ollama.ai/library/odd/latest", b"GGUF 4").parent.parent / "manifests/h/o/odd/t"
    write(folder / "blobs" / "sha256-abc")
    layer = {"mediaType": local_models.OLLAMA_MODEL, "digest": "sha256:abc", "size": len(GGUF)}
    write(manifest, json.dumps({"layers": [layer]}).encode())
    (folder / "manifests/registry.ollama.ai/library/odd/latest").unlink()
    assert names() == []


def test_a_verifier_finds_a_blob_by_its_name_without_reading_it(home, monkeypatch):
    path = ollama(home / ".ollama/models", "registry.ollama.ai/library/tiny/latest")
    wanted = store.hash_stream(iter([GGUF]), len(GGUF))
    monkeypatch.setattr(store, "hash_stream", lambda *a: pytest.fail("hashed"))
    assert store.find_by_digest(wanted) == path
    assert store.find_by_digest(store.Digests(wanted.size + 1, wanted.blake3, wanted.sha256)) is None


# --- LM Studio ---


def test_lm_studio(home):
    old = write(home / ".cache/lm-studio/models/pub/Repo-GGUF/old.gguf")
    new = write(home / ".lmstudio/models/pub/Repo-GGUF/m-Q4_K_M.gguf")
    write(home / ".lmstudio/models/pub/Repo-GGUF/mmproj-f16.gguf")
    write(home / ".lmstudio/models/pub/Repo-GGUF/downloading_x.gguf.part")
    write(home / ".lmstudio/models/pub/Repo-GGUF/no.gguf", b"PK")
    write(home / ".lmstudio/models/loose.gguf")
    assert names() == ["lmstudio:pub/Repo-GGUF/m-Q4_K_M.gguf", "lmstudio:pub/Repo-GGUF/old.gguf"]
    assert store.resolve("lmstudio:pub/Repo-GGUF/m-Q4_K_M.gguf") == new
    assert store.resolve("lmstudio:pub/Repo-GGUF/old") == old


def test_split_models_count_as_one_if_they_are_whole(home):
    folder = home / ".lmstudio/models/pub/r"
    for number in (1, 2):
        write(folder / f"s-0000{number}-of-00002.gguf", b"GGUF" + bytes(number))
    write(folder / "cut-00001-of-00002.gguf")
    assert [(model.name, model.size) for model in local_models.list_local()] == [
        ("lmstudio:pub/r/s-00001-of-00002.gguf", 11)
    ]


# --- the Hugging Face cache ---


def test_hugging_face(home):
    hub = home / ".cache/huggingface/hub"
    files = {"m-Q4_K_M.gguf": GGUF, "m-Q8_0.gguf": GGUF + b"8", "a.gguf": GGUF + b"a", "model.safetensors": b"x"}
    cached(hub, "own/Repo", "c" * 40, files)
    cached(hub, "own/Repo", "d" * 40, {"m-Q4_K_M.gguf": GGUF + b"old", "gone.gguf": GGUF + b"g"}, main=False)
    (hub / "models--gpt2").mkdir()
    (hub / "datasets--a--b").mkdir()
    assert names() == ["hf:own/Repo:Q4_K_M", "hf:own/Repo:Q8_0", "hf:own/Repo:a.gguf", "hf:own/Repo:gone.gguf"]
    folder = hub / "models--own--Repo" / "snapshots"
    for text in (
        "hf:own/Repo:Q4_K_M",
        "own/Repo:q4_k_m",
        "hf:own/Repo",
        "hf:own/Repo:m-Q4_K_M.gguf",
        "hf:own/Repo@main",
    ):
        assert store.resolve(text) == folder / ("c" * 40) / "m-Q4_K_M.gguf"
    assert store.resolve("hf:own/Repo@ddddddd:Q4_K_M") == folder / ("d" * 40) / "m-Q4_K_M.gguf"
    for text in ("hf:own/Repo:Q2_K", "hf:own/Other", "hf:own/Repo@" + "e" * 40):
        with pytest.raises(FileProblem) as caught:
            store.resolve(text)
        assert caught.value.name == "NOT_PULLED"


def test_models_that_a_name_cannot_tell_apart(home):
    cached(home / ".cache/huggingface/hub", "o/r", "c" * 40, {"a/m.Q4_0.gguf": GGUF, "b/m.Q4_0.gguf": GGUF + b"b"})
    assert names() == ["hf:o/r:a/m.Q4_0.gguf", "hf:o/r:b/m.Q4_0.gguf"]
    with pytest.raises(FileProblem) as caught:
        store.resolve("hf:o/r:Q4_0")
    assert caught.value.name == "AMBIGUOUS" and "hf:o/r:b/m.Q4_0.gguf" in str(caught.value)
    assert store.resolve("hf:o/r:b/m.Q4_0.gguf").parent.name == "b"


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "X"}, "X/huggingface/hub"),
        ({"XDG_CACHE_HOME": "X", "HF_HOME": "H"}, "H/hub"),
        ({"XDG_CACHE_HOME": "X", "HF_HOME": "H", "HF_HUB_CACHE": "C"}, "C"),
        ({"HF_HOME": "H", "HUGGINGFACE_HUB_CACHE": "L"}, "L"),
    ],
)
def test_where_the_cache_is(home, monkeypatch, variables, place):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(home / value))
    assert local_models.hub_cache() == home / place


# --- all of them ---


def test_names_of_nothing(home):
    write(home / ".lmstudio/models/pub/r/model.gguf")
    for text, hint in [("lmstudio:pub/r/modell", "did you mean lmstudio:pub/r/model.gguf?"), ("ollama:x", "")]:
        with pytest.raises(FileProblem) as caught:
            store.resolve(text)
        assert caught.value.name == "NO_MODEL" and hint in str(caught.value) and "kinetic models" in str(caught.value)
    with pytest.raises(UsageError):
        store.resolve("hf:nothing")


def test_a_file_wins_over_a_name(home, monkeypatch):
    monkeypatch.chdir(home)
    ollama(home / ".ollama/models", "registry.ollama.ai/library/tiny/latest")
    (home / "ollama:tiny").write_bytes(GGUF)
    assert store.resolve("ollama:tiny") == Path("ollama:tiny")


def test_a_pipe_is_not_waited_for(home):
    folder = home / ".lmstudio/models/pub/r"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.gguf")
    os.mkfifo(write(home / ".ollama/models/manifests/h/o/m/file").with_name("pipe"))
    assert names() == []


def test_hundreds_are_listed_quickly_and_only_their_magic_is_read(home, monkeypatch):
    for number in range(150):
        ollama(home / ".ollama/models", f"registry.ollama.ai/library/m{number}/latest", GGUF + b"%d" % number)
        write(home / f".lmstudio/models/pub{number}/r/m.gguf", GGUF)
        cached(home / ".cache/huggingface/hub", f"o/r{number}", "c" * 40, {"m-Q8_0.gguf": GGUF, "x.json": b""})
    read = {}
    real = builtins.open

    def opened(path, *args, **options):
        file = real(path, *args, **options)
        read[os.fspath(path)] = file
        return file

    started = time.perf_counter()
    assert len(names()) == 450
    assert time.perf_counter() - started < 0.4, "0.2 s on a quiet machine"
    monkeypatch.setattr(builtins, "open", opened)
    before = {path: path.stat() for path in home.rglob("*") if path.is_file()}
    assert len(names()) == 450
    models = [file for path, file in read.items() if "/manifests/" not in path]
    assert len(models) == 450 and all(file.closed for file in read.values())
    assert {path: path.stat().st_mtime_ns for path in before} == {p: s.st_mtime_ns for p, s in before.items()}


# --- names ---


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:a/b", HubName("a/b", "", "")),
        ("hf:a/b:Q4_K_M", HubName("a/b", "", "Q4_K_M")),
        ("a/b:Q4_K_M", HubName("a/b", "", "Q4_K_M")),
        ("a/b@v1:Q4_K_M", HubName("a/b", "v1", "Q4_K_M")),
        ("hf:a/b:Q8_0@refs/pr/1", HubName("a/b", "refs/pr/1", "Q8_0")),
        ("hf:a/b:x/y-Q8_0.gguf", HubName("a/b", "", "x/y-Q8_0.gguf")),
        ("a/b", None),
        ("a/b@v1", None),
        ("smollm2", None),
        ("../a/b:c", None),
        ("a/..:c", None),
        ("a/b:../../c", None),
        ("pypi:a==1", None),
    ],
)
def test_names_on_a_hub(text, name):
    assert hub_name(text) == name
    assert name is None or hub_name(str(name)) == name


@pytest.mark.parametrize(
    "rest",
    ["", "a", "a/b/c", "a/b:", "a/b@", "a/b@v:Q@w", "a/b@../x", "a/b@v/../x", "a/b:x/../y", "a--b/c", "/b", "a/b\n"],
)
def test_bad_names_on_a_hub(rest):
    with pytest.raises(UsageError) as caught:
        hub_name("hf:" + rest)
    assert caught.value.name == "BAD_HUB_NAME"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Qwen2.5-7B-Instruct-q4_k_m.gguf", "Q4_K_M"),
        ("gemma-3-1b-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model.IQ2_XXS.gguf", "IQ2_XXS"),
        ("ggml-model-f16.gguf", "F16"),
        ("x-BF16.gguf", "BF16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("Q8_0/x-00001-of-00002.gguf", "Q8_0"),
        ("Q8_0/x-Q4_0.gguf", "Q4_0"),
        ("Qwen3-Next.gguf", ""),
        ("F1600.gguf", ""),
    ],
)
def test_quantisations_in_names(file, expected):
    assert label(file) == expected


@pytest.mark.parametrize(
    ("files", "choice", "chosen"),
    [
        ("a-Q8_0 a-Q4_K_M a-Q2_K", "", "a-Q4_K_M"),
        ("a-Q8_0 a-Q2_K", "", "a-Q8_0"),
        ("a-Q2_K", "", "a-Q2_K"),
        ("a-Q2_K a-Q3_K", "", "a-Q2_K a-Q3_K"),
        ("a-Q4_K_M a-UD-Q4_K_M", "q4_k_m", "a-Q4_K_M"),
        ("a-UD-Q4_K_XL a-Q8_0", "Q4_K_XL", "a-UD-Q4_K_XL"),
        ("a-Q4_K_M a-Q4_K_S", "Q4_K", ""),
        ("a-Q4_K_M b-Q4_K_M", "b-Q4_K_M.gguf", "b-Q4_K_M"),
        ("a-it-Q4_0 a-pt-Q8_0", "pt", "a-pt-Q8_0"),
        ("a-Q4_0", "", "a-Q4_0"),
        ("", "", ""),
    ],
)
def test_choices(files, choice, chosen):
    full = [f"{file}.gguf" for file in files.split()]
    assert choose(full, choice) == [f"{file}.gguf" for file in chosen.split()]


def test_short_names_are_choices():
    files = ["a-Q4_0.gguf", "b-Q4_0.gguf", "a-Q8_0.gguf", "x.gguf"]
    for file, name in model_names.short_names(files).items():
        assert choose(files, name) == [file]


def test_split_names_that_are_none():
    assert model_names.shards(Path("a-00003-of-00002.gguf")) == [Path("a-00003-of-00002.gguf")]
    assert model_names.shards(Path("a-00000-of-00002.gguf")) == [Path("a-00000-of-00002.gguf")]
