"""The JSON parts of a ``.vram`` file beside its snapshot, each made into its columns or facts.

recording_facts: what the recording says about itself, and each device's memory
storages: the named tensors, and what kept memory, by address
measured: ledgers and samples of counters
entries: what the parts share: entries by device, rows of a table, addresses
"""
