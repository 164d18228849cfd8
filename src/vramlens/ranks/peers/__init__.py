"""Peers: who is compared with whom, and what is usual among them.

rank_cohorts: which ranks do the same work.
placed_tables: tables of which each rank owns other ones.
roles: which ranks run programs of their own.
group_places: which places in process groups have work, or parts, of their own.
workloads: which replicas serve other requests.
common_factor: ranks that differ and are all of one host or process group.
steps_against_peers: the peaks of steps beside each other.
trained_parameters: which parameters ranks train.
schedules: pipelines that a library's schedule runs.
strangers: recordings of another program.
strays: what ranks hold on GPUs of others.
usual: medians of a cohort.
whole_parameters: what all ranks keep whole beside what they divide.
"""
