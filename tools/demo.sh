#!/usr/bin/env bash
# What Kinetic is for, in five steps: fetch a small model, let it answer with a signed receipt,
# verify the receipt, change one token of it and see it found, and pack the model into a bundle.
# Called by `make demo`; exits non-zero when anything goes otherwise. Usage: tools/demo.sh FOLDER_OF_kinetic
set -uo pipefail
bin=${1:?usage: tools/demo.sh FOLDER_OF_kinetic}
receipt=answer.json
tampered=answer-tampered.json
key=demo-key
bundle=demo.ktc

say() { printf '\n%s\n' "$*"; }

show() {
  local word
  printf '$'
  for word; do case $word in *" "*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac done
  printf '\n'
}

# expect STATUS COMMAND...: show the command, run it, and stop unless it exits with STATUS.
expect() {
  local wanted=$1 status=0
  shift
  show "$@"
  "$bin/$1" "${@:2}" || status=$?
  if [ "$status" -ne "$wanted" ]; then
    say "demo: that exited with $status where $wanted was expected"
    exit 1
  fi
}

say "1. A small model (98 MB, fetched once)."
expect 0 kinetic pull smollm2

say "2. A question, sampled at temperature 0.8 with seed 7. The receipt goes to $receipt, signed with a new key."
rm -f "$key" "$key.pub" "$bundle"
expect 0 kinetic keygen -o "$key"
expect 0 kinetic run smollm2 "Name three rivers." --temp 0.8 --seed 7 --receipt "$receipt" --sign "$key"

say "3. Is that really what this model says? Run it again and compare every token."
expect 0 kinetic verify-receipt "$receipt" --key "$key.pub"

say "4. Now somebody changes one token of the answer."
"$bin/python" - "$receipt" "$tampered" <<'PYTHON' || exit 1
import json
import sys

source, target = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    answer = json.load(file)
tokens = answer["receipt"]["output"]["tokens"]
place = len(tokens) // 2
other = tokens[place] ^ 1  # its neighbour in the vocabulary
print(f"   output token {place}: {tokens[place]} becomes {other}, saved as {target}")
tokens[place] = other
answer["signatures"] = []  # they would give it away at once
with open(target, "w", encoding="utf-8") as file:
    json.dump(answer, file)
PYTHON
expect 10 kinetic verify-receipt "$tampered"

say "Found: exit code 10, DIFFERS. The untouched receipt verified, the tampered one did not."

say "5. The model, its tokenizer and its template in one signed file; the receipt holds for it as well."
expect 0 kinetic pack smollm2 -o "$bundle" --sign "$key" --chunks
expect 0 kinetic verify "$bundle" --key "$key.pub"
expect 0 kinetic verify-receipt "$receipt" --model "$bundle" --key "$key.pub"
