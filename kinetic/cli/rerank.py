"""``kinetic rerank``: documents in the order in which they answer a query."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from kinetic.cli.embed import add_file, add_machine, open_embedder, read_texts, write
from kinetic.cli.parser import Subcommands
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.bits import F32

HELP = "order documents by how well they answer a query"

EPILOG = """\
The model must have a rank head, as bge-reranker and Qwen3-Reranker files have (a conversion that kept it).
Printed are score, number and text of each document, the best first; of equal scores the first document.
A score has the same bits whatever documents it is computed with. --json prints what llama-server's /rerank
and Jina's interface answer. The spelling of a control token in a text is ordinary text.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("rerank", help=HELP, description=HELP[0].upper() + HELP[1:] + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", help="the documents")
    parser.add_argument("--query", required=True, metavar="TEXT", help="what they are to answer")
    add_file(parser, "documents")
    parser.add_argument("--top-n", type=int, default=0, metavar="N", help="show the best N only (0: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file, whole or not at all")
    add_machine(parser)
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    documents = read_texts(options.documents, options, "documents")
    if options.top_n < 0:
        raise UsageError("--top-n is a number of documents, or 0 for all", name="TOP_N")
    if options.output is not None:
        from kinetic.cli.receipt_files import require_writable

        require_writable(options.output, options.model, options.file)
    with open_embedder(options, "rank") as embedder:
        pairs = embedder.pairs(options.query, documents)
        scores = embedder.scores(pairs)
        model, labels = embedder.path.name, embedder.labels
    order = sorted(range(len(documents)), key=lambda i: (-float(scores[i, 0]), i))[: options.top_n or None]
    tokens = sum(map(len, pairs))  # exact: integers
    if options.json:
        text = _json(scores, order, labels, model, tokens)
    else:
        from receipts.terminal import printable

        text = "\n".join(f"{float(scores[i, 0]):10.6f}  {i}  {printable(documents[i])}" for i in order)
    write(text, options.output)
    return 0


def _json(scores: F32, order: list[int], labels: tuple[str, ...], model: str, tokens: int) -> str:
    import json

    results: list[dict[str, Any]] = []
    for i in order:
        result: dict[str, Any] = {"index": i, "relevance_score": float(str(scores[i, 0]))}
        if scores.shape[1] > 1:
            names = labels if len(labels) == scores.shape[1] else [str(n) for n in range(scores.shape[1])]
            result["scores"] = {name: float(str(value)) for name, value in zip(names, scores[i], strict=True)}
        results.append(result)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"model": model, "object": "list", "usage": usage, "results": results})
