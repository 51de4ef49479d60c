"""Which type a tensor gets in a mixture such as Q4_K_M: more bits where fewer would hurt most.

Each mixture spends bits by a tensor's kind, its place among the layers, and the model's shape. Rules and numbers
are those of llama.cpp b11434 (src/llama-quant.cpp), for byte-equal files.
"""

from __future__ import annotations

from typing import Final

from kinetic.errors import UnsupportedModel
from kinetic.quantize.facts import Facts
from kinetic.quantize.recipe import Recipe
from kinetic.quantize.tensors import GLM5, VALUE_LIKE, Kind, layer_of
from kinetic.quantize.types import BLOCKS

FALCON: Final = "falcon"
_GLM5_Q8: Final = ("attn_q_a", "attn_q_b", "nextn.eh_proj")
_LOW: Final = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
"""Mixtures of two bits and less, with rules of their own."""
_LOW_UPPER: Final = ("IQ2_S", "IQ2_M")
_MOE_OUTPUT: Final = frozenset(
    {"Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS"}
)


def gets_more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth, and every third in between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


class Mixture:
    """Asked for one tensor after the other, in the order of the file: some rules count."""

    def __init__(self, recipe: Recipe, facts: Facts, kinds: list[Kind], has_importance: bool) -> None:
        """``kinds`` are those of all tensors that the file will hold."""
        self.recipe, self.facts, self.has_importance = recipe, facts, has_importance
        self.name = recipe.file_type.mixture
        self.default = recipe.file_type.tensor_type
        self.is_tied = Kind.OUTPUT not in kinds
        self.layers = facts.layers
        self.values = sum(kind in VALUE_LIKE for kind in kinds)
        self.seen = dict.fromkeys(Kind, 0)
        """Tensors of each kind so far; those like values are counted under VALUE."""

    def type_of(self, name: str, kind: Kind, shape: tuple[int, ...]) -> str:
        """``shape`` is row-major. Raises UnsupportedModel where the number of a layer can't be told."""
        if self.facts.architecture == GLM5 and any(part in name for part in _GLM5_Q8):
            return "Q8_0"
        if self.is_output(kind):
            return self.recipe.output_type or self.output(shape[-1])
        if self.name == "MXFP4_MOE":
            return self.experts_only(kind, shape)
        if kind == Kind.EMBEDDING:
            return self.embedding()
        return self.low(kind) if self.name in _LOW else self.usual(name, kind)

    def is_output(self, kind: Kind) -> bool:
        """Where there is no output of its own, the embedding is used twice and treated as one."""
        return kind == Kind.OUTPUT or (self.is_tied and kind == Kind.EMBEDDING)

    # -- outside of layers

    def output(self, row: int) -> str:
        return "Q8_0" if row % BLOCKS[self.default] else self.wanted_output()

    def wanted_output(self) -> str:
        """What the output gets if its rows can have the default."""
        if self.name in ("MXFP4_MOE", "Q8_0") or self.facts.architecture == FALCON:
            return "Q8_0"
        return "Q5_K" if self.name in _LOW or self.name == "IQ3_XXS" else "Q6_K"

    def embedding(self) -> str:
        if self.name in _LOW_UPPER or self.name == "IQ3_XXS":
            return "IQ3_S"
        if self.name in _LOW:
            return "Q2_K"
        return "Q4_K" if self.name in ("TQ1_0", "TQ2_0", "Q2_0") else self.default

    def experts_only(self, kind: Kind, shape: tuple[int, ...]) -> str:
        """MXFP4 for what has a matrix for each expert, which in one family other tensors have too."""
        is_stack = len(shape) > 2 and shape[-3] > 1
        is_expert = self.facts.architecture != "bailingmoe3" or kind in (Kind.UP, Kind.GATE, Kind.DOWN)
        return "MXFP4" if is_stack and is_expert else "Q8_0"

    # -- two bits and less

    def low(self, kind: Kind) -> str:
        if kind in VALUE_LIKE:
            self.seen[Kind.VALUE] += 1
            if self.facts.queries_per_key >= 4 or self.facts.experts >= 4:
                return "Q4_K"
            return "IQ3_S" if self.name in _LOW_UPPER else "Q2_K"
        if kind == Kind.KEY and self.facts.experts == 8:
            return "Q4_K"
        if kind == Kind.DOWN:
            return self.low_down()
        return self.low_attention_output() if kind == Kind.ATTENTION_OUTPUT else self.default

    def low_down(self) -> str:
        is_early = self.seen[Kind.DOWN] < self.layers // 8
        self.seen[Kind.DOWN] += 1
        if not is_early:
            return self.default
        return "IQ3_S" if self.name in _LOW_UPPER else "Q2_K"

    def low_attention_output(self) -> str:
        if self.facts.experts == 8:
            return "Q5_K"
        if self.name in ("IQ1_S", "IQ1_M"):
            return "IQ2_XXS"
        return "IQ3_S" if self.name in _LOW_UPPER else self.default

    # -- the rest

    def usual(self, name: str, kind: Kind) -> str:
        if kind in VALUE_LIKE:
            return self.value()
        if kind in (Kind.KEY, Kind.QUERY):
            return self.key_or_query(kind)
        if kind == Kind.ATTENTION_OUTPUT:
            return self.attention_output()
        if kind not in (Kind.UP, Kind.GATE, Kind.DOWN):
            return self.default
        layer = self.layer(name, kind)
        self.seen[kind] += 1
        return self.down(layer) if kind == Kind.DOWN else self.up_or_gate(layer)

    def layer(self, name: str, kind: Kind) -> int:
        """Counted, or read from the name where there are experts: old files hold a tensor for each of them."""
        if self.facts.experts <= 1:
            return self.seen[kind]
        layer = layer_of(name)
        if layer is None or not 0 <= layer < self.layers:
            problem = (
                f"tensor {name!r} names no layer from 0 to {self.layers - 1}, as its kind must in a model of experts"
            )
            raise UnsupportedModel(f"{problem}: use --pure", name="BAD_LAYER")
        return layer

    def value(self) -> str:
        at = self.seen[Kind.VALUE]
        self.seen[Kind.VALUE] += 1
        chosen = self.value_by_place(at)
        if self.facts.is_70b and chosen in ("Q3_K", "Q4_K"):
            chosen = "Q5_K"  # There these are an eighth of the queries' size, so more bits cost next to nothing.
        return "Q8_0" if self.facts.experts == 8 else chosen

    def value_by_place(self, at: int) -> str:
        if self.name in ("Q4_K_M", "Q5_K_M") and gets_more_bits(at, self.values):
            return "Q6_K"
        if self.name == "Q4_K_S" and at < 4:
            return "Q5_K"
        if self.name == "Q3_K_M":
            return "Q5_K" if at < 2 else "Q4_K"
        shares = self.facts.queries_per_key >= 4
        without = "IQ3_XXS" if self.has_importance else "IQ3_S"
        few_or_many = {
            "Q2_K": ("Q3_K", "Q4_K"),
            "Q2_K_S": (self.default, "Q4_K"),
            "IQ3_XXS": (without, "Q4_K"),
            "IQ3_XS": (self.default, "Q4_K"),
            "IQ3_S": (self.default, "Q4_K"),
            "IQ3_M": ("Q4_K", "Q4_K"),
            "Q3_K_L": ("Q5_K", "Q5_K"),
            "IQ4_NL": (self.default, "Q5_K"),
            "IQ4_XS": (self.default, "Q5_K"),
        }
        return few_or_many.get(self.name, (self.default, self.default))[shares]

    def key_or_query(self, kind: Kind) -> str:
        if kind == Kind.KEY and self.facts.experts == 8:
            return "Q8_0"
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(self.name, self.default)

    def attention_output(self) -> str:
        if self.facts.architecture == FALCON:
            return "Q4_K" if self.name == "Q3_K_L" else self.default
        if self.facts.experts == 8:
            return "Q5_K" if self.name in _MOE_OUTPUT else self.default
        chosen = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
        return chosen.get(self.name, self.default)

    def up_or_gate(self, layer: int) -> str:
        is_inner = self.layers // 8 <= layer < 7 * self.layers // 8
        return "IQ3_XXS" if self.name == "IQ3_XS" and is_inner else self.default

    def down(self, layer: int) -> str:
        is_early, more = layer < self.layers // 8, gets_more_bits(layer, self.layers)
        if self.facts.architecture == FALCON and self.name in ("Q3_K_M", "Q3_K_L", "Q4_K_M", "Q4_K_S"):
            return self.falcon_down(layer, more)
        if self.name == "Q3_K_M":
            return "Q5_K" if layer < self.layers // 16 else "Q4_K"
        if self.name in ("Q4_K_M", "Q5_K_M"):
            return "Q6_K" if more else self.default
        if self.name == "IQ3_M":
            return "Q4_K" if is_early or (self.facts.experts == 8 and more) else self.default
        if self.has_importance:
            early = {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}
        else:
            early = {"IQ3_XXS": "Q4_K", "IQ4_NL": "Q5_K", "IQ4_XS": "Q5_K"}
        early |= {"Q2_K_S": "Q4_K", "Q4_K_S": "Q5_K"}
        everywhere = {"Q2_K": "Q3_K", "Q3_K_L": "Q5_K"} | ({} if self.has_importance else {"IQ3_XXS": "Q3_K"})
        otherwise = everywhere.get(self.name, self.default)
        return early.get(self.name, otherwise) if is_early else otherwise

    def falcon_down(self, layer: int, more: bool) -> str:
        is_first = layer < self.layers // 16
        if self.name == "Q3_K_M":
            return "Q5_K" if is_first else "Q4_K" if more else "Q3_K"
        if self.name == "Q4_K_M":
            return "Q6_K" if is_first else "Q5_K" if more else "Q4_K"
        return "Q4_K"  # Q3_K_L, and Q4_K_S as everywhere
