"""The core: what one must understand of the engine, from the protocol to the worker.

Lives here: a room for each layer. `process`, `protocol` and `values` are the ground; on them stand
`definitions`, `loop`, `replay`, `workflow` and `database`, and on those `client` and `worker`, which never
meet. May not: import a feature or a door (tests/style/test_imports.py). Design: it works alone, which a test
shows that deletes the rest.
"""
