"""Flight records of NCCL: what the ranks' collective calls tell together.

collectives: where flight records differ.
desync: who is at fault.
"""
