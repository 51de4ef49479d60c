"""What a receipt claims, its two encodings, and how it is checked.

Needs the standard library and ``ktc``; no engine. ``python -m receipts check
FILE`` checks form, digests and signatures; rerunning a receipt needs an engine
behind ``receipts.verify.Replayer``.
"""
