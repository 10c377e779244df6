"""Hyper-parameter search: ``bimetal tune JOB.toml --grid …``, docs/tuning.md.

Optuna proposes settings and keeps the results (``search``), ``halving`` decides which trials go on, ``bimetal.pool``
trains them.
"""
