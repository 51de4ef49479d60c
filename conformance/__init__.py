"""The conformance suite: proves on the user's own machine that no speed-up changes an answer.

It sees ``kinetic`` only as an outsider does: ``kinetic.api``, ``kinetic.types``,
``kinetic.errors``, and ``kinetic.backends.base`` for vectors of single operations.
"""
