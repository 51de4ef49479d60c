"""A model of bytes: a tokenizer, a template, an engine and a file that say what a test tells them."""

from __future__ import annotations

from types import SimpleNamespace

from kinetic import store
from kinetic.errors import NonFinite
from kinetic.types import ModelFile, ModelIdentity, Step

END, BOS, VOCAB = 256, 257, 258


class Tokenizer:
    """One token a byte, an end token and a beginning token."""

    vocab_size, bos, eos, end_tokens, add_bos = VOCAB, BOS, END, frozenset({END}), True

    def encode(self, text, *, add_special, parse_special, guard=""):
        parts = text.split("<end>") if parse_special else [text]
        ids = []
        for part in parts:
            ids += [END] * (part is not parts[0])
            ids += list(part.replace(guard, "").encode() if guard else part.encode())
        return [BOS, *ids] if add_special else ids

    def piece(self, token, *, special=False):
        return bytes([token]) if token < 256 else b""


class Template:
    def __init__(self, uses_clock=False):
        self.uses_clock = uses_clock

    def render(self, messages, *, tools=None, add_generation_prompt=True, clock=None, extra=None):
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        guarded = text.replace("<end>", "<|end>")
        clock_used = clock if self.uses_clock else None
        return SimpleNamespace(text=text, text_with_guard=guarded, guard="|", clock_used=clock_used)


class Engine:
    """Says ``answer`` whatever is asked, then ends; remembers what it was asked."""

    answer = b"a river"

    def __init__(self, loaded, *, backend, threads, context):
        self.context = context or 64
        self.requests = []
        self.identity = SimpleNamespace(engine_id="id", device_class="cpu", device_name="one byte at a time")
        self.inside = self.most_inside = 0

    def generate(self, request, should_stop=None):
        self.requests.append(request)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            position = len(request.prompt)
            for token in [*self.answer, END, *([66] * 1000)]:
                if position >= self.context or position - len(request.prompt) == request.max_tokens or should_stop():
                    return
                if token is NAN:
                    raise NonFinite("a logit is not finite")
                yield Step(token, position, 65, 0.5)
                position += 1
                if token in request.end_tokens:
                    return
        finally:
            self.inside -= 1

    def replay(self, request, output):
        self.requests.append(request)
        said = [*self.answer, END]
        for index in range(len(output)):
            yield Step(said[index], len(request.prompt) + index, 65, 0.5)

    def close(self):
        pass


NAN = object()
FILE = ModelFile("tiny.gguf", 4, "ab" * 32, "cd" * 32)


class Loaded:
    gguf = SimpleNamespace(metadata={})
    hashed = 0

    def identity(self, **options):
        self.hashed += 1
        return ModelIdentity("llama", (FILE,))

    def close(self):
        pass


class HashedFile(Loaded):
    """A loaded file whose identity is that of the bytes on disk."""

    rehashed = 0

    def __init__(self, path):
        self.path = path

    def identity(self, rehash=False, progress=None):
        HashedFile.rehashed += rehash
        found = store.digests(self.path, rehash=rehash, progress=progress)
        return ModelIdentity("llama", (ModelFile(self.path.name, found.size, found.blake3, found.sha256),))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
